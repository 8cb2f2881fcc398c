//! The result of a tool call in a few lines.

use std::time::Duration;

use remuda_domain::tool::{Emphasis, ResultBody};
use remuda_node::tool_catalog;
use serde_json::Value;

use super::{Line, headline::shorten};
use crate::{
    client::render,
    output::{Style, elapsed, one_line, sanitize},
};

/// How much of a result is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// The first lines, each cut if it is long.
    Short,
    Full,
}

/// Limits of lines shown. A diff gets more, because it says more.
const OUTPUT_LINES: usize = 6;
const DIFF_LINES: usize = 24;
pub(super) const LINE_CHARS: usize = 160;
/// Shorter durations are not shown.
const MIN_SHOWN_DURATION: Duration = Duration::from_millis(500);

/// The result of a call (an outcome in its JSON form). The first line is a summary.
pub(crate) fn result_lines(outcome: &Value, length: Length) -> Vec<Line> {
    let (output, tool) = (&outcome["output"], outcome["tool"].as_str().unwrap_or_default());
    let shown = tool_catalog().describe(tool).result(output);
    let status = outcome["status"].as_str().unwrap_or_default();
    let completed = status == "completed";
    let (mut style, mut parts) = match status {
        "completed" => (shown.warns.then_some(Style::Warn), shown.summary),
        "cancelled" | "interrupted" | "skipped" => (Some(Style::Warn), failure(status, outcome)),
        _ => (Some(Style::Bad), failure(status, outcome)),
    };
    let took = Duration::from_millis(outcome["duration_ms"].as_u64().unwrap_or_default());
    if took >= MIN_SHOWN_DURATION {
        parts.push(elapsed(took));
    }
    if parts.is_empty() {
        (style, parts) = (Some(Style::Dim), vec!["done".to_owned()]);
    }
    let mut lines = vec![(style.or(Some(Style::Dim)), parts.join(" · "))];
    lines.extend(body(shown.body, output, completed, length));
    lines
}

fn failure(status: &str, outcome: &Value) -> Vec<String> {
    let text = |name: &str| one_line(outcome["failure"][name].as_str().unwrap_or_default());
    let (code, message) = (text("code"), text("message"));
    let status = one_line(status).replace('_', " ");
    let parts = match (message.as_str(), code.as_str()) {
        ("", "") => status,
        ("", code) => format!("{status}: {code}"),
        (message, "") => format!("{status}: {message}"),
        (message, code) => format!("{status}: {message} [{code}]"),
    };
    vec![parts]
}

/// The lines below the summary. A call that did not complete shows whatever output it had.
fn body(body: ResultBody, output: &Value, completed: bool, length: Length) -> Vec<Line> {
    let plain = |text: &str| text.lines().map(|line| (None, line.to_owned())).collect::<Vec<Line>>();
    let (lines, limit) = match body {
        ResultBody::Nothing if completed => return Vec::new(),
        ResultBody::OutputIfFull if completed && length == Length::Short => return Vec::new(),
        ResultBody::Lines(lines) => (lines.into_iter().map(|line| (None, line)).collect(), OUTPUT_LINES),
        ResultBody::Diff(text) => (diff(&text), DIFF_LINES),
        ResultBody::Checklist(items) => (items.into_iter().map(emphasized).collect(), usize::MAX),
        ResultBody::Output | ResultBody::OutputIfFull | ResultBody::Nothing => {
            let printed = render::tool_output(output);
            let mut lines = plain(&printed.out);
            lines.extend(printed.err.lines().map(|line| (Some(Style::Warn), line.to_owned())));
            (lines, OUTPUT_LINES)
        }
    };
    bounded(lines, limit, length)
}

fn emphasized((emphasis, text): (Emphasis, String)) -> Line {
    let style = match emphasis {
        Emphasis::Strong => Some(Style::Bold),
        Emphasis::Normal => None,
        Emphasis::Weak => Some(Style::Dim),
    };
    (style, text)
}

fn diff(text: &str) -> Vec<Line> {
    let style = |line: &str| match line.bytes().next() {
        Some(b'+') => Some(Style::Good),
        Some(b'-') => Some(Style::Bad),
        Some(b'@') => Some(Style::Accent),
        _ => Some(Style::Dim),
    };
    sanitize(text).lines().map(|line| (style(line), line.to_owned())).collect()
}

