//! Serializes durations as text: `500ms`, `15s`, `24h`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map_err(|_| {
        de::Error::invalid_value(de::Unexpected::Str(&text), &"a duration such as 500ms, 15s or 24h")
    })
}
