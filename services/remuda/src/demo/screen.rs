//! Everything the audience sees.
//!
//! A reader that goes away (`| head`) closes the screen instead of ending the program: the stack has to be taken down
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
    script::{Act, Scene},
    timeline::{self, Line, Row, Tone},
};
use crate::output::{Output, Style, elapsed, one_line};

/// How wide a text is that no terminal shows.
const PAGE_COLUMNS: usize = 80;
/// Longer than a worker holds back the start of a run that may be over soon.
const HOLD: Duration = Duration::from_millis(60);
/// Colours of sessions: none of them means good or bad elsewhere.
const SESSION_COLORS: [&str; 5] = ["38;5;39", "38;5;80", "38;5;141", "38;5;215", "38;5;180"];

/// Where the demo is shown; nowhere with `--json`.
#[derive(Debug)]
pub(super) struct Screen {
    output: Output,
    columns: usize,
    /// Cancelled when nobody looks any more.
    pub closed: CancellationToken,
    sessions: Vec<SessionView>,
    zero: Option<Timestamp>,
    runs: HashMap<String, RunView>,
    held: Vec<Held>,
}

/// An event that waits for its place between those of other sessions.
#[derive(Debug)]
struct Held {
    until: Instant,
    at: Timestamp,
    session: usize,
    event: v1::Event,
}

#[derive(Debug)]
struct SessionView {
    title: String,
    acts: Vec<ActView>,
}

#[derive(Debug)]
struct ActView {
    title: String,
    /// What its calls are called.
    calls: Vec<&'static str>,
}

impl ActView {
    fn new(act: &Act) -> Self {
        Self {
            title: act.title(),
            calls: act.calls.iter().map(|call| call.name.unwrap_or(call.tool)).collect(),
        }
    }
}

/// What was shown of a run.
#[derive(Debug, Default)]
struct RunView {
    number: usize,
    started: Option<Timestamp>,
    /// Its calls in the order in which they are announced, which is that of the script.
    calls: Vec<String>,
    printed: String,
}