/// The first lines, and the number of lines left out.
pub(super) fn bounded(mut lines: Vec<Line>, limit: usize, length: Length) -> Vec<Line> {
    if length == Length::Full {
        return lines;
    }
    // The note takes a line itself, so it never replaces a single line.
    if lines.len() > limit.saturating_add(1) {
        let rest = lines.len() - limit;
        lines.truncate(limit);
        lines.push((Some(Style::Dim), format!("… {rest} more lines")));
    }
    lines.into_iter().map(|(style, text)| (style, shorten(&text, LINE_CHARS))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(tool: &str, output: &Value) -> Vec<String> {
        let outcome = json!({ "tool": tool, "status": "completed", "duration_ms": 12, "output": output });
        result_lines(&outcome, Length::Short).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn result_begins_with_a_summary() {
        let bash = json!({ "exit_code": 1, "stdout": "a\nb\n", "stderr": "oops\n" });
        assert_eq!(lines("Bash", &bash), ["exit code 1", "a", "b", "oops"]);
        assert_eq!(lines("Read", &json!({ "content": "     1\tx\n", "lines": 1 })), ["1 line"]);
        assert_eq!(lines("Write", &json!({ "bytes_written": 12, "created": true })), ["created · 12 bytes"]);
        let edit = json!({ "replacements": 1, "created": false, "diff": "@@ -1 +1 @@\n-a\n+b\n" });
        assert_eq!(lines("Edit", &edit), ["1 replacement", "@@ -1 +1 @@", "-a", "+b"]);
        let glob = json!({ "total": 2, "truncated": false, "files": ["a", "b"] });
        assert_eq!(lines("Glob", &glob), ["2 files", "a", "b"]);
        let todos = json!({ "todos": [{ "content": "one", "status": "completed" }, { "content": "two" }] });
        assert_eq!(lines("TodoWrite", &todos), ["done", "☒ one", "☐ two"]);
        let helped =
            json!({ "task_id": "ses_1", "agent": "review", "state": "completed", "result": "All good.\n" });
        assert_eq!(lines("SubAgent", &helped), ["review · ses_1", "All good."]);
        let begun = json!({ "task_id": "ses_1", "agent": "review", "state": "started", "note": "it comes" });
        assert_eq!(lines("SubAgent", &begun), ["review · started · ses_1"]);
        let switched = json!({ "agent": "build", "note": "you are this agent from here on" });
        assert_eq!(lines("AgentSwitch", &switched), ["build now leads the session"]);
        assert_eq!(lines("Skill", &json!("long text")), ["done"]);
        assert_eq!(lines("other", &json!("text")), ["done", "text"]);
        assert_eq!(lines("other", &Value::Null), ["done"]);
    }

    #[test]
    fn long_output_is_cut_unless_full_length_is_requested() {
        let many = (1..=50).map(|number| format!("{number}\n")).collect::<String>();
        let shown = lines("Bash", &json!({ "exit_code": 0, "stdout": many, "stderr": "" }));
        assert_eq!((shown.len(), shown[7].as_str()), (8, "… 44 more lines"));
        let outcome = json!({ "tool": "Bash", "status": "completed", "output": { "stdout": many } });
        assert_eq!(result_lines(&outcome, Length::Full).len(), 51);
    }

    #[test]
    fn failure_shows_message_and_code() {
        let failure = json!({ "code": "no_match", "message": "old_string is not\nin the file" });
        let outcome = json!({ "tool": "Edit", "status": "failed", "duration_ms": 3, "failure": failure });
        let lines = result_lines(&outcome, Length::Short);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].1, "failed: old_string is not in the file [no_match]");
        assert!(matches!(lines[0].0, Some(Style::Bad)));
        let slow = json!({ "tool": "Bash", "status": "timed_out", "duration_ms": 2500, "output": { "stdout": "so far" } });
        let lines: Vec<String> =
            result_lines(&slow, Length::Short).into_iter().map(|(_, text)| text).collect();
        assert_eq!(lines, ["timed out · 2.5 s", "so far"]);
    }

    #[test]
    fn control_sequences_in_output_are_removed() {
        let shown = lines("Bash", &json!({ "exit_code": 0, "stdout": "x\u{1b}]0;owned\u{7}y\u{1b}[2J\r\n" }));
        assert_eq!(shown, ["exit code 0", "xy"]);
    }
}
