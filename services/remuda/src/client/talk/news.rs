//! What agents do together, and what they wait for, in a line or two.

use remuda_domain::money::dollars;
use remuda_proto::v1;
use serde_json::Value;

use super::{Line, headline};
use crate::output::{Style, count, one_line};

/// Something to tell besides words and calls.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct News {
    pub(crate) lines: Vec<Line>,
    /// Nothing goes on before somebody does something.
    pub(crate) waits: bool,
}

impl News {
    fn told(style: Style, text: String) -> Self {
        Self { lines: vec![(Some(style), text)], waits: false }
    }

    fn waits(what: String, todo: &str) -> Self {
        Self { lines: vec![(Some(Style::Warn), what), (None, format!("    {todo}"))], waits: true }
    }
}

/// What an event tells, if it is of this kind. A run that waits for a budget waits for that of `payer`.
pub(crate) fn news(event: &v1::Event, data: &Value, payer: &str) -> Option<News> {
    let text = |name: &str| one_line(data[name].as_str().unwrap_or_default());
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    match event.r#type.as_str() {
        "agent.switched" => Some(News::told(Style::Accent, format!("⇄ {} → {}", text("from"), text("to")))),
        "approval.requested" => {
            let request = &data["request"];
            let tool = one_line(request["tool"].as_str().unwrap_or_default());
            let call = headline(&tool, &request["arguments"]);
            let id = text("approval");
            Some(News::waits(
                format!("● waits for approval: {tool}  {call}").trim_end().to_owned(),
                &format!("remuda approvals approve {id}   or: remuda approvals deny {id} --message '…'"),
            ))
        }
        "approval.decided" => Some(decided(&text("state"), &text("by"), &text("message"))),
        "run.parked" if data["reason"] == "budget" => Some(News::waits(
            "● waits for budget".to_owned(),
            &format!(
                "remuda budget set {0} --tokens N   or: --cost DOLLARS   (see: remuda explain {0})",
                one_line(payer)
            ),
        )),
        "context.compacted" => {
            let (before, after) = (number(&data["tokens_before"]), number(&data["tokens_after"]));
            let text = format!("↻ what was said is summed up: {} → {} tokens", count(before), count(after));
            Some(News::told(Style::Dim, text))
        }
        "budget.changed" => {
            let limit = &data["budget"]["limit"];
            let tokens = limit["tokens"].as_u64().map(|tokens| format!("{} tokens", count(tokens)));
            let micros = limit["micros"].as_u64().map(dollars);
            let limits: Vec<String> = [tokens, micros].into_iter().flatten().collect();
            let limits = if limits.is_empty() { "no limit".to_owned() } else { limits.join(", ") };
            Some(News::told(Style::Dim, format!("● the budget is now {limits}")))
        }
        _ => None,
    }
}

fn decided(state: &str, by: &str, message: &str) -> News {
    let (style, mut text) = match state {
        "approved" => (Style::Good, "✓ approved".to_owned()),
        "denied" => (Style::Bad, "✗ denied".to_owned()),
        "expired" => (Style::Warn, "● nobody decided in time".to_owned()),
        state => (Style::Dim, format!("● {state}")),
    };
    if !by.is_empty() {
        text.push_str(&format!(" by {by}"));
    }
    if !message.is_empty() {
        text.push_str(&format!(": {message}"));
    }
    News::told(style, text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(name: &str, data: &Value) -> Option<Vec<String>> {
        let event = v1::Event { r#type: name.into(), ..Default::default() };
        news(&event, data, "run_1").map(|news| news.lines.into_iter().map(|(_, text)| text).collect())
    }

    #[test]
    fn waits_say_what_to_do() {
        let request = json!({ "tool": "Bash", "arguments": { "command": "rm -rf build\u{1b}[2J\n" } });
        let lines = told("approval.requested", &json!({ "approval": "apr_1", "request": request })).unwrap();
        assert_eq!(lines[0], "● waits for approval: Bash  rm -rf build");
        assert!(lines[1].trim_start().starts_with("remuda approvals approve apr_1 "), "{lines:?}");
        let lines = told("run.parked", &json!({ "reason": "budget" })).unwrap();
        assert!(lines[1].contains("remuda budget set run_1 --tokens"), "{lines:?}");
        assert_eq!(told("run.parked", &json!({ "reason": "children" })), None);
    }

    #[test]
    fn decisions_say_who_and_why() {
        let told = |state: &str, by: &str, message: &str| {
            let data = json!({ "approval": "apr_1", "state": state, "by": by, "message": message });
            told("approval.decided", &data).unwrap().remove(0)
        };
        assert_eq!(told("approved", "anna", ""), "✓ approved by anna");
        assert_eq!(told("denied", "anna", "use\nmake"), "✗ denied by anna: use make");
        assert_eq!(told("expired", "", ""), "● nobody decided in time");
        assert_eq!(told("withdrawn", "", ""), "● withdrawn");
    }

    #[test]
    fn changes_take_one_line() {
        assert_eq!(
            told("agent.switched", &json!({ "from": "plan", "to": "build" })).unwrap(),
            ["⇄ plan → build"]
        );
        let data = json!({ "tokens_before": 120_000, "tokens_after": 8000 });
        assert_eq!(
            told("context.compacted", &data).unwrap(),
            ["↻ what was said is summed up: 120.0k → 8.0k tokens"]
        );
        let limit = json!({ "tokens": 1000, "micros": 2_500_000 });
        let changed = told("budget.changed", &json!({ "budget": { "limit": limit } })).unwrap();
        assert_eq!(changed, ["● the budget is now 1.0k tokens, $2.50"]);
        assert_eq!(told("tool.started", &Value::Null), None);
    }
}