impl Screen {
    pub(super) fn new(output: Output, scenes: &[Scene]) -> Self {
        let sessions = scenes.iter().map(|scene| SessionView {
            title: scene.title(),
            acts: scene.runs.iter().map(ActView::new).collect(),
        });
        // Knows the width of the terminal, if stdout is one.
        let columns = comfy_table::Table::new().width().map_or(PAGE_COLUMNS, usize::from);
        Self {
            output,
            columns,
            closed: CancellationToken::new(),
            sessions: sessions.collect(),
            zero: None,
            runs: HashMap::new(),
            held: Vec::new(),
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

    /// Writes text of any length.
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

    fn toned(&self, line: &Line) {
        let painted: String = line.iter().map(|(text, tone)| self.paint(*tone, text)).collect();
        self.line(painted.trim_end());
    }

    /// Takes an event. The streams of sessions know nothing of each other, so it is held for a moment in which older ones
    /// of other sessions may come.
    pub(super) fn take(&mut self, session: usize, event: v1::Event, now: Instant) {
        let Some(at) = at(&event) else { return };
        self.held.push(Held { until: now + HOLD, at, session, event });
    }

    /// When there will be something to show, if nothing else comes.
    pub(super) fn due(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.until).min()
    }

    /// Shows what was held for long enough, and what is older than that.
    pub(super) fn show_due(&mut self, now: Instant) {
        self.show_up_to(self.held.iter().filter(|held| held.until <= now).map(|held| held.at).max());
    }

    /// Shows everything that is held.
    pub(super) fn show_all(&mut self) {
        self.show_up_to(self.held.iter().map(|held| held.at).max());
    }

    fn show_up_to(&mut self, last: Option<Timestamp>) {
        self.held.sort_by_key(|held| held.at);
        let count = self.held.partition_point(|held| Some(held.at) <= last);
        for Held { at, session, event, .. } in self.held.drain(..count).collect::<Vec<_>>() {
            self.event(session, &event, at);
        }
    }

    /// Tells of an event, if it is one that people want to see.
    fn event(&mut self, session: usize, event: &v1::Event, at: Timestamp) {
        let data = data(event);
        let run = self.runs.entry(event.run_id.clone()).or_default();
        let act = self.sessions[session].acts.get(run.number.wrapping_sub(1));
        let calls = act.map(|act| act.calls.as_slice()).unwrap_or_default();
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
                ('▶', Tone::Plain, act.map(|act| act.title.clone()).unwrap_or_default())
            }
            "run.cancel_requested" => ('!', Tone::Cancelled, format!("asked to stop: {}", text("reason"))),
            "tool.started" => return run.calls.push(text("call").to_owned()),
            "tool.completed" | "tool.failed" => {
                run.printed = printed(&data);
                if calls.len() == 1 {
                    return;
                }
                let index = run.calls.iter().position(|call| call == text("id"));
                let name = index.and_then(|index| calls.get(index)).copied().unwrap_or(text("tool"));
                let took = Duration::from_millis(data["duration_ms"].as_u64().unwrap_or_default());
                ('·', Tone::Dim, with(&format!("{name} {}", elapsed(took)), &run.printed))
            }
            _ => {
                let Some(state) = terminal_state(event) else { return };
                let took = run.started.and_then(|started| (at - started).to_std().ok()).unwrap_or_default();
                let printed = if calls.len() == 1 { run.printed.as_str() } else { "" };
                ending(state, took, printed, text("message"))
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

    pub(super) fn picture(&self, rows: &[Row]) {
        for line in timeline::draw(rows, self.columns) {
            self.toned(&line);
        }
        self.line("");
        for line in timeline::legend(self.columns) {
            self.toned(&line);
        }
    }

    pub(super) fn check(&self, check: &Check) {
        let out = self.output.out;
        let mark = if check.held() { out.paint(Style::Good, "✓") } else { out.paint(Style::Bad, "✗") };
        for (index, part) in wrap(&check.text, self.columns.saturating_sub(2)).iter().enumerate() {
            let lead = if index == 0 { mark.as_str() } else { " " };
            self.line(&format!("{lead} {part}"));
        }
        for problem in &check.problems {
            self.line(&format!("    {}", out.paint(Style::Bad, &one_line(problem))));
        }
    }

    /// The last word, good or bad.
    pub(super) fn verdict(&self, good: bool, text: &str) {
        let style = if good { Style::Good } else { Style::Bad };
        self.line("");
        for line in wrap(text, self.columns) {
            self.line(&self.output.out.paint(style, &line));
        }
    }
}

fn ending(state: RunState, took: Duration, printed: &str, why: &str) -> (char, Tone, String) {
    let took = elapsed(took);
    match state {
        RunState::Completed => ('✓', Tone::Plain, with(&took, printed)),
        RunState::Cancelled => ('⊘', Tone::Cancelled, format!("cancelled after {took}")),
        _ => ('✗', Tone::Failed, why.to_owned()),
    }
}

fn with(text: &str, printed: &str) -> String {
    if printed.is_empty() { text.to_owned() } else { format!("{text}  {printed}") }
}

/// The first line of what a call answered, quoted, or the code of its failure.
fn printed(outcome: &Value) -> String {
    if let Some(code) = outcome["failure"]["code"].as_str() {
        return one_line(code);
    }
    let output = &outcome["output"];
    let text = output.as_str().or(output["stdout"].as_str()).or(output["content"].as_str());
    let first = text.unwrap_or_default().lines().next().unwrap_or_default();
    // `Read` numbers its lines.
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

/// Breaks text into lines at its spaces. A word that is too long stays whole.
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
        super::{recording::testing::event, script::scenes},
        *,
    };
    use crate::output::ColorChoice;

    #[test]
    fn text_is_cut_and_broken_to_the_width() {
        assert_eq!(fit("echo compiled", 80), "echo compiled");
        assert_eq!(fit("echo compiled", 6), "echo…");
        assert_eq!(fit("forged\n✓ line", 80), "forged ✓ line");
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable", 4), ["unbreakable"]);
    }

    #[test]
    fn events_of_different_sessions_are_shown_in_the_order_of_time() {
        let mut screen = Screen::new(Output::new(true, ColorChoice::Never), &scenes());
        let start = Instant::now();
        for (session, millis, arrived) in
            [(0, 20, start), (1, 10, start + HOLD / 2), (2, 30, start + HOLD / 2)]
        {
            screen.take(session, event(1, "", "session.created", millis, &Value::Null), arrived);
        }
        let left = |screen: &Screen| screen.held.iter().map(|held| held.session).collect::<Vec<_>>();
        screen.show_due(start + HOLD / 2);
        assert_eq!(left(&screen), [1, 0, 2]);
        assert_eq!(screen.due(), Some(start + HOLD));
        screen.show_due(start + HOLD);
        assert_eq!(left(&screen), [2], "the older one went with the one that was due");
        screen.show_all();
        assert_eq!(screen.due(), None);
    }

    #[test]
    fn what_a_call_printed_is_shown_in_a_few_words() {
        assert_eq!(
            printed(&json!({ "output": { "stdout": "packaged\nmore\n", "exit_code": 0 } })),
            "“packaged”"
        );
        assert_eq!(printed(&json!({ "output": { "content": "     1\tone herd\n" } })), "“one herd”");
        assert_eq!(printed(&json!({ "output": "page 1" })), "“page 1”");
        assert_eq!(printed(&json!({ "failure": { "code": "file_not_found" } })), "file_not_found");
        assert_eq!(printed(&json!({ "output": { "bytes_written": 3 } })), "");
    }
}
