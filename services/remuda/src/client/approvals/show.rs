//! One call, exactly as it would be made.

use remuda_proto::{convert, v1};
use serde_json::Value;

use super::expiry;
use crate::{
    client::{json, permissions::rule_words, render},
    output::{Output, Style, ago, exactly, one_line, sanitize},
};

pub(super) fn show(approval: &v1::Approval, output: Output) {
    let sink = output.out;
    let (id, state) = (one_line(&approval.id), render::paint_state(sink, &approval.state));
    sink.line(&format!("{}  {state}", sink.paint(Style::Bold, &id)));
    let field = |name: &str, value: &str| {
        if !value.is_empty() {
            sink.line(&format!("  {} {}", sink.paint(Style::Dim, &format!("{name:10}")), one_line(value)));
        }
    };
    let asked = approval.created_at.as_ref().and_then(convert::from_timestamp);
    field("agent", &approval.agent);
    field("why", &approval.why);
    field("asks about", &asked_about(approval));
    field("may decide", &deciders(approval));
    field("asked", &asked.map(|at| ago(at, chrono::Utc::now())).unwrap_or_default());
    field("expires", &expires(approval));
    field("run", &approval.run_id);
    field("session", &approval.session_id);
    field("hash", &approval.call_hash);
    call(approval, output);
    if let Some(decision) = &approval.decision {
        sink.line("");
        decided(decision, &approval.state, output);
    }
    if approval.state != "pending" {
        return;
    }
    sink.line("");
    for rule in &approval.always {
        field("--always", &format!("adds to the session: {}", rule_words(rule)));
    }
    output.note(&format!(
        "  approve:   remuda approvals approve {id}\n  deny:      remuda approvals deny {id} --message '…'"
    ));
}

/// The tool and its arguments. A command is a text; everything else is shown as the JSON it is.
pub(super) fn call(approval: &v1::Approval, output: Output) {
    let sink = output.out;
    let call = approval.call.clone().unwrap_or_default();
    let arguments = json::embedded(&call.arguments);
    sink.line("");
    sink.line(&sink.paint(Style::Bold, &one_line(&call.tool)));
    arguments_lines(&call.tool, &arguments).iter().for_each(|line| sink.line(&format!("  {line}")));
    if hides_something(&arguments) {
        let warning = "there are characters in it that a terminal does not show; exactly it is";
        sink.line(&format!("  {} {}", sink.paint(Style::Warn, "!"), sink.paint(Style::Warn, warning)));
        sink.line(&format!("  {}", exactly(&arguments)));
    }
}

fn arguments_lines(tool: &str, arguments: &Value) -> Vec<String> {
    let command = arguments["command"].as_str().filter(|_| tool == "Bash");
    let text = match command {
        // Whatever else there is (a time limit, a description) must not go unseen.
        Some(command) if arguments.as_object().is_some_and(|all| all.len() == 1) => command.to_owned(),
        Some(command) => {
            let mut others = arguments.clone();
            if let Value::Object(all) = &mut others {
                all.remove("command");
            }
            format!("{command}\n\nwith {others}")
        }
        None => serde_json::to_string_pretty(arguments).unwrap_or_default(),
    };
    sanitize(&text).lines().map(str::to_owned).collect()
}

/// Whether something would be lost on the way to a screen.
fn hides_something(arguments: &Value) -> bool {
    match arguments {
        Value::String(text) => sanitize(text) != *text,
        Value::Array(items) => items.iter().any(hides_something),
        Value::Object(fields) => {
            fields.iter().any(|(name, value)| sanitize(name) != *name || hides_something(value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn asked_about(approval: &v1::Approval) -> String {
    match approval.patterns.as_slice() {
        [] => approval.permission.clone(),
        patterns => format!("{}: {}", approval.permission, patterns.join(" | ")),
    }
}

fn deciders(approval: &v1::Approval) -> String {
    match approval.approvers.as_slice() {
        [] => "every key with the scope approve".to_owned(),
        names => names.join(", "),
    }
}

fn expires(approval: &v1::Approval) -> String {
    let at = approval.expires_at.as_ref().and_then(convert::from_timestamp);
    let left = expiry(at, &approval.state);
    match at {
        Some(at) if left.is_empty() => at.to_rfc3339(),
        Some(at) => {
            format!("{left} ({}); that nobody decides is no refusal", at.format("%Y-%m-%d %H:%M UTC"))
        }
        None => left,
    }
}

fn decided(decision: &v1::Decision, state: &str, output: Output) {
    let sink = output.out;
    let at = decision.at.as_ref().and_then(convert::from_timestamp);
    let at = at.map(|at| format!(", {}", ago(at, chrono::Utc::now()))).unwrap_or_default();
    sink.line(&format!("{} by {}{at}", render::paint_state(sink, state), one_line(&decision.by)));
    if decision.always {
        sink.line("  the session no longer asks about the like");
    }
    if !decision.message.is_empty() {
        sink.line(&format!("  told the model: {}", one_line(&decision.message)));
    }
    if !decision.arguments.is_empty() {
        sink.line(&format!("  with other arguments: {}", exactly(&json::embedded(&decision.arguments))));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn commands_are_texts_and_nothing_goes_unseen() {
        assert_eq!(arguments_lines("Bash", &json!({ "command": "a\nb" })), ["a", "b"]);
        let more = arguments_lines("Bash", &json!({ "command": "a", "timeout": 9 }));
        assert_eq!(more, ["a", "", "with {\"timeout\":9}"]);
        let other = arguments_lines("Write", &json!({ "file_path": "a", "content": "x\ny" }));
        assert_eq!(other, ["{", "  \"content\": \"x\\ny\",", "  \"file_path\": \"a\"", "}"]);
    }

    #[test]
    fn what_a_terminal_would_hide_is_noticed() {
        assert!(!hides_something(&json!({ "command": "echo 'hi'\n\tthere" })));
        for text in ["rm\u{1b}[8m -rf /", "a\rb", "\u{202e}x", "x\u{0}"] {
            assert!(hides_something(&json!({ "a": [{ "b": text }] })), "{text:?}");
        }
        assert!(hides_something(&json!({ "a\u{1b}": 1 })));
    }
}
