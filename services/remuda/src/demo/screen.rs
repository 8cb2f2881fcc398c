//! Prints the output of the demo.
//!
//! If the reader of stdout closes the pipe (`| head`), output stops but the program continues, because it must stop the server
//! first.

use std::{
    collections::HashMap,
    io::{self, Write as _},
    time::Duration,
};

use remuda_client::terminal_state;
use remuda_domain::{RunState, Timestamp};
use remuda_proto::v1;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    checks::Check,
    recording::{at, data},
    scenario::{RunPlan, SessionPlan},
    timeline::{self, Line, Row, Tone},
};
use crate::output::{Output, Style, elapsed, one_line};

/// Width if stdout is not a terminal.
const DEFAULT_COLUMNS: usize = 80;
/// How long events are buffered to sort them by time. Longer than a worker delays the start event of a short run.
const REORDER_WINDOW: Duration = Duration::from_millis(60);
/// Colours of sessions, different from those for success and failure.
const SESSION_COLORS: [&str; 5] = ["38;5;39", "38;5;80", "38;5;141", "38;5;215", "38;5;180"];

/// The output of the demo; prints nothing with `--json`.
#[derive(Debug)]
pub(super) struct Screen {
    output: Output,
    columns: usize,
    /// Cancelled when stdout is closed.
    pub closed: CancellationToken,
    sessions: Vec<SessionView>,
    zero: Option<Timestamp>,
    runs: HashMap<String, RunView>,
    buffered: Vec<BufferedEvent>,
}

/// An event that waits until older events of other sessions have arrived.
#[derive(Debug)]
struct BufferedEvent {
    until: Instant,
    at: Timestamp,
    session: usize,
    event: v1::Event,
}

#[derive(Debug)]
struct SessionView {
    title: String,
    run_plans: Vec<RunPlanView>,
}

#[derive(Debug)]
struct RunPlanView {
    title: String,
    /// Display names of its calls.
    calls: Vec<&'static str>,
}

impl RunPlanView {
    fn new(run_plan: &RunPlan) -> Self {
        Self {
            title: run_plan.title(),
            calls: run_plan.calls.iter().map(|call| call.name.unwrap_or(call.tool)).collect(),
        }
    }
}

/// The display state of a run.
#[derive(Debug, Default)]
struct RunView {
    number: usize,
    started: Option<Timestamp>,
    /// Its calls in the order of their start events, which is that of the scenario.
    calls: Vec<String>,
    output_summary: String,
}

impl Screen {
    pub(super) fn new(output: Output, plans: &[SessionPlan]) -> Self {
        let sessions = plans.iter().map(|plan| SessionView {
            title: plan.title(),
            run_plans: plan.runs.iter().map(RunPlanView::new).collect(),
        });
        // The table library knows the width of the terminal.
        let columns = comfy_table::Table::new().width().map_or(DEFAULT_COLUMNS, usize::from);
        Self {
            output,
            columns,
            closed: CancellationToken::new(),
            sessions: sessions.collect(),
            zero: None,
            runs: HashMap::new(),
            buffered: Vec::new(),
        }
    }

    pub(super) fn line(&self, text: &str) {
        if self.output.json || self.closed.is_cancelled() {
            return;
        }
        if writeln!(io::stdout().lock(), "{text}").is_err() {
            self.closed.cancel();
        }
    }

    pub(super) fn heading(&self, text: &str) {
        self.line("");
        self.line(&self.bold(text));
    }

    /// Writes text, wrapped to the width.
    pub(super) fn paragraph(&self, text: &str) {
        for line in wrap(text, self.columns) {
            self.line(&line);
        }
    }

    pub(super) fn bold(&self, text: &str) -> String {
        self.output.out.paint(Style::Bold, text)
    }

    pub(super) fn dim(&self, text: &str) -> String {
        self.output.out.paint(Style::Dim, text)
    }

    fn paint(&self, tone: Tone, text: &str) -> String {
        let out = self.output.out;
        match tone {
            Tone::Plain => text.to_owned(),
            Tone::Dim => out.paint(Style::Dim, text),
            Tone::Failed => out.paint(Style::Bad, text),
            Tone::Cancelled => out.paint(Style::Warn, text),
            Tone::Session(_) if !out.color => text.to_owned(),
            Tone::Session(session) => {
                format!("\x1b[{}m{text}\x1b[0m", SESSION_COLORS[session % SESSION_COLORS.len()])
            }
        }
    }

