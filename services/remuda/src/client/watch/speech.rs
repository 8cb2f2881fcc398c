//! What an agent is saying, line by line.

use remuda_proto::v1;

use crate::output::Sanitizer;

/// A line without an end is shown anyway when it gets this long.
const MAX_CHARS: usize = 200;

/// Joins pieces of messages to lines.
#[derive(Debug, Default)]
pub(super) struct Speech {
    /// The message and the kind that the line belongs to.
    of: (String, String),
    line: String,
    sanitizer: Sanitizer,
}

impl Speech {
    /// The lines that this piece completes.
    pub(super) fn hear(&mut self, delta: &v1::Delta) -> Vec<String> {
        let of = (delta.message_id.clone(), delta.kind.clone());
        let mut lines = Vec::new();
        if self.of != of || delta.offset == 0 {
            lines.extend(self.rest());
            *self = Self { of, ..Self::default() };
        }
        for c in self.sanitizer.push(&delta.text).chars() {
            if c == '\n' || self.line.chars().count() >= MAX_CHARS {
                lines.extend(self.rest());
            }
            if c != '\n' {
                self.line.push(c);
            }
        }
        lines
    }

    fn rest(&mut self) -> Option<String> {
        Some(std::mem::take(&mut self.line)).filter(|line| !line.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shown_when_they_are_complete() {
        let delta = |message: &str, offset: usize, text: &str| v1::Delta {
            message_id: message.into(),
            kind: "text".into(),
            offset: offset as u64,
            text: text.into(),
            ..Default::default()
        };
        let mut speech = Speech::default();
        assert!(speech.hear(&delta("m1", 0, "one")).is_empty());
        assert_eq!(speech.hear(&delta("m1", 3, " two\n\nthree")), ["one two"]);
        assert_eq!(speech.hear(&delta("m2", 0, "other\u{1b}[2J\n")), ["three", "other"]);
        let long = speech.hear(&delta("m2", 7, &"x".repeat(450)));
        assert_eq!(long.iter().map(String::len).collect::<Vec<_>>(), [200, 200]);
    }
}
