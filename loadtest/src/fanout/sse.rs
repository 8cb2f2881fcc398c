//! Server-sent events, as they come.

use anyhow::{Result, ensure};

/// More than the server's largest event.
const MAX_EVENT: usize = 16 * 1024 * 1024;

/// One event with data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    /// Of this event itself, not of one before it.
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) data: String,
}

/// Takes a stream apart. Lines end with `\n` or `\r\n`; a lone `\r` is not known here, and the server never writes one.
#[derive(Debug, Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    message: Message,
}

impl Parser {
    /// Takes the next bytes and appends the events that are complete with them.
    pub(super) fn feed(&mut self, bytes: &[u8], messages: &mut Vec<Message>) -> Result<()> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let size = self.line.len() + self.message.data.len() + part.len();
            ensure!(size <= MAX_EVENT, "an event does not end");
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                let line = String::from_utf8_lossy(&line);
                messages.extend(self.read_line(line.trim_end_matches(['\r', '\n'])));
            }
        }
        Ok(())
    }

    /// Gives the event that ends with this line.
    fn read_line(&mut self, line: &str) -> Option<Message> {
        if line.is_empty() {
            let message = std::mem::take(&mut self.message);
            // Without data it is no event.
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
            // Comments, `retry`, and what nobody knows yet.
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
    fn an_event_without_end_is_an_error() {
        let (mut parser, mut messages) = (Parser::default(), Vec::new());
        let piece = vec![b'x'; MAX_EVENT / 4 + 1];
        assert!((0..4).any(|_| parser.feed(&piece, &mut messages).is_err()));
    }
}
