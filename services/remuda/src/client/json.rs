//! The API's messages as JSON, for `--json`.
//!
//! Field names are those of the protos. Text that is JSON on the wire (arguments, outputs, data, parts) becomes real
//! JSON, times become RFC 3339, states their lower-case names. Empty fields are left out.

use std::time::Duration;

use remuda_domain::{Timestamp, session::SessionStatus};
use remuda_proto::{convert, v1};
use serde_json::{Map, Value, json};

/// An object without its empty fields.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let kept = fields.into_iter().filter(|(_, value)| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        _ => true,
    });
    Value::Object(kept.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

/// JSON that travels as text. Text that is none after all is kept as text.
pub(super) fn embedded(text: &str) -> Value {
    if text.is_empty() {
        return Value::Null;
    }
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

fn time<'a>(at: impl Into<Option<&'a prost_timestamp!()>>) -> Value {
    at.into().and_then(convert::from_timestamp).map_or(Value::Null, |at| rfc3339(at).into())
}
