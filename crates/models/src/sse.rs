//! A decoder for server-sent events, from bytes that may be cut anywhere.

use std::collections::VecDeque;

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Empty if the server sent none.
    pub(crate) name: String,
    pub(crate) data: String,
    /// The stream ended before the blank line that ends an event, so the data may be incomplete.
    pub(crate) cut: bool,
}

/// An event is longer than allowed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Decodes bytes into events. Lines end in LF, CR or CRLF; invalid UTF-8 is replaced.
#[derive(Debug)]
pub(crate) struct Decoder {
    max_event_bytes: usize,
    line: Vec<u8>,
    name: String,
    data: Option<Vec<u8>>,
    /// The last byte was a CR. An LF now belongs to it.
    after_cr: bool,
    first_line: bool,
    ready: VecDeque<Event>,
}

impl Decoder {
    pub(crate) fn new(max_event_bytes: usize) -> Self {
        Self {
            max_event_bytes,
            line: Vec::new(),
            name: String::new(),
            data: None,
            after_cr: false,
            first_line: true,
            ready: VecDeque::new(),
        }
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<(), TooLong> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + piece.len() > self.max_event_bytes {
                return Err(TooLong);
            }
            self.line.extend_from_slice(piece);
            let Some(end) = end else { break };
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            self.end_line()?;
        }
        Ok(())
    }

    /// Ends the stream. The remaining bytes are the last event.
    pub(crate) fn finish(&mut self) -> Result<(), TooLong> {
        if !self.line.is_empty() {
            self.end_line()?;
        }
        self.end_event(true);
        Ok(())
    }

    pub(crate) fn next(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    fn end_line(&mut self) -> Result<(), TooLong> {
        let line = std::mem::take(&mut self.line);
        let mut line = line.as_slice();
        if std::mem::take(&mut self.first_line) {
            line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        }
        if line.is_empty() {
            self.end_event(false);
            return Ok(());
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                let data = self.data.get_or_insert_default();
                if data.len() + value.len() >= self.max_event_bytes {
                    return Err(TooLong);
                }
                // Each line ends with a line feed; the last one is removed again.
                data.extend_from_slice(value);
                data.push(b'\n');
            }
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            // A comment (no field name), or a field that is not used here.
            _ => {}
        }
        Ok(())
    }

    fn end_event(&mut self, cut: bool) {
        let name = std::mem::take(&mut self.name);
        // An event without data is ignored.
        let Some(mut data) = self.data.take() else { return };
        data.pop();
        let data = String::from_utf8_lossy(&data).into_owned();
        self.ready.push_back(Event { name, data, cut });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut decoder = Decoder::new(1000);
        for piece in pieces {
            decoder.push(piece).unwrap();
        }
        decoder.finish().unwrap();
        std::iter::from_fn(|| decoder.next()).map(|event| (event.name, event.data)).collect()
    }

    const STREAM: &str = "\u{feff}: hello\r\nevent: greeting\r\ndata: Grüße, 世界\r\ndata:second\r\n\r\nid: 4\nretry: 3\n\n: keep-alive\n\n\
                          data\n\ndata: a\rdata:  b\r\rdata: {\"x\":1}";

    #[test]
    fn events_do_not_depend_on_where_bytes_are_cut() {
        let events = [("greeting", "Grüße, 世界\nsecond"), ("", ""), ("", "a\n b"), ("", "{\"x\":1}")]
            .map(|(name, data)| (name.to_owned(), data.to_owned()));
        let bytes = STREAM.as_bytes();
        assert_eq!(decode(&[bytes]), events);
        assert_eq!(decode(&bytes.chunks(1).collect::<Vec<_>>()), events);
        for cut in 0..bytes.len() {
            assert_eq!(decode(&[&bytes[..cut], &bytes[cut..]]), events, "cut at {cut}");
        }
    }

    #[test]
    fn event_without_an_end_is_marked_as_cut() {
        let mut decoder = Decoder::new(100);
        decoder.push(b"data: 1\n\ndata: 2\n").unwrap();
        assert!(!decoder.next().unwrap().cut);
        assert_eq!(decoder.next(), None);
        decoder.finish().unwrap();
        assert!(decoder.next().unwrap().cut);
    }

    #[test]
    fn too_long_lines_and_events_are_rejected() {
        let mut decoder = Decoder::new(10);
        assert_eq!(decoder.push(b"data: 12345"), Err(TooLong));
        let mut decoder = Decoder::new(10);
        decoder.push(b"data:1234\n").unwrap();
        assert_eq!(decoder.push(b"data:12345\n"), Err(TooLong));
        let mut decoder = Decoder::new(10);
        for _ in 0..100 {
            decoder.push(b":12345678\n\n").unwrap();
        }
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        assert_eq!(decode(&[b"data: a\xff\n\n"])[0].1, "a\u{fffd}");
    }
}
