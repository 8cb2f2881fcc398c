//! Placeholders in the texts of a scenario.

use remuda_domain::error::Code;
use serde_json::Value;

use super::turn_choice::ConversationState;
use crate::AttemptError;

/// Maximum size of an expanded text.
const MAX_TEXT_BYTES: usize = 1024 * 1024;

/// The known placeholders. Other text in double braces is left unchanged: it may be code.
#[derive(Debug)]
pub(super) struct Placeholders([(&'static str, String); 4]);

impl Placeholders {
    pub(super) fn of(state: &ConversationState<'_>) -> Self {
        let last_result = state.results().last().map_or("", |(text, _)| text);
        Self([
            ("{{user}}", state.user()),
            ("{{question}}", state.question()),
            ("{{last_tool_result}}", last_result.to_owned()),
            ("{{turn}}", state.turn().to_string()),
        ])
    }

    /// Replaces the placeholders of a text. Inserted values are not expanded again.
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
