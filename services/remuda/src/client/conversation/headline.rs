//! A one-line summary of a tool call.

use serde_json::Value;

use crate::output::{counted, one_line};

/// Longer headlines would wrap on most screens.
const MAX_CHARS: usize = 100;

/// The argument that matters most: the command of Bash, the file of Edit. Empty if the call has no arguments.
pub(crate) fn headline(tool: &str, arguments: &Value) -> String {
    let text = |name: &str| arguments[name].as_str().map(one_line).filter(|text| !text.is_empty());
    let shown = match tool {
        "Bash" => text("command"),
        "Read" | "Write" | "Edit" => text("file_path"),
        "Glob" | "Grep" => text("pattern").map(|pattern| match text("path") {
            Some(path) => format!("{pattern} in {path}"),
            None => pattern,
        }),
        "WebFetch" => text("url"),
        "WebSearch" => text("query"),
        "Skill" => text("skill").or_else(|| text("name")),
        "BashOutput" | "KillBash" => text("task_id"),
        "SubAgent" => match (text("subagent_type"), text("description")) {
            (Some(agent), Some(what)) => Some(format!("{agent}: {what}")),
            (agent, what) => what.or(agent),
        },
        "AgentSwitch" => text("to"),
        "TodoWrite" => arguments["todos"].as_array().map(|todos| counted(todos.len(), "task")),
        _ => None,
    };
    shorten(&shown.unwrap_or_else(|| all_arguments(arguments)), MAX_CHARS)
}

/// All arguments as `key=value`, for tools without a rule of their own.
fn all_arguments(arguments: &Value) -> String {
    let Value::Object(fields) = arguments else { return String::new() };
    let word = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{}={}", one_line(name), one_line(text)),
        value => format!("{}={}", one_line(name), one_line(&value.to_string())),
    };
    fields.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Cuts a text to `max_chars` characters, the last of which is then an ellipsis.
pub(super) fn shorten(text: &str, max_chars: usize) -> String {
    if text.chars().nth(max_chars).is_none() {
        return text.to_owned();
    }
    text.chars().take(max_chars - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn headline_shows_the_main_argument_of_each_tool() {
        let cases = [
            ("Bash", json!({ "command": "npm test\n", "timeout_ms": 5 }), "npm test "),
            ("Edit", json!({ "file_path": "src/main.rs", "old_string": "a" }), "src/main.rs"),
            ("Grep", json!({ "pattern": "fn main", "path": "src" }), "fn main in src"),
            ("TodoWrite", json!({ "todos": [1, 2] }), "2 tasks"),
            (
                "SubAgent",
                json!({ "subagent_type": "review", "description": "read it", "prompt": "long" }),
                "review: read it",
            ),
            ("SubAgent", json!({ "task_id": "ses_1", "description": "go on", "prompt": "x" }), "go on"),
            ("AgentSwitch", json!({ "to": "build" }), "build"),
            ("github.search", json!({ "query": "x", "limit": 3 }), "limit=3 query=x"),
            ("Bash", json!({ "not_json": "{\"comm" }), "not_json={\"comm"),
            ("noop", json!({}), ""),
            ("noop", Value::Null, ""),
        ];
        for (tool, arguments, expected) in cases {
            assert_eq!(headline(tool, &arguments), expected, "{tool}");
        }
        let long = headline("Bash", &json!({ "command": "é".repeat(1000) }));
        assert_eq!((long.chars().count(), long.ends_with('…')), (100, true));
    }

    #[test]
    fn control_characters_in_arguments_are_removed() {
        let hostile = json!({ "command": "x\n✓ completed\u{1b}[2J" });
        assert_eq!(headline("Bash", &hostile), "x ✓ completed");
    }
}
