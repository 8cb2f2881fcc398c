//! The contents of a log line, before formatting.

use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::{layer::Context, registry::LookupSpan};

use super::{
    fields::{BoundedText, Fields, Value},
    text::{MAX_MESSAGE, MAX_TEXT, masked_and_truncated},
};

/// Fields that identify what a line is about. They come before all others, in this order.
pub(super) const IDS: [&str; 6] = ["run", "session", "tenant", "worker", "request_id", "trace_id"];
/// Reserved names: a field of this name gets a suffix.
const TAKEN: [&str; 7] = ["timestamp", "level", "target", "message", "service", "instance", "omitted_fields"];
/// Prefix of the metadata of records from the `log` crate.
const FOREIGN: &str = "log.";

pub(super) struct Record<'a> {
    pub(super) metadata: &'a Metadata<'a>,
    pub(super) target: String,
    pub(super) message: String,
    pub(super) ids: [Option<Value>; IDS.len()],
    pub(super) rest: Vec<(&'static str, Value)>,
}

impl<'a> Record<'a> {
    /// An event with the fields of its enclosing spans: each name once, and the innermost value wins.
    pub(super) fn new<S>(event: &'a Event<'a>, context: &Context<'_, S>) -> Self
    where
        S: Subscriber + for<'l> LookupSpan<'l>,
    {
        let mut own = Fields::default();
        event.record(&mut own);
        let metadata = event.metadata();
        let mut record = Self {
            metadata,
            target: metadata.target().to_owned(),
            message: String::new(),
            ids: Default::default(),
            rest: Vec::with_capacity(own.0.len()),
        };
        for (name, value) in own.0 {
            record.add_own(name, value);
        }
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(Fields(fields)) = span.extensions().get::<Fields>() {
                fields.iter().for_each(|(name, value)| record.add(name, value.clone()));
            }
        }
        record
    }

    fn add_own(&mut self, name: &'static str, value: Value) {
        match (name, &value) {
            ("message", Value::Text(text)) => self.message = masked_and_truncated(text, MAX_MESSAGE),
            ("log.target", Value::Text(text)) => self.target = masked_and_truncated(text, MAX_TEXT),
            _ if name.starts_with(FOREIGN) => {}
            _ => self.add(name, value),
        }
    }

    fn add(&mut self, name: &'static str, value: Value) {
        if let Some(place) = IDS.iter().position(|id| *id == name) {
            self.ids[place].get_or_insert(value);
        } else if !self.rest.iter().any(|(known, _)| *known == name) {
            self.rest.push((name, value));
        }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        IDS.into_iter().zip(&self.ids).filter_map(|(name, value)| Some((name, value.as_ref()?)))
    }
}

/// The name of a field in a line.
pub(super) fn name_of(field: &'static str) -> (&'static str, &'static str) {
    let plain = field.strip_prefix("r#").unwrap_or(field);
    (plain, if TAKEN.contains(&plain) { "_" } else { "" })
}

/// Formats a value, masked and truncated.
pub(super) fn format_value(value: &Value) -> String {
    match value {
        Value::Text(text) => masked_and_truncated(text, MAX_TEXT),
        Value::Signed(number) => number.to_string(),
        Value::Unsigned(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Bool(it) => it.to_string(),
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(BoundedText::new(text))
    }
}
