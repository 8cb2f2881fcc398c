//! The mechanical summary, used when no model can summarize.

use remuda_domain::message::{Part, Role, text_of};
use serde_json::Value;

use super::{
    cut::Cut,
    excerpt::{excerpt, within_tokens},
    summary::earlier_summary,
    tokens,
};
use crate::agent::transcript::Outgoing;

/// Maximum characters of a line.
const MAX_LINE: usize = 200;
/// Arguments that describe a call best, in order of preference.
const MAIN_ARGUMENTS: [&str; 12] = [
    "file_path",
    "command",
    "pattern",
    "url",
    "query",
    "skill",
    "description",
    "agent",
    "subagent_type",
    "prompt",
    "path",
    "task_id",
];

/// Lists what was asked and done: the first and last line of each user message, and each tool call with its main
/// argument.
pub(in crate::agent) fn fallback(cut: &Cut) -> String {
    let head = "No model could sum this up, so here is only what was asked and what was done.";
    let earlier_summary =
        earlier_summary(&cut.to_summarize).map(|text| within_tokens(&text, cut.summary_limit / 2));
    let earlier_summary =
        earlier_summary.filter(|text| !text.is_empty()).map(|text| format!("Before that:\n{text}"));
    let mut blocks: Vec<String> = std::iter::once(head.to_owned()).chain(earlier_summary).collect();
    let used: u64 = blocks.iter().map(|block| tokens::text(block) + 1).sum();
    let lines: Vec<String> = cut.to_summarize.iter().flat_map(lines).collect();
    blocks.push(first_and_last(&lines, cut.summary_limit.saturating_sub(used)));
    within_tokens(blocks.join("\n\n").trim(), cut.summary_limit)
}

/// The first and last lines within so many tokens. Two thirds go to the last lines, which say more about what is left
/// to do.
fn first_and_last(lines: &[String], limit: u64) -> String {
    let cost = |line: &String| tokens::text(line) + 1;
    if lines.iter().map(cost).sum::<u64>() <= limit {
        return lines.join("\n");
    }
    let limit = limit.saturating_sub(16);
    let count = |lines: &mut dyn Iterator<Item = &String>, limit: u64| {
        let mut used = 0;
        lines
            .take_while(|line| {
                used += cost(line);
                used <= limit
            })
            .count()
    };
    let first = count(&mut lines.iter(), limit / 3);
    let last = lines.len() - count(&mut lines[first..].iter().rev(), limit - limit / 3);
    let gap = format!("[… {} lines left out …]", last - first);
    [&lines[..first], &[gap], &lines[last..]].concat().join("\n")
}

fn lines(message: &Outgoing) -> Vec<String> {
    if message.is_summary() {
        return Vec::new();
    }
    let mut lines = Vec::new();
    if message.role == Role::User {
        lines.extend(ends(&text_of(&message.parts)).map(|text| format!("- user: {text}")));
    }
    lines.extend(message.parts.iter().filter_map(|part| match part {
        Part::ToolUse { call } => {
            let about = main_argument(&call.arguments).map(|about| one_line(about, MAX_LINE));
            Some(format!("- {} {}", call.tool, about.unwrap_or_default()).trim_end().to_owned())
        }
        _ => None,
    }));
    lines
}

/// The first and the last line of a text.
fn ends(text: &str) -> Option<String> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = one_line(lines.next()?, MAX_LINE);
    Some(lines.next_back().map_or(first.clone(), |last| format!("{first} … {}", one_line(last, MAX_LINE))))
}

fn main_argument(arguments: &Value) -> Option<&str> {
    let fields = arguments.as_object()?;
    let named = MAIN_ARGUMENTS.iter().find_map(|name| fields.get(*name).and_then(Value::as_str));
    named.or_else(|| fields.values().find_map(Value::as_str))
}

fn one_line(text: &str, limit: usize) -> String {
    excerpt(text.trim(), limit).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod unit {
    use remuda_domain::tool::CallStatus;
    use serde_json::json;

    use super::*;
    use crate::agent::context::{
        cut,
        tests::{conversation, estimator},
    };

    #[test]
    fn fallback_lists_user_messages_and_calls() {
        let mut conversation = conversation();
        let through = conversation.user("older").transcript[0].id;
        conversation.summary("there was a plan", through);
        conversation.user("build a boat\n\nof wood\nand quickly\n");
        let arguments = json!({ "content": "…", "file_path": "boat.rs" });
        conversation.call("Write", arguments, CallStatus::Completed, json!("x".repeat(9000)));
        conversation.call("Bash", json!({ "command": "cargo\n  test" }), CallStatus::Completed, json!(""));
        conversation.call("Other", json!({ "n": 1, "what": "that" }), CallStatus::Completed, json!(""));
        conversation.call("None", json!({}), CallStatus::Completed, json!("")).user("thanks");
        let cut = cut(&conversation.outgoing(), &estimator(5000), true).unwrap();
        let text = fallback(&cut);
        let expected =
            "Before that:\nthere was a plan\n\n- user: build a boat … and quickly\n- Write boat.rs\n";
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("older") && !text.contains("xxx"));
    }

    #[test]
    fn fallback_is_bounded_and_keeps_first_and_last_lines() {
        let mut conversation = conversation();
        conversation.user("begin");
        for index in 0..500 {
            let arguments = json!({ "command": format!("command {index} {}", "x".repeat(999)) });
            conversation.call("Bash", arguments, CallStatus::Completed, json!("done"));
        }
        let cut = cut(&conversation.outgoing(), &estimator(6000), false).unwrap();
        let text = fallback(&cut);
        assert!(tokens::text(&text) <= cut.summary_limit);
        assert!(text.contains("- user: begin") && text.contains("lines left out"));
        assert!(text.contains("command 490 "), "{text}");
    }
}
