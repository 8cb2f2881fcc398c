//! The result of a tool call in a few lines.

use std::time::Duration;

use serde_json::Value;

use super::{Line, headline::shorten};
use crate::{
    client::render,
    output::{Style, counted, elapsed, one_line, sanitize},
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
    let status = outcome["status"].as_str().unwrap_or_default();
    let (mut style, mut parts) = match status {
        "completed" => summary(tool, output),
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
    lines.extend(body(tool, output, status == "completed", length));
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

/// Style and text of the first line for a completed call.
fn summary(tool: &str, output: &Value) -> (Option<Style>, Vec<String>) {
    let text = |name: &str| output[name].as_str().map(one_line);
    let number = |name: &str| output[name].as_u64();
    let items = |name: &str| output[name].as_array().map(Vec::len);
    let many = |count: Option<u64>, what: &str| {
        count.map(|count| counted(usize::try_from(count).unwrap_or(usize::MAX), what))
    };
    let more = output["truncated"].as_bool().unwrap_or_default().then(|| "cut".to_owned());
    let parts: Vec<Option<String>> = match tool {
        "Bash" | "BashOutput" | "KillBash" => return exit(output),
        "Read" if text("kind").as_deref() == Some("image") => {
            vec![text("media_type"), many(number("bytes"), "byte")]
        }
        "Read" => vec![many(number("lines"), "line"), more],
        "Write" => {
            let verb = if output["created"].as_bool().unwrap_or_default() { "created" } else { "written" };
            vec![Some(verb.to_owned()), many(number("bytes_written"), "byte")]
        }
        "Edit" => vec![many(number("replacements"), "replacement")],
        "Glob" => vec![many(number("total"), "file"), more],
        "Grep" => {
            let lines = many(number("lines"), "line");
            let files = items("files").or_else(|| items("counts")).map(|count| counted(count, "file"));
            vec![lines, files, more]
        }
        "WebFetch" => {
            vec![number("status").map(|status| status.to_string()), text("title"), text("redirect_to")]
        }
        "SubAgent" => {
            let state = text("state").filter(|state| state != "completed");
            vec![text("agent"), state, text("task_id")]
        }
        "AgentSwitch" => vec![text("agent").map(|agent| format!("{agent} now leads the session"))],
        "WebSearch" => vec![items("results").map(|count| counted(count, "result"))],
        _ => Vec::new(),
    };
    (None, parts.into_iter().flatten().filter(|word| !word.is_empty()).collect())
}

fn exit(output: &Value) -> (Option<Style>, Vec<String>) {
    if let Some(signal) = output["signal"].as_i64() {
        return (Some(Style::Warn), vec![format!("killed by signal {signal}")]);
    }
    if output["out_of_memory"].as_bool().unwrap_or_default() {
        return (Some(Style::Warn), vec!["killed: out of memory".to_owned()]);
    }
    match output["exit_code"].as_i64() {
        Some(0) => (None, vec!["exit code 0".to_owned()]),
        Some(code) => (Some(Style::Warn), vec![format!("exit code {code}")]),
        None => {
            let word = |name: &str| output[name].as_str().map(one_line);
            (None, [word("status"), word("task_id")].into_iter().flatten().collect())
        }
    }
}

/// The lines below the summary.
fn body(tool: &str, output: &Value, completed: bool, length: Length) -> Vec<Line> {
    let plain = |text: &str| text.lines().map(|line| (None, line.to_owned())).collect::<Vec<Line>>();
    let list = |name: &str, item: &dyn Fn(&Value) -> String| {
        let items = output[name].as_array().into_iter().flatten();
        items.map(|value| (None, one_line(&item(value)))).collect::<Vec<Line>>()
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let field = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let (lines, limit) = match tool {
        "Edit" if output["diff"].is_string() => (diff(&text(&output["diff"])), DIFF_LINES),
        "TodoWrite" if output["todos"].is_array() => (todos(output), usize::MAX),
        "Glob" if output["files"].is_array() => (list("files", &text), OUTPUT_LINES),
        "Grep" if output["files"].is_array() => (list("files", &text), OUTPUT_LINES),
        "Grep" if output["counts"].is_array() => {
            (list("counts", &|value| format!("{}: {}", field(value, "path"), value["count"])), OUTPUT_LINES)
        }
        "WebSearch" if output["results"].is_array() => {
            let hit = |value: &Value| format!("{}  {}", field(value, "title"), field(value, "url"));
            (list("results", &hit), OUTPUT_LINES)
        }
        "SubAgent" if output["result"].is_string() => {
            (plain(&sanitize(output["result"].as_str().unwrap_or_default())), OUTPUT_LINES)
        }
        "SubAgent" | "AgentSwitch" if completed => return Vec::new(),
        // Only the agent needs the content of files, pages and skills.
        "Read" | "WebFetch" | "Skill" if completed && length == Length::Short => return Vec::new(),
        "Read" if output["kind"] == "image" => return Vec::new(),
        "Write" if completed => return Vec::new(),
        _ => {
            let printed = render::tool_output(output);
            let mut lines = plain(&printed.out);
            lines.extend(printed.err.lines().map(|line| (Some(Style::Warn), line.to_owned())));
            (lines, OUTPUT_LINES)
        }
    };
    bounded(lines, limit, length)
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

fn todos(output: &Value) -> Vec<Line> {
    let todo = |todo: &Value| {
        let text = one_line(todo["content"].as_str().unwrap_or_default());
        match todo["status"].as_str() {
            Some("completed") => (Some(Style::Dim), format!("☒ {text}")),
            Some("in_progress") => (Some(Style::Bold), format!("▸ {text}")),
            _ => (None, format!("☐ {text}")),
        }
    };
    output["todos"].as_array().into_iter().flatten().map(todo).collect()
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
