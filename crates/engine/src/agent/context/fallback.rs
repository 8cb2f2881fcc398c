//! A summary without a model: poor, but always there.

use remuda_domain::message::{Part, Role, text_of};
use serde_json::Value;

use super::{
    cut::Cut,
    excerpt::{excerpt, within},
    summary::earlier,
    tokens,
};
use crate::agent::transcript::Outgoing;

/// Characters of a line of it.
const LINE: usize = 200;
/// The arguments that say best what a call is about, the best first.
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

/// Tells what was said and done, from the words that are there: what the user said, by first and last lines, and which tools were
/// called for what.
pub(in crate::agent) fn fallback(cut: &Cut) -> String {
    let head = "No model could sum this up, so here is only what was asked and what was done.";
    let earlier = earlier(&cut.to_sum_up).map(|text| within(&text, cut.allowed / 2));
    let earlier = earlier.filter(|text| !text.is_empty()).map(|text| format!("Before that:\n{text}"));
    let mut blocks: Vec<String> = std::iter::once(head.to_owned()).chain(earlier).collect();
    let used: u64 = blocks.iter().map(|block| tokens::text(block) + 1).sum();
    let lines: Vec<String> = cut.to_sum_up.iter().flat_map(lines).collect();
    blocks.push(some(&lines, cut.allowed.saturating_sub(used)));
    within(blocks.join("\n\n").trim(), cut.allowed)
}

/// The first and the last lines within so many tokens; the newest say more about what is to be done.
fn some(lines: &[String], room: u64) -> String {
    let cost = |line: &String| tokens::text(line) + 1;
    if lines.iter().map(cost).sum::<u64>() <= room {
        return lines.join("\n");
    }
    let room = room.saturating_sub(16);
    let count = |lines: &mut dyn Iterator<Item = &String>, room: u64| {
        let mut used = 0;
        lines
            .take_while(|line| {
                used += cost(line);
                used <= room
            })
            .count()
    };
    let first = count(&mut lines.iter(), room / 3);
    let last = lines.len() - count(&mut lines[first..].iter().rev(), room - room / 3);
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
            let about = main_argument(&call.arguments).map(|about| one_line(about, LINE));
            Some(format!("- {} {}", call.tool, about.unwrap_or_default()).trim_end().to_owned())
        }
        _ => None,
    }));
    lines
}

/// The first and the last line.
fn ends(text: &str) -> Option<String> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = one_line(lines.next()?, LINE);
    Some(lines.next_back().map_or(first.clone(), |last| format!("{first} … {}", one_line(last, LINE))))
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
        tests::{gauge, talk},
    };

    #[test]
    fn it_tells_what_was_asked_and_done() {
        let mut talk = talk();
        let through = talk.user("older").said[0].id;
        talk.summary("there was a plan", through);
        talk.user("build a boat\n\nof wood\nand quickly\n");
        let arguments = json!({ "content": "…", "file_path": "boat.rs" });
        talk.call("Write", arguments, CallStatus::Completed, json!("x".repeat(9000)));
        talk.call("Bash", json!({ "command": "cargo\n  test" }), CallStatus::Completed, json!(""));
        talk.call("Other", json!({ "n": 1, "what": "that" }), CallStatus::Completed, json!(""));
        talk.call("None", json!({}), CallStatus::Completed, json!("")).user("thanks");
        let cut = cut(&talk.outgoing(), &gauge(5000), true).unwrap();
        let text = fallback(&cut);
        let expected =
            "Before that:\nthere was a plan\n\n- user: build a boat … and quickly\n- Write boat.rs\n";
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("older") && !text.contains("xxx"));
    }

    #[test]
    fn it_is_bounded_and_keeps_both_ends() {
        let mut talk = talk();
        talk.user("begin");
        for index in 0..500 {
            let arguments = json!({ "command": format!("command {index} {}", "x".repeat(999)) });
            talk.call("Bash", arguments, CallStatus::Completed, json!("done"));
        }
        let cut = cut(&talk.outgoing(), &gauge(6000), false).unwrap();
        let text = fallback(&cut);
        assert!(tokens::text(&text) <= cut.allowed);
        assert!(text.contains("- user: begin") && text.contains("lines left out"));
        assert!(text.contains("command 490 "), "{text}");
    }
}
