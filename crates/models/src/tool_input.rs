//! Collects the streamed arguments of a tool call.

use serde_json::{Map, Value};

/// Maximum tool calls of a response.
pub(crate) const MAX_TOOL_CALLS: usize = 256;

/// Maximum characters of a name or an id; the rest is cut off.
const MAX_NAME_CHARS: usize = 200;

/// Cleans a name or an id from a server, so that it can be stored and shown.
pub(crate) fn name(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_NAME_CHARS).collect()
}

/// Collects fragments, and tracks whether they form a complete JSON object without parsing them repeatedly.
#[derive(Debug, Default)]
pub(crate) struct ToolInput {
    text: String,
    depth: usize,
    opened: bool,
    in_string: bool,
    escaped: bool,
}

impl ToolInput {
    pub(crate) fn push(&mut self, fragment: &str) {
        self.text.push_str(fragment);
        for byte in fragment.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => (self.depth, self.opened) = (self.depth + 1, true),
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Whether all braces and brackets are closed.
    pub(crate) fn is_complete(&self) -> bool {
        self.opened && self.depth == 0
    }

    /// The object, or the verbatim text. Empty text means no arguments.
    pub(crate) fn finish(self) -> Result<Map<String, Value>, String> {
        if self.is_empty() || self.text.trim() == "null" {
            return Ok(Map::new());
        }
        serde_json::from_str(&self.text).map_err(|_| self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(fragments: &[&str]) -> ToolInput {
        let mut input = ToolInput::default();
        fragments.iter().for_each(|fragment| input.push(fragment));
        input
    }

    #[test]
    fn completeness_is_tracked_while_fragments_arrive() {
        assert!(!input(&[]).is_complete());
        assert!(!input(&["{\"a\":", "\"}\\\""]).is_complete());
        assert!(input(&["{\"a\":", "\"}\\\"\"}"]).is_complete());
        assert!(!input(&["{\"a\":[{}", "]"]).is_complete());
    }

    #[test]
    fn names_are_cleaned_and_shortened() {
        assert_eq!(name("Re\nad"), "Read");
        assert_eq!(name(&"é".repeat(1000)).chars().count(), MAX_NAME_CHARS);
    }

    #[test]
    fn only_json_objects_are_arguments() {
        assert_eq!(input(&["{\"a\"", ":1}"]).finish().unwrap()["a"], 1);
        for nothing in ["", " \n", "null", "{}"] {
            assert_eq!(input(&[nothing]).finish(), Ok(Map::new()));
        }
        for bad in ["{\"a\":", "[1]", "\"text\"", "{}{}", "read it"] {
            assert_eq!(input(&[bad]).finish(), Err(bad.to_owned()));
        }
    }
}
