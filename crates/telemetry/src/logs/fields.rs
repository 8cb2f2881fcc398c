//! The recorded fields of an event or a span.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};

use super::{secrets::MAX_SECRET, text::MAX_MESSAGE};

/// Bytes kept of a text. More than is logged, so that a secret at the cut is recognized as a whole.
const KEPT: usize = MAX_MESSAGE + MAX_SECRET;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(BoundedText),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Bool(bool),
}

/// A text that may be truncated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BoundedText {
    pub(super) start: String,
    /// Number of bytes cut off.
    pub(super) missing: usize,
}

impl BoundedText {
    pub(super) fn new(text: &str) -> Self {
        let mut kept = Self::default();
        kept.push(text);
        kept
    }

    /// Appends as much as fits, and counts the rest.
    fn push(&mut self, piece: &str) {
        let room = if self.missing == 0 { KEPT.saturating_sub(self.start.len()) } else { 0 };
        let fitting = piece.floor_char_boundary(room);
        self.start.push_str(&piece[..fitting]);
        self.missing = self.missing.saturating_add(piece.len() - fitting);
    }
}

impl fmt::Write for BoundedText {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.push(piece);
        Ok(())
    }
}

/// Names and values in recording order.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(pub(super) Vec<(&'static str, Value)>);

impl Fields {
    /// A field of a span may be recorded again; the last value wins.
    fn set(&mut self, name: &'static str, value: Value) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name(), Value::Signed(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field.name(), Value::Unsigned(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field.name(), Value::Float(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field.name(), Value::Bool(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), Value::Text(BoundedText::new(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = BoundedText::default();
        if write!(text, "{value:?}").is_err() {
            text.start.push_str("(cannot be formatted)");
        }
        self.set(field.name(), Value::Text(text));
    }
}
