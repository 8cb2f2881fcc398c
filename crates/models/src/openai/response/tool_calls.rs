//! Assembles tool calls from streamed fragments that do not always say which call they belong to.
//!
//! As documented, each fragment has the index of its call, and the first one also the id and the name. Some servers
//! omit the index, use 0 for all calls, repeat id and name in each fragment, use one id for all calls, or send no id.

use serde_json::Value;

use crate::{
    ToolRequest,
    tool_input::{self, MAX_TOOL_CALLS, ToolInput},
};

#[derive(Debug, Default)]
pub(super) struct ToolCallFragments(Vec<Call>);

#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    input: ToolInput,
}

impl ToolCallFragments {
    /// Applies a fragment. Returns the name of the call that it begins, if any.
    pub(super) fn apply(&mut self, fragment: &Value) -> Result<Option<String>, &'static str> {
        let index = fragment["index"].as_u64();
        let id = fragment["id"].as_str().unwrap_or_default();
        let function = &fragment["function"];
        let name = &tool_input::name(function["name"].as_str().unwrap_or_default());
        let input = match &function["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            // Undocumented, but unambiguous.
            whole => whole.to_string(),
        };
        let position = self
            .find(index, id, name)
            .filter(|position| !self.0[*position].ends_before(index, id, name, &input));
        let position = match position {
            Some(position) => position,
            None if self.0.len() >= MAX_TOOL_CALLS => return Err("too many tool calls"),
            None => {
                self.0.push(Call { index, ..Call::default() });
                self.0.len() - 1
            }
        };
        let call = &mut self.0[position];
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        call.input.push(&input);
        if call.name.is_empty() && !name.is_empty() {
            name.clone_into(&mut call.name);
            return Ok(Some(name.to_owned()));
        }
        Ok(None)
    }

    pub(super) fn finish(self) -> Result<Vec<ToolRequest>, &'static str> {
        let requests = self.0.into_iter().map(|call| match call.name.is_empty() {
            true => Err("a tool call without a name"),
            false => Ok(ToolRequest { name: call.name, arguments: call.input.finish() }),
        });
        requests.collect()
    }

    /// The latest call that a fragment can belong to.
    fn find(&self, index: Option<u64>, id: &str, name: &str) -> Option<usize> {
        let newest = self.0.len().checked_sub(1);
        match index {
            Some(_) => self.0.iter().rposition(|call| {
                call.index == index && (id.is_empty() || call.id.is_empty() || call.id == id)
            }),
            None if id.is_empty() => newest,
            None => self.0.iter().rposition(|call| call.id == id).or(newest.filter(|_| name.is_empty())),
        }
    }
}

