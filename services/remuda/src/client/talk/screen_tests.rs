use remuda_domain::RunState;

use super::*;
use crate::output::ColorChoice;

/// Both streams as one, as on a terminal, and stdout alone.
#[derive(Debug, Default)]
struct Paper {
    both: String,
    out: String,
}

impl Sheet for Paper {
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

fn conversation() -> Vec<Piece> {
    let call = |tool: &str, detail: &str| Piece::Call { tool: tool.into(), detail: detail.into() };
    let result = |text: &str| Piece::Result { call: None, lines: vec![(None, text.to_owned())] };
    vec![
        Piece::Header { agent: "build".into(), model: "platform/m".into() },
        Piece::Reasoning("Where to\nbegin?".into()),
        Piece::Text("I will".into()),
        Piece::Text(" look.\n".into()),
        Piece::Said { calls: true },
        call("Read", "a.py"),
        result("3 lines"),
        call("Bash", "make"),
        result("exit code 0"),
        Piece::Text("\nDone.\n\n".into()),
        Piece::Text("It works.\n".into()),
        Piece::Said { calls: false },
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

fn shown(flowing: bool, pieces: Vec<Piece>, run: &v1::Run) -> Paper {
    let mut screen = Screen::new(Paper::default(), flowing);
    pieces.into_iter().for_each(|piece| screen.show(piece));
    screen.finish(run, Tally { steps: 4, input_tokens: 1234, output_tokens: 56, micros: 0 });
    assert!(!screen.is_mid_line());
    screen.sheet
}

#[test]
fn a_terminal_shows_it_as_it_comes() {
    let paper = shown(true, conversation(), &ended("Done.\n\nIt works.\n", RunState::Completed));
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
    assert_eq!(paper.both, expected);
}

#[test]
fn a_file_gets_just_the_answer() {
    let paper = shown(false, conversation(), &ended("Done.\n\nIt works.\n", RunState::Completed));
    assert_eq!(paper.out, "Done.\n\nIt works.\n");
    let order =
        ["● build", "✻ Where to", "  begin?", "I will look.", "⏺ Read", "⏺ Bash", "Done.", "✓ completed"];
    let places: Vec<usize> = order.iter().map(|text| paper.both.find(text).unwrap()).collect();
    assert!(places.is_sorted(), "{}", paper.both);
    assert_eq!(paper.both.matches("Done.").count(), 1);
}

#[test]
fn words_that_became_no_answer_are_no_answer() {
    let mut run = ended("", RunState::Cancelled);
    run.failure = Some(v1::Failure { code: "cancelled".into(), message: "enough".into() });
    let paper = shown(false, vec![Piece::Text("I was about".into()), Piece::Said { calls: false }], &run);
    assert_eq!(paper.out, "");
    assert!(paper.both.contains("I was about\n\n✗ cancelled"), "{}", paper.both);
    assert!(paper.both.ends_with("· run_1\n  cancelled: enough\n"), "{}", paper.both);
}

#[test]
fn what_breaks_off_leaves_a_clean_line() {
    let pieces = vec![Piece::Text("Well, I".into()), Piece::Restarted, Piece::Text("Sure".into())];
    let paper = shown(true, pieces, &ended("", RunState::Failed));
    assert!(paper.both.starts_with("Well, I\n\n↻ "), "{}", paper.both);
    assert!(paper.both.contains("anew\n\nSure\n\n✗ failed"), "{}", paper.both);
    assert_eq!(paper.out, "Well, I\n\nSure\n");
}

#[test]
fn the_end_says_what_it_cost() {
    let total = |input_tokens, micros| {
        let usage = v1::Usage { input_tokens, output_tokens: 7, ..Default::default() };
        Some(v1::Total { model_calls: 2, usage: Some(usage), micros })
    };
    let mut run = ended("", RunState::Completed);
    (run.spent, run.tree_spent) = (total(1500, 12_300), total(1500, 12_300));
    let paper = shown(true, Vec::new(), &run);
    assert!(paper.both.contains("· 1.5k tokens in, 7 out · $0.0123 · run_1"), "{}", paper.both);
    run.tree_spent = total(40_000, 2_000_000);
    let paper = shown(true, Vec::new(), &run);
    let expected = "$0.0123 · with those below 40.0k tokens in, 7 out, $2.00 · run_1";
    assert!(paper.both.contains(expected), "{}", paper.both);
}

#[test]
fn a_question_gives_way_to_what_happens() {
    let mut screen = Screen::new(Paper::default(), true);
    screen.ask("allow it? ");
    assert!(screen.is_mid_line());
    screen.show(Piece::Facts(vec![(None, "  │ review  ⏺ Read  a".to_owned())]));
    assert!(!screen.is_mid_line());
    screen.ask("allow it? ");
    screen.answered();
    screen.show(Piece::Facts(vec![(None, "✓ approved".to_owned())]));
    assert_eq!(screen.sheet.both, "allow it? \n  │ review  ⏺ Read  a\nallow it? ✓ approved\n");
}
