//! Human-readable lines for runs, tool outcomes and events.

use std::time::Duration;

use remuda_domain::{RunState, Timestamp};
use remuda_proto::{convert, v1};
use serde_json::Value;

use super::json;
use crate::output::{Sink, Style, count, counted, elapsed, local_time, one_line, sanitize};

const GOOD: &str = "✓";
const BAD: &str = "✗";
const DOT: &str = "●";
const STEP: &str = "▸";

/// The colour of a state.
pub(super) fn state_style(state: &str) -> Option<Style> {
    match state {
        "completed" | "active" | "open" | "approved" => Some(Style::Good),
        "failed" | "timed_out" | "gone" | "denied" | "disabled" => Some(Style::Bad),
        "cancelled" | "interrupted" | "parked" | "draining" | "pending" => Some(Style::Warn),
        "running" | "executing" => Some(Style::Accent),
        "queued" | "skipped" | "closed" | "expired" | "withdrawn" | "ended" => Some(Style::Dim),
        _ => None,
    }
}

fn mark(sink: Sink, status: &str) -> String {
    match status {
        "completed" => sink.paint(Style::Good, GOOD),
        "failed" | "timed_out" => sink.paint(Style::Bad, BAD),
        "cancelled" | "interrupted" => sink.paint(Style::Warn, BAD),
        "skipped" | "queued" => sink.paint(Style::Dim, STEP),
        _ => sink.paint(Style::Accent, DOT),
    }
}

/// How long a run executed, or has been executing.
pub(super) fn run_duration(run: &v1::Run) -> Option<Duration> {
    let started = run.started_at.as_ref().and_then(convert::from_timestamp)?;
    let finished =
        run.finished_at.as_ref().and_then(convert::from_timestamp).unwrap_or_else(chrono::Utc::now);
    (finished - started).to_std().ok()
}

/// The state of a run and its duration.
pub(super) fn run_state(sink: Sink, run: &v1::Run) -> String {
    let state = json::state_name(run.state);
    let mut line = format!("{} {}", mark(sink, state), paint_state(sink, state));
    if let Some(duration) = run_duration(run) {
        let word = if run.finished_at.is_some() { "in" } else { "for" };
        line.push_str(&format!(" {word} {}", elapsed(duration)));
    }
    line
}

/// The failure of a run.
pub(super) fn run_failure(run: &v1::Run) -> Option<String> {
    run.failure.as_ref().map(|failure| failure_text(&failure.code, &failure.message))
}

/// A run in one line: state, duration and id; a second line shows the failure.
pub(super) fn run_line(sink: Sink, run: &v1::Run) -> String {
    let mut line = format!("{}  {}", run_state(sink, run), sink.paint(Style::Dim, &one_line(&run.id)));
    if !run.stop_reason.is_empty() {
        line.push_str(&format!("\n  the agent was stopped: {}", one_line(&run.stop_reason)));
    }
    if let Some(failure) = run_failure(run) {
        line.push_str(&format!("\n  {failure}"));
    }
    line
}

pub(super) fn paint_state(sink: Sink, state: &str) -> String {
    let text = state.replace('_', " ");
    match state_style(state) {
        Some(style) => sink.paint(style, &text),
        None => text,
    }
}

fn failure_text(code: &str, message: &str) -> String {
    match (one_line(code), one_line(message)) {
        (code, message) if message.is_empty() => code,
        (code, message) => format!("{code}: {message}"),
    }
}

/// A tool outcome (in its JSON form) in one line, without the output.
pub(super) fn outcome_line(sink: Sink, outcome: &Value) -> String {
    let text = |name: &str| outcome[name].as_str().unwrap_or_default();
    let status = text("status");
    let mut line = format!("{} {}", mark(sink, status), sink.paint(Style::Bold, &one_line(text("tool"))));
    if status != "completed" {
        line.push_str(&format!(" {}", paint_state(sink, &one_line(status))));
    }
    if status != "skipped" {
        let duration = Duration::from_millis(outcome["duration_ms"].as_u64().unwrap_or_default());
        line.push_str(&sink.paint(Style::Dim, &format!(" {}", elapsed(duration))));
    }
    if let Some(code) = outcome["output"]["exit_code"].as_i64().filter(|code| *code != 0) {
        line.push_str(&sink.paint(Style::Warn, &format!(" exit code {code}")));
    }
    if let Some(signal) = outcome["output"]["signal"].as_i64() {
        line.push_str(&sink.paint(Style::Warn, &format!(" killed by signal {signal}")));
    }
    if let Value::Object(failure) = &outcome["failure"] {
        let part = |name: &str| failure.get(name).and_then(Value::as_str).unwrap_or_default();
        line.push_str(&format!("  {}", failure_text(part("code"), part("message"))));
    }
    line
}

