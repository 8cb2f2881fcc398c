//! Ring buffer with the newest output of a stream and a read position.

use std::collections::VecDeque;

use regex::bytes::Regex;

/// Keeps the newest `limit` bytes. Positions count from the first byte of the stream.
#[derive(Debug)]
pub(super) struct OutputRing {
    bytes: VecDeque<u8>,
    limit: usize,
    total: u64,
    read: u64,
}

/// Output that was not read before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NewOutput {
    pub(crate) text: String,
    /// Bytes that were overwritten before they were read.
    pub(crate) missed: u64,
    /// More output is already available.
    pub(crate) more: bool,
}

impl OutputRing {
    pub(super) fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), limit, total: 0, read: 0 }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.total += chunk.len() as u64;
        let chunk = &chunk[chunk.len().saturating_sub(self.limit)..];
        let excess = (self.bytes.len() + chunk.len()).saturating_sub(self.limit);
        self.bytes.drain(..excess);
        self.bytes.extend(chunk);
    }

    /// Reads at most `limit` unread bytes, all of them or only the matching lines. An incomplete character,
    /// or with a filter an incomplete line, stays unread unless the stream has `ended`.
    pub(super) fn take(&mut self, limit: usize, filter: Option<&Regex>, ended: bool) -> NewOutput {
        let oldest = self.total - self.bytes.len() as u64;
        let missed = oldest.saturating_sub(self.read);
        self.read = self.read.max(oldest);
        // Always fits: the unread part is not longer than the buffer.
        let skip = usize::try_from(self.read - oldest).unwrap_or(usize::MAX);
        let unread = self.bytes.make_contiguous().get(skip..).unwrap_or_default();
        let selection = match filter {
            None => select_all(unread, limit, ended),
            Some(filter) => select_lines(unread, limit, filter, ended),
        };
        self.read += selection.consumed as u64;
        let text = String::from_utf8_lossy(&selection.selected).replace('\0', "\u{fffd}");
        NewOutput { text, missed, more: selection.more }
    }
}

/// Selected bytes, and the number of bytes consumed.
struct Selection {
    selected: Vec<u8>,
    consumed: usize,
    more: bool,
}

fn select_all(unread: &[u8], limit: usize, ended: bool) -> Selection {
    let cut = &unread[..unread.len().min(limit)];
    let more = cut.len() < unread.len();
    let consumed = if ended && !more { cut.len() } else { complete_characters(cut) };
    Selection { selected: cut[..consumed].to_vec(), consumed, more }
}

fn select_lines(unread: &[u8], limit: usize, filter: &Regex, ended: bool) -> Selection {
    let (mut selected, mut consumed) = (Vec::new(), 0);
    for line in unread.split_inclusive(|byte| *byte == b'\n') {
        let unfinished = !line.ends_with(b"\n") && !ended;
        if unfinished && line.len() < limit {
            break;
        }
        if filter.is_match(line.trim_ascii_end()) {
            let line = if line.len() > limit { &line[..complete_characters(&line[..limit])] } else { line };
            if !selected.is_empty() && selected.len() + line.len() > limit {
                return Selection { selected, consumed, more: true };
            }
            selected.extend_from_slice(line);
        }
        consumed += line.len();
    }
    Selection { selected, consumed, more: false }
}

/// Length without an incomplete character at the end.
fn complete_characters(bytes: &[u8]) -> usize {
    let end = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    // The invalid part at the very end is garbage or the start of a character; only the latter can be
    // completed.
    let is_incomplete = matches!(end.first(), Some(0xc2..=0xf4))
        && std::str::from_utf8(end).is_err_and(|e| e.error_len().is_none());
    if is_incomplete { bytes.len() - end.len() } else { bytes.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ring: &mut OutputRing) -> String {
        ring.take(100, None, false).text
    }

    #[test]
    fn every_byte_is_read_once() {
        let mut ring = OutputRing::new(10);
        ring.push(b"abc");
        assert_eq!(text(&mut ring), "abc");
        assert_eq!(ring.take(100, None, false), NewOutput::default());
        ring.push(b"de");
        ring.push(b"f");
        assert_eq!(text(&mut ring), "def");
    }

    #[test]
    fn overwritten_bytes_are_counted() {
        let mut ring = OutputRing::new(4);
        ring.push(b"ab");
        text(&mut ring);
        ring.push(b"cdefghij");
        assert_eq!(ring.take(100, None, false), NewOutput { text: "ghij".into(), missed: 4, more: false });
        ring.push(b"k");
        assert_eq!(ring.take(100, None, false), NewOutput { text: "k".into(), missed: 0, more: false });
    }

    #[test]
    fn long_output_is_read_in_parts() {
        let mut ring = OutputRing::new(100);
        ring.push(b"abcdefgh");
        assert_eq!(ring.take(5, None, false), NewOutput { text: "abcde".into(), missed: 0, more: true });
        assert_eq!(ring.take(5, None, false), NewOutput { text: "fgh".into(), missed: 0, more: false });
    }

    #[test]
    fn characters_are_not_split_and_garbage_is_replaced() {
        let mut ring = OutputRing::new(100);
        ring.push(b"a\xc3");
        assert_eq!(text(&mut ring), "a");
        ring.push(b"\xa9\xff\0");
        assert_eq!(text(&mut ring), "é\u{fffd}\u{fffd}");
        ring.push(b"b\xe2\x82");
        assert_eq!(text(&mut ring), "b");
        assert_eq!(ring.take(100, None, true).text, "\u{fffd}");
    }

    #[test]
    fn filter_returns_complete_matching_lines() {
        let filter = Regex::new("^err").unwrap();
        let mut ring = OutputRing::new(100);
        ring.push(b"error 1\nfine\nerr");
        assert_eq!(ring.take(50, Some(&filter), false).text, "error 1\n");
        ring.push(b"or 2\r\nmore");
        assert_eq!(ring.take(50, Some(&filter), false).text, "error 2\r\n");
        assert_eq!(ring.take(50, Some(&filter), true).text, "");
        ring.push(b"err a\nerr b\nerr c\n");
        let new_output = ring.take(12, Some(&filter), false);
        assert_eq!((new_output.text.as_str(), new_output.more), ("err a\nerr b\n", true));
        assert_eq!(ring.take(12, Some(&filter), true).text, "err c\n");
    }
}