    fn print_line(&self, line: &Line) {
        let painted: String = line.iter().map(|(text, tone)| self.paint(*tone, text)).collect();
        self.line(painted.trim_end());
    }

    /// Buffers an event for a moment. The streams of sessions are independent, so older events of other sessions may still arrive.
    pub(super) fn buffer(&mut self, session: usize, event: v1::Event, now: Instant) {
        let Some(at) = at(&event) else { return };
        self.buffered.push(BufferedEvent { until: now + REORDER_WINDOW, at, session, event });
    }

    /// When the next buffered event is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.buffered.iter().map(|event| event.until).min()
    }

    /// Shows the events that are due and all older ones.
    pub(super) fn show_due(&mut self, now: Instant) {
        self.show_up_to(self.buffered.iter().filter(|event| event.until <= now).map(|event| event.at).max());
    }

    /// Shows all buffered events.
    pub(super) fn show_all(&mut self) {
        self.show_up_to(self.buffered.iter().map(|event| event.at).max());
    }

    fn show_up_to(&mut self, last: Option<Timestamp>) {
        self.buffered.sort_by_key(|event| event.at);
        let count = self.buffered.partition_point(|event| Some(event.at) <= last);
        for BufferedEvent { at, session, event, .. } in self.buffered.drain(..count).collect::<Vec<_>>() {
            self.show_event(session, &event, at);
        }
    }

    /// Shows an event, if its type is of interest.
    fn show_event(&mut self, session: usize, event: &v1::Event, at: Timestamp) {
        let data = data(event);
        let run = self.runs.entry(event.run_id.clone()).or_default();
        let run_plan = self.sessions[session].run_plans.get(run.number.wrapping_sub(1));
        let calls = run_plan.map(|run_plan| run_plan.calls.as_slice()).unwrap_or_default();
        let text = |name: &str| data[name].as_str().unwrap_or_default();
        let (sign, tone, text) = match event.r#type.as_str() {
            "run.queued" => {
                run.number =
                    data["seq"].as_u64().and_then(|seq| usize::try_from(seq).ok()).unwrap_or_default();
                self.zero = Some(self.zero.map_or(at, |zero| zero.min(at)));
                return;
            }
            "run.started" => {
                run.started = Some(at);
                ('▶', Tone::Plain, run_plan.map(|run_plan| run_plan.title.clone()).unwrap_or_default())
            }
            "run.cancel_requested" => ('!', Tone::Cancelled, format!("cancel requested: {}", text("reason"))),
            "tool.started" => return run.calls.push(text("call").to_owned()),
            "tool.completed" | "tool.failed" => {
                run.output_summary = output_summary(&data);
                if calls.len() == 1 {
                    return;
                }
                let index = run.calls.iter().position(|call| call == text("id"));
                let name = index.and_then(|index| calls.get(index)).copied().unwrap_or(text("tool"));
                let took = Duration::from_millis(data["duration_ms"].as_u64().unwrap_or_default());
                ('·', Tone::Dim, with(&format!("{name} {}", elapsed(took)), &run.output_summary))
            }
            _ => {
                let Some(state) = terminal_state(event) else { return };
                let took = run.started.and_then(|started| (at - started).to_std().ok()).unwrap_or_default();
                let output_summary = if calls.len() == 1 { run.output_summary.as_str() } else { "" };
                end_line(state, took, output_summary, text("message"))
            }
        };
        let number = run.number;
        self.event_line(session, number, at, (sign, tone), &text);
    }

    fn event_line(
        &self,
        session: usize,
        number: usize,
        at: Timestamp,
        (sign, tone): (char, Tone),
        text: &str,
    ) {
        let since = self.zero.and_then(|zero| (at - zero).to_std().ok()).unwrap_or_default();
        let offset = format!("{}.{:02}s", since.as_secs(), since.subsec_millis() / 10);
        let titles =
            self.sessions.iter().map(|session| session.title.chars().count()).max().unwrap_or_default();
        let title = format!("{:titles$}", self.sessions[session].title);
        let used = offset.chars().count() + titles + 8;
        self.line(&format!(
            "{}  {}  {} {}",
            self.dim(&offset),
            self.paint(Tone::Session(session), &title),
            self.paint(tone, &format!("{sign} {number}")),
            self.paint(tone, &fit(text, self.columns.saturating_sub(used))),
        ));
    }

    pub(super) fn print_timeline(&self, rows: &[Row]) {
        for line in timeline::draw(rows, self.columns) {
            self.print_line(&line);
        }
        self.line("");
        for line in timeline::legend(self.columns) {
            self.print_line(&line);
        }
    }

    pub(super) fn check(&self, check: &Check) {
        let out = self.output.out;
        let mark = if check.passed() { out.paint(Style::Good, "✓") } else { out.paint(Style::Bad, "✗") };
        for (index, part) in wrap(&check.text, self.columns.saturating_sub(2)).iter().enumerate() {
            let lead = if index == 0 { mark.as_str() } else { " " };
            self.line(&format!("{lead} {part}"));
        }
        for problem in &check.problems {
            self.line(&format!("    {}", out.paint(Style::Bad, &one_line(problem))));
        }
    }

    /// Prints the overall result.
    pub(super) fn verdict(&self, good: bool, text: &str) {
        let style = if good { Style::Good } else { Style::Bad };
        self.line("");
        for line in wrap(text, self.columns) {
            self.line(&self.output.out.paint(style, &line));
        }
    }
}