/// The output of a tool, sanitized for a terminal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ToolOutput {
    pub out: String,
    pub err: String,
}

/// Reads the output of a tool: well-known text fields as text, anything else as JSON.
pub(super) fn tool_output(output: &Value) -> ToolOutput {
    let fields = match output {
        Value::Null => return ToolOutput::default(),
        Value::String(text) => return ToolOutput { out: sanitize(text), err: String::new() },
        Value::Object(fields) if fields.is_empty() => return ToolOutput::default(),
        Value::Object(fields) => fields,
        other => return ToolOutput { out: sanitize(&other.to_string()), err: String::new() },
    };
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    let out = ["stdout", "content", "text", "diff"].into_iter().find_map(text);
    let err = text("stderr");
    if out.is_none() && err.is_none() {
        return ToolOutput { out: sanitize(&output.to_string()), err: String::new() };
    }
    let mut err = sanitize(err.unwrap_or_default());
    let cut = fields.iter().any(|(name, value)| name.contains("truncated") && is_set(value));
    if cut {
        if !err.is_empty() && !err.ends_with('\n') {
            err.push('\n');
        }
        err.push_str("… the output exceeded the limit and was cut");
    }
    ToolOutput { out: sanitize(out.unwrap_or_default()), err }
}

fn is_set(value: &Value) -> bool {
    value.as_bool().unwrap_or_else(|| value.as_u64().is_some_and(|bytes| bytes > 0))
}

/// The time from a failed attempt to call a model to the next one.
fn until_retry(event: &v1::Event, data: &Value) -> Option<Duration> {
    let next_at: Timestamp = data["next_at"].as_str()?.parse().ok()?;
    let failed_at = convert::from_timestamp(event.at.as_ref()?)?;
    (next_at - failed_at).to_std().ok()
}

