//! A message of an agent while it is streamed.

use remuda_proto::v1;
use serde_json::Value;

use super::{DisplayItem, raw_text_of};
use crate::output::Sanitizer;

/// The deltas of a message received so far. Deltas may be missing, and a model may start again; the complete message corrects both.
#[derive(Debug)]
pub(super) struct StreamedMessage {
    pub(super) id: String,
    reasoning: StreamedText,
    text: StreamedText,
}

/// The reasoning or the text of a message.
#[derive(Debug, Default)]
struct StreamedText {
    /// Unsanitized, as received.
    received: String,
    /// Deltas are missing: the rest is shown with the complete message.
    incomplete: bool,
    sanitizer: Sanitizer,
}

impl StreamedText {
    /// Adds text and returns what of it can be shown.
    fn append(&mut self, text: &str) -> String {
        self.received.push_str(text);
        self.sanitizer.push(text)
    }
}

impl StreamedMessage {
    pub(super) fn new(id: &str) -> Self {
        Self { id: id.to_owned(), reasoning: StreamedText::default(), text: StreamedText::default() }
    }

    pub(super) fn has_content(&self) -> bool {
        !self.reasoning.received.is_empty() || !self.text.received.is_empty()
    }

    pub(super) fn receive(&mut self, delta: &v1::Delta) -> Vec<DisplayItem> {
        let is_text = match delta.kind.as_str() {
            "text" => true,
            "reasoning" => false,
            // A newer server may send kinds we do not know.
            _ => return Vec::new(),
        };
        let offset = usize::try_from(delta.offset).unwrap_or(usize::MAX);
        let mut items = Vec::new();
        let known = if is_text { &self.text } else { &self.reasoning };
        if offset < known.received.len() {
            *self = Self::new(&self.id);
            items.push(DisplayItem::Restarted);
        }
        let stream = if is_text { &mut self.text } else { &mut self.reasoning };
        stream.incomplete |= offset != stream.received.len();
        if stream.incomplete {
            return items;
        }
        let shown = stream.append(&delta.text);
        if !shown.is_empty() {
            items.push(if is_text { DisplayItem::Text(shown) } else { DisplayItem::Reasoning(shown) });
        }
        items
    }

    /// The part of the complete message that was not shown yet.
    pub(super) fn complete(mut self, parts: &[Value]) -> Vec<DisplayItem> {
        let mut items = Vec::new();
        // Reasoning is useless after the text it led to.
        if self.text.received.is_empty() {
            let reasoning = parts.iter().filter_map(|part| part["reasoning"]["text"].as_str());
            let reasoning: String = reasoning.collect::<Vec<_>>().join("\n");
            if let Some(rest) = reasoning.strip_prefix(self.reasoning.received.as_str()) {
                items.push(DisplayItem::Reasoning(self.reasoning.append(rest)));
            }
        }
        let text = raw_text_of(parts);
        match text.strip_prefix(self.text.received.as_str()) {
            Some(rest) => items.push(DisplayItem::Text(self.text.append(rest))),
            None => {
                items.push(DisplayItem::Restarted);
                items.push(DisplayItem::Text(StreamedText::default().append(&text)));
            }
        }
        items
            .retain(|piece| !matches!(piece, DisplayItem::Reasoning(text) | DisplayItem::Text(text) if text.is_empty()));
        items
    }
}
