//! A one-line summary of a tool call.

use remuda_domain::tool::CallSubject;
use remuda_node::tool_catalog;
use serde_json::Value;

/// Longer headlines would wrap on most screens.
const MAX_CHARS: usize = 100;

/// What the call is about: the command of a shell, the file of an edit. Empty if the call has no arguments.
pub(crate) fn headline(tool: &str, arguments: &Value) -> String {
    shorten(&tool_catalog().describe(tool).headline(arguments), MAX_CHARS)
}

/// The argument of a call that is a shell script, and the script.
pub(crate) fn script_of<'a>(tool: &str, arguments: &'a Value) -> Option<(&'static str, &'a str)> {
    match (tool_catalog().describe(tool).subject)(arguments) {
        CallSubject::Script { argument, script } => Some((argument, script?)),
        _ => None,
    }
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