impl Call {
    /// Whether a fragment that could belong to this call begins another one: it has a name, and this call is complete
    /// or has another name. With the same index and the same id it never does.
    fn ends_before(&self, index: Option<u64>, id: &str, name: &str, input: &str) -> bool {
        if name.is_empty() || self.name.is_empty() || (index.is_some() && !id.is_empty() && self.id == id) {
            return false;
        }
        self.name != name || (self.input.is_complete() && !input.trim().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The names and arguments of the calls in fragments `[index, id, name, arguments]`.
    fn assemble(fragments: &[Value]) -> Vec<(String, String)> {
        let mut calls = ToolCallFragments::default();
        for fragment in fragments {
            let [index, id, name, arguments] = [0, 1, 2, 3].map(|at| fragment[at].clone());
            calls
                .apply(&json!({"index": index, "id": id, "function": {"name": name, "arguments": arguments}}))
                .unwrap();
        }
        let shown = |request: ToolRequest| {
            (request.name, request.arguments.map_or_else(|text| text, |map| Value::from(map).to_string()))
        };
        calls.finish().unwrap().into_iter().map(shown).collect()
    }

    #[test]
    fn calls_are_assembled_whatever_fragments_omit() {
        let two = [("f", r#"{"a":1}"#), ("g", r#"{"b":2}"#)]
            .map(|(name, input)| (name.to_owned(), input.to_owned()));
        let streams = [
            (
                "as documented",
                json!([
                    [0, "x", "f", ""],
                    [0, null, null, "{\"a\""],
                    [0, null, null, ":1}"],
                    [1, "y", "g", ""],
                    [1, null, null, "{\"b\":2}"]
                ]),
            ),
            (
                "interleaved",
                json!([
                    [0, "x", "f", ""],
                    [1, "y", "g", "{\"b\""],
                    [0, null, null, "{\"a\":1}"],
                    [1, null, null, ":2}"]
                ]),
            ),
            (
                "everything repeated",
                json!([
                    [0, "x", "f", "{\"a\""],
                    [0, "x", "f", ":1}"],
                    [0, "x", "f", ""],
                    [1, "y", "g", "{\"b\":2}"],
                    [1, "y", "g", ""]
                ]),
            ),
            (
                "no index",
                json!([
                    [null, "x", "f", "{\"a\""],
                    [null, "", "", ":1}"],
                    [null, "y", "g", "{\"b\":"],
                    [null, null, null, "2}"]
                ]),
            ),
            (
                "no index, ids repeated",
                json!([
                    [null, "x", "f", "{\"a\""],
                    [null, "y", "g", "{\"b\":"],
                    [null, "x", null, ":1}"],
                    [null, "y", null, "2}"]
                ]),
            ),
            (
                "no index, an id with each fragment that means nothing",
                json!([
                    [null, "x1", "f", "{\"a\""],
                    [null, "x2", null, ":1}"],
                    [null, "y", "g", "{\"b\":2}"]
                ]),
            ),
            ("all have index 0", json!([[0, "x", "f", "{\"a\":1}"], [0, "y", "g", "{\"b\":2}"]])),
            ("all have index 0 and no id", json!([[0, "", "f", "{\"a\":1}"], [0, "", "g", "{\"b\":2}"]])),
            ("one id for all", json!([[0, "x", "f", "{\"a\":1}"], [1, "x", "g", "{\"b\":2}"]])),
            (
                "one id for all and no index",
                json!([[null, "x", "f", "{\"a\":1}"], [null, "x", "g", "{\"b\":2}"]]),
            ),
            (
                "neither index nor id",
                json!([
                    [null, null, "f", "{\"a\""],
                    [null, null, null, ":1}"],
                    [null, null, "g", "{\"b\":2}"]
                ]),
            ),
            ("arguments that are no text", json!([[0, "x", "f", {"a": 1}], [1, "y", "g", {"b": 2}]])),
            ("indexes from 1", json!([[1, "x", "f", "{\"a\":1}"], [2, "y", "g", "{\"b\":2}"]])),
        ];
        for (what, fragments) in streams {
            assert_eq!(assemble(fragments.as_array().unwrap()), two, "{what}");
        }
    }

    #[test]
    fn same_tool_twice_makes_two_calls() {
        let expected =
            [("f", "{}"), ("f", r#"{"a":1}"#)].map(|(name, input)| (name.to_owned(), input.to_owned()));
        for fragments in [
            json!([[null, null, "f", "{}"], [null, null, "f", "{\"a\":1}"]]),
            json!([[0, "x", "f", "{}"], [0, "y", "f", "{\"a\":1}"]]),
            json!([[0, null, "f", "{}"], [0, null, "f", "{\"a\""], [0, null, null, ":1}"]]),
        ] {
            assert_eq!(assemble(fragments.as_array().unwrap()), expected, "{fragments}");
        }
    }

    #[test]
    fn too_many_calls_and_missing_names_are_errors() {
        let mut calls = ToolCallFragments::default();
        let call = |index: usize| json!({"index": index, "function": {"name": "f"}});
        assert!((0..MAX_TOOL_CALLS).all(|index| calls.apply(&call(index)).is_ok()));
        assert!(calls.apply(&call(usize::MAX)).is_err());
        let mut calls = ToolCallFragments::default();
        calls.apply(&json!({"index": 0, "id": "x", "function": {"arguments": "{}"}})).unwrap();
        assert!(calls.finish().is_err());
    }
}
