//! Placeholders.

use remuda_domain::error::Code;
use serde_json::Value;

use super::choose::View;
use crate::AttemptError;

/// Of one text with everything put in.
const MAX_TEXT_BYTES: usize = 1024 * 1024;

/// What can be put in. Anything else in double braces is left alone: it may be code.
#[derive(Debug)]
pub(super) struct Placeholders([(&'static str, String); 4]);

impl Placeholders {
    pub(super) fn of(view: &View<'_>) -> Self {
        let last_result = view.results().last().map_or("", |(text, _)| text);
        Self([
            ("{{user}}", view.user()),
            ("{{question}}", view.question()),
            ("{{last_tool_result}}", last_result.to_owned()),
            ("{{turn}}", view.turn().to_string()),
        ])
    }

    /// The text with everything put in. What was put in is not looked at again.
    pub(super) fn expand(&self, text: &str) -> Result<String, AttemptError> {
        let mut expanded = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("{{") {
            let (before, from) = rest.split_at(at);
            expanded.push_str(before);
            let found = self.0.iter().find(|(name, _)| from.starts_with(name));
            let (piece, length) = found.map_or(("{", 1), |(name, value)| (value.as_str(), name.len()));
            expanded.push_str(piece);
            rest = &from[length..];
            if expanded.len() > MAX_TEXT_BYTES {
                let message = "a text of the scenario is too long with everything put in";
                return Err(AttemptError::never(Code::ModelAnswerInvalid, message));
            }
        }
        expanded.push_str(rest);
        Ok(expanded)
    }

    pub(super) fn expand_value(&self, value: &Value) -> Result<Value, AttemptError> {
        Ok(match value {
            Value::String(text) => Value::String(self.expand(text)?),
            Value::Array(items) => {
                items.iter().map(|item| self.expand_value(item)).collect::<Result<_, _>>()?
            }
            Value::Object(entries) => {
                let entries =
                    entries.iter().map(|(name, value)| Ok((name.clone(), self.expand_value(value)?)));
                Value::Object(entries.collect::<Result<_, AttemptError>>()?)
            }
            other => other.clone(),
        })
    }
}
