//! Conversions from protobuf values to JSON values.

use std::time::Duration;

use chrono::SecondsFormat;
use remuda_proto::convert::from_timestamp;
use serde_json::Value;

/// `None` for an empty text.
pub(crate) fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Parses JSON inside a text field. Text that is not JSON is kept as a string.
#[must_use]
pub fn embedded(text: &str) -> Option<Value> {
    if text.is_empty() {
        return None;
    }
    Some(serde_json::from_str(text).unwrap_or_else(|_| text.into()))
}

pub(crate) fn time(at: Option<prost_types::Timestamp>) -> Option<String> {
    at.as_ref().and_then(from_timestamp).map(|at| at.to_rfc3339_opts(SecondsFormat::Micros, true))
}

pub(crate) fn millis(duration: Option<prost_types::Duration>) -> Option<u64> {
    let duration: Duration = duration?.try_into().ok()?;
    u64::try_from(duration.as_millis()).ok()
}

pub(crate) fn list<T, M: From<T>>(items: Vec<T>) -> Vec<M> {
    items.into_iter().map(Into::into).collect()
}

/// Milliseconds of a request as a protobuf duration. Values that do not fit exceed every limit anyway.
pub(crate) fn duration_ms(millis: u64) -> prost_types::Duration {
    Duration::from_millis(millis).try_into().unwrap_or(prost_types::Duration { seconds: i64::MAX, nanos: 0 })
}
