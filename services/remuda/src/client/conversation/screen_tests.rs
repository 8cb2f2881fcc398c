use remuda_domain::RunState;

use super::*;
use crate::output::ColorChoice;

/// Captures both streams interleaved, as on a terminal, and stdout alone.
#[derive(Debug, Default)]
struct CapturedStreams {
    both: String,
    out: String,
}

impl Streams for CapturedStreams {
    fn out(&mut self, text: &str) {
        self.both.push_str(text);
        self.out.push_str(text);
    }

    fn err(&mut self, text: &str) {
        self.both.push_str(text);
    }

    fn sinks(&self) -> (Sink, Sink) {
        let output = Output::new(false, ColorChoice::Never);
        (output.out, output.err)
    }
}

fn conversation() -> Vec<DisplayItem> {
    let call = |tool: &str, detail: &str| DisplayItem::Call { tool: tool.into(), detail: detail.into() };
    let result = |text: &str| DisplayItem::Result { call: None, lines: vec![(None, text.to_owned())] };
    vec![
        DisplayItem::Header { agent: "build".into(), model: "platform/m".into() },
        DisplayItem::Reasoning("Where to\nbegin?".into()),
        DisplayItem::Text("I will".into()),
        DisplayItem::Text(" look.\n".into()),
        DisplayItem::MessageEnd { calls: true },
        call("Read", "a.py"),
        result("3 lines"),
        call("Bash", "make"),
        result("exit code 0"),
        DisplayItem::Text("\nDone.\n\n".into()),
        DisplayItem::Text("It works.\n".into()),
        DisplayItem::MessageEnd { calls: false },
    ]
}

fn ended(answer: &str, state: RunState) -> v1::Run {
    v1::Run {
        id: "run_1".into(),
        state: v1::RunState::from(state).into(),
        answer: answer.to_owned(),
        ..Default::default()
    }
}

fn shown(streaming: bool, items: Vec<DisplayItem>, run: &v1::Run) -> CapturedStreams {
    let mut screen = Screen::new(CapturedStreams::default(), streaming);
    items.into_iter().for_each(|item| screen.show(item));
    screen.finish(run, RunTotals { steps: 4, input_tokens: 1234, output_tokens: 56, micros: 0 });
    assert!(!screen.is_mid_line());
    screen.streams
}

#[test]
fn terminal_output_is_streamed_in_order() {
    let written = shown(true, conversation(), &ended("Done.\n\nIt works.\n", RunState::Completed));
    let expected = "\
● build · platform/m

✻ Where to
begin?

I will look.

⏺ Read  a.py
  ⎿ 3 lines
⏺ Bash  make
  ⎿ exit code 0

Done.

It works.

✓ completed · 4 steps · 1.2k tokens in, 56 out · run_1
";
    assert_eq!(written.both, expected);
}

#[test]
fn redirected_stdout_gets_only_the_answer() {
    let written = shown(false, conversation(), &ended("Done.\n\nIt works.\n", RunState::Completed));
    assert_eq!(written.out, "Done.\n\nIt works.\n");
    let order =
        ["● build", "✻ Where to", "  begin?", "I will look.", "⏺ Read", "⏺ Bash", "Done.", "✓ completed"];
    let places: Vec<usize> = order.iter().map(|text| written.both.find(text).unwrap()).collect();
    assert!(places.is_sorted(), "{}", written.both);
    assert_eq!(written.both.matches("Done.").count(), 1);
}

#[test]
fn text_of_a_cancelled_run_goes_to_stderr() {
    let mut run = ended("", RunState::Cancelled);
    run.failure = Some(v1::Failure { code: "cancelled".into(), message: "enough".into() });
    let written = shown(
        false,
        vec![DisplayItem::Text("I was about".into()), DisplayItem::MessageEnd { calls: false }],
        &run,
    );
    assert_eq!(written.out, "");
    assert!(written.both.contains("I was about\n\n✗ cancelled"), "{}", written.both);
    assert!(written.both.ends_with("· run_1\n  cancelled: enough\n"), "{}", written.both);
}

#[test]
fn restarted_message_begins_on_a_new_line() {
    let items =
        vec![DisplayItem::Text("Well, I".into()), DisplayItem::Restarted, DisplayItem::Text("Sure".into())];
    let written = shown(true, items, &ended("", RunState::Failed));
    assert!(written.both.starts_with("Well, I\n\n↻ "), "{}", written.both);
    assert!(written.both.contains("again\n\nSure\n\n✗ failed"), "{}", written.both);
    assert_eq!(written.out, "Well, I\n\nSure\n");
}

#[test]
fn footer_shows_the_cost_with_and_without_child_runs() {
    let total = |input_tokens, micros| {
        let usage = v1::Usage { input_tokens, output_tokens: 7, ..Default::default() };
        Some(v1::Total { model_calls: 2, usage: Some(usage), micros })
    };
    let mut run = ended("", RunState::Completed);
    (run.spent, run.tree_spent) = (total(1500, 12_300), total(1500, 12_300));
    let written = shown(true, Vec::new(), &run);
    assert!(written.both.contains("· 1.5k tokens in, 7 out · $0.0123 · run_1"), "{}", written.both);
    run.tree_spent = total(40_000, 2_000_000);
    let written = shown(true, Vec::new(), &run);
    let expected = "$0.0123 · with child runs 40.0k tokens in, 7 out, $2.00 · run_1";
    assert!(written.both.contains(expected), "{}", written.both);
}

#[test]
fn notice_during_a_prompt_begins_on_a_new_line() {
    let mut screen = Screen::new(CapturedStreams::default(), true);
    screen.ask("allow it? ");
    assert!(screen.is_mid_line());
    screen.show(DisplayItem::Notice(vec![(None, "  │ review  ⏺ Read  a".to_owned())]));
    assert!(!screen.is_mid_line());
    screen.ask("allow it? ");
    screen.answered();
    screen.show(DisplayItem::Notice(vec![(None, "✓ approved".to_owned())]));
    assert_eq!(screen.streams.both, "allow it? \n  │ review  ⏺ Read  a\nallow it? ✓ approved\n");
}
