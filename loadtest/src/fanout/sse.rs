//! An incremental parser of server-sent events.

use anyhow::{Result, ensure};

/// The largest accepted event: more than the server ever sends.
const MAX_EVENT: usize = 16 * 1024 * 1024;

/// One event with data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    /// The id of this event itself, not of an earlier one.
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) data: String,
}

/// Parses a stream. Lines end with `\n` or `\r\n`; a lone `\r` is not supported, and the server never writes one.
#[derive(Debug, Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    message: Message,
}

impl Parser {
    /// Parses the next bytes and appends the completed events.
    pub(super) fn feed(&mut self, bytes: &[u8], messages: &mut Vec<Message>) -> Result<()> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let size = self.line.len() + self.message.data.len() + part.len();
            ensure!(size <= MAX_EVENT, "an event exceeds {MAX_EVENT} bytes");
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                let line = String::from_utf8_lossy(&line);
                messages.extend(self.read_line(line.trim_end_matches(['\r', '\n'])));
            }
        }
        Ok(())
    }

    /// Returns the event that ends with this line.
    fn read_line(&mut self, line: &str) -> Option<Message> {
        if line.is_empty() {
            let message = std::mem::take(&mut self.message);
            // A block without data is not an event.
            return (!message.data.is_empty()).then_some(message);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.message.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.message.name),
            "data" => {
                if !self.message.data.is_empty() {
                    self.message.data.push('\n');
                }
                self.message.data.push_str(value);
            }
            // Comments, `retry`, and unknown fields.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": remuda\nretry: 900\n\nid: 1\nevent: run.queued\ndata: {\"a\":\"ü\"}\n\n: still here\n\n\
                          id: 2\r\nevent:run.started\r\ndata: x\r\ndata: y\r\n\r\nid: 7\n\nevent: goodbye\ndata: z\n\nid: 9\nevent: torn";

    fn message(id: Option<&str>, name: &str, data: &str) -> Message {
        Message { id: id.map(str::to_owned), name: name.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn pieces_of_any_size_give_the_same_events() {
        let expected = [
            message(Some("1"), "run.queued", "{\"a\":\"ü\"}"),
            message(Some("2"), "run.started", "x\ny"),
            message(None, "goodbye", "z"),
        ];
        for size in 1..=STREAM.len() {
            let (mut parser, mut messages) = (Parser::default(), Vec::new());
            for piece in STREAM.as_bytes().chunks(size) {
                parser.feed(piece, &mut messages).unwrap();
            }
            assert_eq!(messages, expected, "{size}");
        }
    }

    #[test]
    fn event_beyond_the_size_limit_is_an_error() {
        let (mut parser, mut messages) = (Parser::default(), Vec::new());
        let piece = vec![b'x'; MAX_EVENT / 4 + 1];
        assert!((0..4).any(|_| parser.feed(&piece, &mut messages).is_err()));
    }
}
