//! One message of an agent while it is being said.

use remuda_proto::v1;
use serde_json::Value;

use super::{Piece, raw_text_of};
use crate::output::Sanitizer;

/// What was heard of a message so far. Pieces may be missing, and a model may begin anew; the whole message tells in the end.
#[derive(Debug)]
pub(super) struct Utterance {
    pub(super) message: String,
    reasoning: Voice,
    text: Voice,
}

/// One kind of what is said.
#[derive(Debug, Default)]
struct Voice {
    /// As it came.
    heard: String,
    /// Pieces are missing: the rest is shown with the whole message.
    broken: bool,
    sanitizer: Sanitizer,
}

impl Voice {
    /// What can be shown of a piece that follows what was heard.
    fn say(&mut self, text: &str) -> String {
        self.heard.push_str(text);
        self.sanitizer.push(text)
    }
}

impl Utterance {
    pub(super) fn new(message: &str) -> Self {
        Self { message: message.to_owned(), reasoning: Voice::default(), text: Voice::default() }
    }

    pub(super) fn has_spoken(&self) -> bool {
        !self.reasoning.heard.is_empty() || !self.text.heard.is_empty()
    }

    pub(super) fn hear(&mut self, delta: &v1::Delta) -> Vec<Piece> {
        let is_text = match delta.kind.as_str() {
            "text" => true,
            "reasoning" => false,
            // A newer server may send kinds we do not know.
            _ => return Vec::new(),
        };
        let offset = usize::try_from(delta.offset).unwrap_or(usize::MAX);
        let mut pieces = Vec::new();
        let known = if is_text { &self.text } else { &self.reasoning };
        if offset < known.heard.len() {
            *self = Self::new(&self.message);
            pieces.push(Piece::Restarted);
        }
        let voice = if is_text { &mut self.text } else { &mut self.reasoning };
        voice.broken |= offset != voice.heard.len();
        if voice.broken {
            return pieces;
        }
        let shown = voice.say(&delta.text);
        if !shown.is_empty() {
            pieces.push(if is_text { Piece::Text(shown) } else { Piece::Reasoning(shown) });
        }
        pieces
    }

    /// What was not shown of the message, now that all of it is known.
    pub(super) fn complete(mut self, parts: &[Value]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        // Thoughts are of no use behind what came of them.
        if self.text.heard.is_empty() {
            let thoughts = parts.iter().filter_map(|part| part["reasoning"]["text"].as_str());
            let thoughts: String = thoughts.collect::<Vec<_>>().join("\n");
            if let Some(rest) = thoughts.strip_prefix(self.reasoning.heard.as_str()) {
                pieces.push(Piece::Reasoning(self.reasoning.say(rest)));
            }
        }
        let text = raw_text_of(parts);
        match text.strip_prefix(self.text.heard.as_str()) {
            Some(rest) => pieces.push(Piece::Text(self.text.say(rest))),
            None => {
                pieces.push(Piece::Restarted);
                pieces.push(Piece::Text(Voice::default().say(&text)));
            }
        }
        pieces
            .retain(|piece| !matches!(piece, Piece::Reasoning(text) | Piece::Text(text) if text.is_empty()));
        pieces
    }
}
