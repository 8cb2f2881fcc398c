//! One or two lines for events about agents, approvals, budgets and compaction.

use remuda_domain::money::dollars;
use remuda_proto::v1;
use serde_json::Value;

use super::{Line, headline};
use crate::output::{Style, count, one_line};

/// Lines about an event that is neither a message nor a tool call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Notice {
    pub(crate) lines: Vec<Line>,
    /// The run is blocked until someone acts.
    pub(crate) action_needed: bool,
}

impl Notice {
    fn info(style: Style, text: String) -> Self {
        Self { lines: vec![(Some(style), text)], action_needed: false }
    }

    fn action_needed(text: String, command: &str) -> Self {
        Self { lines: vec![(Some(Style::Warn), text), (None, format!("    {command}"))], action_needed: true }
    }
}

/// The notice for an event, if the event has one. `payer` is the run whose budget a parked run waits for.
pub(crate) fn notice(event: &v1::Event, data: &Value, payer: &str) -> Option<Notice> {
    let text = |name: &str| one_line(data[name].as_str().unwrap_or_default());
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    match event.r#type.as_str() {
        "agent.switched" => Some(Notice::info(Style::Accent, format!("⇄ {} → {}", text("from"), text("to")))),
        "agent.stopped" => Some(Notice::info(
            Style::Warn,
            format!(
                "● {} was stopped after {} steps ({})",
                text("agent"),
                number(&data["steps"]),
                text("reason")
            ),
        )),
        "approval.requested" => {
            let request = &data["request"];
            let tool = one_line(request["tool"].as_str().unwrap_or_default());
            let call = headline(&tool, &request["arguments"]);
            let id = text("approval");
            Some(Notice::action_needed(
                format!("● waits for approval: {tool}  {call}").trim_end().to_owned(),
                &format!("remuda approvals approve {id}   or: remuda approvals deny {id} --message '…'"),
            ))
        }
        "approval.decided" => Some(decided(&text("state"), &text("by"), &text("message"))),
        "run.parked" if data["reason"] == "budget" => Some(Notice::action_needed(
            "● waits for budget".to_owned(),
            &format!(
                "remuda budget set {0} --tokens N   or: --cost DOLLARS   (see: remuda explain {0})",
                one_line(payer)
            ),
        )),
        "context.compacted" => {
            let (before, after) = (number(&data["tokens_before"]), number(&data["tokens_after"]));
            let text = format!("↻ context compacted: {} → {} tokens", count(before), count(after));
            Some(Notice::info(Style::Dim, text))
        }
        "budget.changed" => {
            let limit = &data["budget"]["limit"];
            let tokens = limit["tokens"].as_u64().map(|tokens| format!("{} tokens", count(tokens)));
            let micros = limit["micros"].as_u64().map(dollars);
            let limits: Vec<String> = [tokens, micros].into_iter().flatten().collect();
            let limits = if limits.is_empty() { "no limit".to_owned() } else { limits.join(", ") };
            Some(Notice::info(Style::Dim, format!("● the budget is now {limits}")))
        }
        _ => None,
    }
}

fn decided(state: &str, by: &str, message: &str) -> Notice {
    let (style, mut text) = match state {
        "approved" => (Style::Good, "✓ approved".to_owned()),
        "denied" => (Style::Bad, "✗ denied".to_owned()),
        "expired" => (Style::Warn, "● approval expired".to_owned()),
        state => (Style::Dim, format!("● {state}")),
    };
    if !by.is_empty() {
        text.push_str(&format!(" by {by}"));
    }
    if !message.is_empty() {
        text.push_str(&format!(": {message}"));
    }
    Notice::info(style, text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(name: &str, data: &Value) -> Option<Vec<String>> {
        let event = v1::Event { r#type: name.into(), ..Default::default() };
        notice(&event, data, "run_1").map(|notice| notice.lines.into_iter().map(|(_, text)| text).collect())
    }

    #[test]
    fn blocked_runs_name_the_command_that_unblocks_them() {
        let request = json!({ "tool": "Bash", "arguments": { "command": "rm -rf build\u{1b}[2J\n" } });
        let shown = lines("approval.requested", &json!({ "approval": "apr_1", "request": request })).unwrap();
        assert_eq!(shown[0], "● waits for approval: Bash  rm -rf build");
        assert!(shown[1].trim_start().starts_with("remuda approvals approve apr_1 "), "{shown:?}");
        let shown = lines("run.parked", &json!({ "reason": "budget" })).unwrap();
        assert!(shown[1].contains("remuda budget set run_1 --tokens"), "{shown:?}");
        assert_eq!(lines("run.parked", &json!({ "reason": "children" })), None);
    }

    #[test]
    fn decision_shows_who_decided_and_why() {
        let decided = |state: &str, by: &str, message: &str| {
            let data = json!({ "approval": "apr_1", "state": state, "by": by, "message": message });
            lines("approval.decided", &data).unwrap().remove(0)
        };
        assert_eq!(decided("approved", "anna", ""), "✓ approved by anna");
        assert_eq!(decided("denied", "anna", "use\nmake"), "✗ denied by anna: use make");
        assert_eq!(decided("expired", "", ""), "● approval expired");
        assert_eq!(decided("withdrawn", "", ""), "● withdrawn");
    }

    #[test]
    fn switch_compaction_and_budget_change_take_one_line() {
        assert_eq!(
            lines("agent.switched", &json!({ "from": "plan", "to": "build" })).unwrap(),
            ["⇄ plan → build"]
        );
        let data = json!({ "tokens_before": 120_000, "tokens_after": 8000 });
        assert_eq!(lines("context.compacted", &data).unwrap(), ["↻ context compacted: 120.0k → 8.0k tokens"]);
        let limit = json!({ "tokens": 1000, "micros": 2_500_000 });
        let changed = lines("budget.changed", &json!({ "budget": { "limit": limit } })).unwrap();
        assert_eq!(changed, ["● the budget is now 1.0k tokens, $2.50"]);
        assert_eq!(lines("tool.started", &Value::Null), None);
    }
}