/// An event in one line.
pub(super) fn event_line(sink: Sink, event: &v1::Event) -> String {
    let data = json::embedded(&event.data);
    let text = |name: &str| one_line(data[name].as_str().unwrap_or_default());
    let with = |text: &str, detail: String| match detail.as_str() {
        "" => text.to_owned(),
        detail => format!("{text}: {detail}"),
    };
    let dot = sink.paint(Style::Accent, DOT);
    let step = sink.paint(Style::Dim, STEP);
    match event.r#type.as_str() {
        "session.created" => format!("{dot} session created"),
        "session.updated" => format!("{dot} session updated"),
        "session.closed" => format!("{dot} session closed"),
        "run.queued" => format!("{step} queued as number {} of the session", data["seq"]),
        "run.started" => {
            let attempt = data["attempt"].as_u64().filter(|attempt| *attempt > 1);
            let attempt = attempt.map(|attempt| format!(", attempt {attempt}")).unwrap_or_default();
            format!("{dot} started on {}{attempt}", text("worker"))
        }
        "run.handed_over" => format!("{dot} handed over by {}", text("worker")),
        "run.attempt_lost" => {
            let lost = match data["attempts"].as_u64() {
                Some(attempts) if attempts > 1 => {
                    format!(", the {} attempt that was lost", ordinal(attempts))
                }
                _ => String::new(),
            };
            format!("{} {} was lost{lost}", mark(sink, "interrupted"), text("worker"))
        }
        "run.parked" => format!("{} {}", mark(sink, "parked"), with("parked, waits for", text("reason"))),
        "run.resumed" => format!("{dot} resumed"),
        "run.cancel_requested" => format!("{dot} {}", with("cancel requested", text("reason"))),
        "run.cancel_delivered" => format!("{dot} cancel delivered to {}", text("worker")),
        "run.stopped" => format!("{dot} stopped: no process is left"),
        "tool.started" => format!("{step} {} started", sink.paint(Style::Bold, &text("tool"))),
        "tool.completed" | "tool.failed" => outcome_line(sink, &data),
        "sandbox.ready" => {
            let text =
                format!("in the {} sandbox {}, image {}", text("backend"), text("sandbox_id"), text("image"));
            format!("{step} {}", text.trim_end())
        }
        "hook.notice" => format!("{dot} {}", with(&format!("hook {}", text("hook")), text("message"))),
        "model.started" => {
            format!("{step} {} calls {}", sink.paint(Style::Bold, &text("agent")), text("model"))
        }
        "model.completed" => format!("{} {}", mark(sink, "completed"), model_response_text(&data)),
        "model.retrying" => {
            let part = |name: &str| data["failure"][name].as_str().unwrap_or_default();
            let failure = failure_text(part("code"), part("message"));
            let failed = format!("attempt {} failed: {failure}", data["attempt"]);
            let next = until_retry(event, &data).map(|wait| format!("; next attempt in {}", elapsed(wait)));
            format!("{} {}: {failed}{}", mark(sink, "parked"), text("model"), next.unwrap_or_default())
        }
        "model.failed" => {
            let part = |name: &str| data["failure"][name].as_str().unwrap_or_default();
            let failure = failure_text(part("code"), part("message"));
            format!("{} {}", mark(sink, "failed"), with("the model call failed", failure))
        }
        "message.completed" if data["role"] == "tool" => {
            let results = data["parts"].as_array().map_or(0, Vec::len);
            format!("{step} the agent receives {}", counted(results, "result"))
        }
        "message.completed" => {
            let by = match (text("role").as_str(), text("agent")) {
                ("assistant", agent) if !agent.is_empty() => agent,
                (role, _) => role.to_owned(),
            };
            format!("{dot} message from {}", sink.paint(Style::Bold, &by))
        }
        name => match remuda_client::terminal_state(event) {
            Some(RunState::Cancelled) => {
                format!(
                    "{} {}",
                    mark(sink, "cancelled"),
                    with(&paint_state(sink, "cancelled"), text("reason"))
                )
            }
            Some(state) => {
                let failure = failure_text(&text("code"), &text("message"));
                format!(
                    "{} {}",
                    mark(sink, state.as_str()),
                    with(&paint_state(sink, state.as_str()), failure)
                )
            }
            // A newer server may send types we do not know.
            None => format!("{dot} {} {}", one_line(name), one_line(&event.data)),
        },
    }
}

/// The duration and the tokens of a model call.
fn model_response_text(data: &Value) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let took = elapsed(Duration::from_millis(number(&data["duration_ms"])));
    let usage = &data["usage"];
    let (input, output) = (number(&usage["input_tokens"]), number(&usage["output_tokens"]));
    let mut text =
        format!("the model answered in {took} · {} tokens in, {} out", count(input), count(output));
    match data["finish"].as_str() {
        None | Some("stop" | "tool_calls") => {}
        Some(finish) => text.push_str(&format!(" · stopped by {}", one_line(finish).replace('_', " "))),
    }
    match number(&data["attempts"]) {
        0 | 1 => {}
        attempts => text.push_str(&format!(" · {attempts} attempts")),
    }
    text
}