fn end_line(state: RunState, took: Duration, output_summary: &str, why: &str) -> (char, Tone, String) {
    let took = elapsed(took);
    match state {
        RunState::Completed => ('✓', Tone::Plain, with(&took, output_summary)),
        RunState::Cancelled => ('⊘', Tone::Cancelled, format!("cancelled after {took}")),
        _ => ('✗', Tone::Failed, why.to_owned()),
    }
}

fn with(text: &str, output_summary: &str) -> String {
    if output_summary.is_empty() { text.to_owned() } else { format!("{text}  {output_summary}") }
}

/// The first line of a call's output, quoted, or the code of its failure.
fn output_summary(outcome: &Value) -> String {
    if let Some(code) = outcome["failure"]["code"].as_str() {
        return one_line(code);
    }
    let output = &outcome["output"];
    let text = output.as_str().or(output["stdout"].as_str()).or(output["content"].as_str());
    let first = text.unwrap_or_default().lines().next().unwrap_or_default();
    // Remove the line number that `Read` adds.
    match one_line(first.rsplit('\t').next().unwrap_or_default()).trim() {
        "" => String::new(),
        text => format!("“{text}”"),
    }
}

/// Cuts text to a number of columns.
fn fit(text: &str, columns: usize) -> String {
    let text = one_line(text);
    if text.chars().count() <= columns {
        return text;
    }
    let kept: String = text.chars().take(columns.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Wraps text at spaces. Words that are too long are not split.
fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{recording::testing::event, scenario::plans},
        *,
    };
    use crate::output::ColorChoice;

    #[test]
    fn text_is_cut_and_wrapped_to_the_width() {
        assert_eq!(fit("echo compiled", 80), "echo compiled");
        assert_eq!(fit("echo compiled", 6), "echo…");
        assert_eq!(fit("forged\n✓ line", 80), "forged ✓ line");
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable", 4), ["unbreakable"]);
    }

    #[test]
    fn events_of_different_sessions_are_shown_in_time_order() {
        let mut screen = Screen::new(Output::new(true, ColorChoice::Never), &plans());
        let start = Instant::now();
        for (session, millis, arrived) in
            [(0, 20, start), (1, 10, start + REORDER_WINDOW / 2), (2, 30, start + REORDER_WINDOW / 2)]
        {
            screen.buffer(session, event(1, "", "session.created", millis, &Value::Null), arrived);
        }
        let buffered_sessions =
            |screen: &Screen| screen.buffered.iter().map(|event| event.session).collect::<Vec<_>>();
        screen.show_due(start + REORDER_WINDOW / 2);
        assert_eq!(buffered_sessions(&screen), [1, 0, 2]);
        assert_eq!(screen.next_due(), Some(start + REORDER_WINDOW));
        screen.show_due(start + REORDER_WINDOW);
        assert_eq!(buffered_sessions(&screen), [2], "the older event is shown together with the due one");
        screen.show_all();
        assert_eq!(screen.next_due(), None);
    }

    #[test]
    fn call_output_is_summarized_by_its_first_line() {
        assert_eq!(
            output_summary(&json!({ "output": { "stdout": "packaged\nmore\n", "exit_code": 0 } })),
            "“packaged”"
        );
        assert_eq!(output_summary(&json!({ "output": { "content": "     1\tone herd\n" } })), "“one herd”");
        assert_eq!(output_summary(&json!({ "output": "page 1" })), "“page 1”");
        assert_eq!(output_summary(&json!({ "failure": { "code": "file_not_found" } })), "file_not_found");
        assert_eq!(output_summary(&json!({ "output": { "bytes_written": 3 } })), "");
    }
}
