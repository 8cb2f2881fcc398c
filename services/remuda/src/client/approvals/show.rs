//! `remuda approvals show`: shows the exact call.

use remuda_proto::{convert, v1};
use serde_json::Value;

use super::expiry;
use crate::{
    client::{conversation::script_of, json, permissions::rule_text, render},
    output::{Output, Style, ago, json_text, one_line, sanitize},
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
    let requested = approval.created_at.as_ref().and_then(convert::from_timestamp);
    field("agent", &approval.agent);
    field("why", &approval.why);
    field("permission", &permission_and_patterns(approval));
    field("may decide", &deciders(approval));
    field("requested", &requested.map(|at| ago(at, chrono::Utc::now())).unwrap_or_default());
    field("expires", &expires(approval));
    field("run", &approval.run_id);
    field("session", &approval.session_id);
    field("hash", &approval.call_hash);
    call(approval, output);
    if let Some(decision) = &approval.decision {
        sink.line("");
        print_decision(decision, &approval.state, output);
    }
    if approval.state != "pending" {
        return;
    }
    sink.line("");
    for rule in &approval.always {
        field("--always", &format!("adds to the session: {}", rule_text(rule)));
    }
    output.note(&format!(
        "  approve:   remuda approvals approve {id}\n  deny:      remuda approvals deny {id} --message '…'"
    ));
}

/// Prints the tool and its arguments: a shell script as text, anything else as JSON.
pub(super) fn call(approval: &v1::Approval, output: Output) {
    let sink = output.out;
    let call = approval.call.clone().unwrap_or_default();
    let arguments = json::embedded(&call.arguments);
    sink.line("");
    sink.line(&sink.paint(Style::Bold, &one_line(&call.tool)));
    argument_lines(&call.tool, &arguments).iter().for_each(|line| sink.line(&format!("  {line}")));
    if has_hidden_characters(&arguments) {
        let warning = "the arguments contain characters that a terminal does not show; they are exactly";
        sink.line(&format!("  {} {}", sink.paint(Style::Warn, "!"), sink.paint(Style::Warn, warning)));
        sink.line(&format!("  {}", json_text(&arguments)));
    }
}

fn argument_lines(tool: &str, arguments: &Value) -> Vec<String> {
    let text = match script_of(tool, arguments) {
        // Further arguments (a time limit, a description) must be visible too.
        Some((_, script)) if arguments.as_object().is_some_and(|all| all.len() == 1) => script.to_owned(),
        Some((argument, script)) => {
            let mut others = arguments.clone();
            if let Value::Object(all) = &mut others {
                all.remove(argument);
            }
            format!("{script}\n\nwith {others}")
        }
        None => serde_json::to_string_pretty(arguments).unwrap_or_default(),
    };
    sanitize(&text).lines().map(str::to_owned).collect()
}

/// Whether a terminal would not show all characters.
fn has_hidden_characters(arguments: &Value) -> bool {
    match arguments {
        Value::String(text) => sanitize(text) != *text,
        Value::Array(items) => items.iter().any(has_hidden_characters),
        Value::Object(fields) => {
            fields.iter().any(|(name, value)| sanitize(name) != *name || has_hidden_characters(value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn permission_and_patterns(approval: &v1::Approval) -> String {
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
            format!("{left} ({}); an expired approval is not a denial", at.format("%Y-%m-%d %H:%M UTC"))
        }
        None => left,
    }
}

fn print_decision(decision: &v1::Decision, state: &str, output: Output) {
    let sink = output.out;
    let at = decision.at.as_ref().and_then(convert::from_timestamp);
    let at = at.map(|at| format!(", {}", ago(at, chrono::Utc::now()))).unwrap_or_default();
    sink.line(&format!("{} by {}{at}", render::paint_state(sink, state), one_line(&decision.by)));
    if decision.always {
        sink.line("  similar calls of the session are allowed from now on");
    }
    if !decision.message.is_empty() {
        sink.line(&format!("  message for the model: {}", one_line(&decision.message)));
    }
    if !decision.arguments.is_empty() {
        sink.line(&format!("  with other arguments: {}", json_text(&json::embedded(&decision.arguments))));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bash_commands_are_text_with_all_other_arguments() {
        assert_eq!(argument_lines("Bash", &json!({ "command": "a\nb" })), ["a", "b"]);
        let more = argument_lines("Bash", &json!({ "command": "a", "timeout": 9 }));
        assert_eq!(more, ["a", "", "with {\"timeout\":9}"]);
        let other = argument_lines("Write", &json!({ "file_path": "a", "content": "x\ny" }));
        assert_eq!(other, ["{", "  \"content\": \"x\\ny\",", "  \"file_path\": \"a\"", "}"]);
    }

    #[test]
    fn hidden_characters_are_detected() {
        assert!(!has_hidden_characters(&json!({ "command": "echo 'hi'\n\tthere" })));
        for text in ["rm\u{1b}[8m -rf /", "a\rb", "\u{202e}x", "x\u{0}"] {
            assert!(has_hidden_characters(&json!({ "a": [{ "b": text }] })), "{text:?}");
        }
        assert!(has_hidden_characters(&json!({ "a\u{1b}": 1 })));
    }
}