/// `2nd`, `3rd`, `11th`.
fn ordinal(number: u64) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// The prefix of an event: time, cursor and the last characters of the run's id, which are the part that differs.
pub(super) fn event_prefix(sink: Sink, event: &v1::Event) -> String {
    let at = event.at.as_ref().and_then(convert::from_timestamp).map(local_time).unwrap_or_default();
    let run = one_line(&event.run_id);
    let short: String = run.chars().skip(run.chars().count().saturating_sub(6)).collect();
    sink.paint(Style::Dim, &format!("{at:12} {:>5} {short:6}", event.cursor))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::{ColorChoice, Output};

    fn plain() -> Sink {
        Output::new(false, ColorChoice::Never).out
    }

    fn event(name: &str, data: &Value) -> String {
        let event = v1::Event { r#type: name.into(), data: data.to_string(), ..Default::default() };
        event_line(plain(), &event)
    }

    #[test]
    fn events_have_readable_lines() {
        assert_eq!(
            event("run.queued", &json!({ "seq": 3, "kind": "tools" })),
            "▸ queued as number 3 of the session"
        );
        assert_eq!(
            event("run.started", &json!({ "attempt": 2, "worker": "wrk_1" })),
            "● started on wrk_1, attempt 2"
        );
        assert_eq!(
            event("run.failed", &json!({ "code": "tool_failed", "message": "m" })),
            "✗ failed: tool_failed: m"
        );
        assert_eq!(event("run.completed", &Value::Null), "✓ completed");
        let lost = |attempts| event("run.attempt_lost", &json!({ "attempts": attempts, "worker": "wrk_1" }));
        assert_eq!(lost(1), "✗ wrk_1 was lost");
        assert_eq!(lost(2), "✗ wrk_1 was lost, the 2nd attempt that was lost");
        assert_eq!(event("run.handed_over", &json!({ "worker": "wrk_1" })), "● handed over by wrk_1");
        assert_eq!(event("run.parked", &json!({ "reason": "approval" })), "● parked, waits for: approval");
        assert_eq!(event("run.resumed", &Value::Null), "● resumed");
        assert_eq!(
            event("run.cancel_delivered", &json!({ "worker": "wrk_1" })),
            "● cancel delivered to wrk_1"
        );
        assert_eq!(event("run.stopped", &Value::Null), "● stopped: no process is left");
        assert_eq!(event("run.cancelled", &json!({ "reason": "" })), "✗ cancelled");
        let started = json!({ "message": "msg_1", "agent": "build", "model": "platform/m" });
        assert_eq!(event("model.started", &started), "▸ build calls platform/m");
        let response = json!({ "finish": "length", "usage": { "input_tokens": 1200, "output_tokens": 7 },
            "attempts": 2, "duration_ms": 1500 });
        assert_eq!(
            event("model.completed", &response),
            "✓ the model answered in 1.5 s · 1.2k tokens in, 7 out · stopped by length · 2 attempts"
        );
        let failed = json!({ "failure": { "code": "model_overloaded", "message": "later" } });
        assert_eq!(event("model.failed", &failed), "✗ the model call failed: model_overloaded: later");
        let retrying = json!({ "model": "platform/m", "attempt": 2,
            "failure": { "code": "model_overloaded", "message": "later" }, "next_at": "1970-01-01T00:00:12Z" });
        let retrying = v1::Event {
            r#type: "model.retrying".into(),
            data: retrying.to_string(),
            at: Some(Default::default()),
            ..Default::default()
        };
        assert_eq!(
            event_line(plain(), &retrying),
            "● platform/m: attempt 2 failed: model_overloaded: later; next attempt in 12.0 s"
        );
        let message = json!({ "role": "assistant", "agent": "build", "parts": [] });
        assert_eq!(event("message.completed", &message), "● message from build");
        assert_eq!(event("brand.new", &json!({ "a": 1 })), r#"● brand.new {"a":1}"#);
        let outcome = json!({ "tool": "Bash", "status": "failed", "duration_ms": 12, "output": { "exit_code": 3 },
            "failure": { "code": "tool_failed", "message": "no" } });
        assert_eq!(event("tool.failed", &outcome), "✗ Bash failed 12 ms exit code 3  tool_failed: no");
    }

    #[test]
    fn control_characters_in_event_data_are_removed() {
        let line = event("run.cancel_requested", &json!({ "reason": "x\n✓ completed\u{1b}[2J" }));
        assert_eq!(line, "● cancel requested: x ✓ completed");
    }

    #[test]
    fn well_known_output_fields_are_shown_as_text() {
        let both = tool_output(
            &json!({ "stdout": "hi\u{1b}[0m\n", "stderr": "e", "exit_code": 0, "stdout_truncated": true }),
        );
        assert_eq!(both.out, "hi\n");
        assert_eq!(both.err, "e\n… the output exceeded the limit and was cut");
        assert_eq!(tool_output(&json!({ "content": "file" })).out, "file");
        assert_eq!(tool_output(&json!({ "written": 3 })).out, r#"{"written":3}"#);
        assert_eq!(tool_output(&json!("text")).out, "text");
        assert_eq!(tool_output(&Value::Null), ToolOutput::default());
        assert_eq!(tool_output(&json!({})), ToolOutput::default());
        assert_eq!(
            tool_output(&json!({ "stdout": "", "stderr": "", "truncated": false })),
            ToolOutput::default()
        );
    }
}
