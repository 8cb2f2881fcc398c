//! Joins message deltas into lines.

use remuda_proto::v1;

use crate::output::Sanitizer;

/// A line is shown without its newline when it reaches this length.
const MAX_CHARS: usize = 200;

/// Joins message deltas into lines.
#[derive(Debug, Default)]
pub(super) struct DeltaLines {
    /// The message and the delta kind that the line belongs to.
    source: (String, String),
    line: String,
    sanitizer: Sanitizer,
}

impl DeltaLines {
    /// The lines that this delta completes.
    pub(super) fn receive(&mut self, delta: &v1::Delta) -> Vec<String> {
        let source = (delta.message_id.clone(), delta.kind.clone());
        let mut lines = Vec::new();
        if self.source != source || delta.offset == 0 {
            lines.extend(self.take_line());
            *self = Self { source, ..Self::default() };
        }
        for c in self.sanitizer.push(&delta.text).chars() {
            if c == '\n' || self.line.chars().count() >= MAX_CHARS {
                lines.extend(self.take_line());
            }
            if c != '\n' {
                self.line.push(c);
            }
        }
        lines
    }

    fn take_line(&mut self) -> Option<String> {
        Some(std::mem::take(&mut self.line)).filter(|line| !line.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_returned_once_it_is_complete() {
        let delta = |message: &str, offset: usize, text: &str| v1::Delta {
            message_id: message.into(),
            kind: "text".into(),
            offset: offset as u64,
            text: text.into(),
            ..Default::default()
        };
        let mut deltas = DeltaLines::default();
        assert!(deltas.receive(&delta("m1", 0, "one")).is_empty());
        assert_eq!(deltas.receive(&delta("m1", 3, " two\n\nthree")), ["one two"]);
        assert_eq!(deltas.receive(&delta("m2", 0, "other\u{1b}[2J\n")), ["three", "other"]);
        let long = deltas.receive(&delta("m2", 7, &"x".repeat(450)));
        assert_eq!(long.iter().map(String::len).collect::<Vec<_>>(), [200, 200]);
    }
}
