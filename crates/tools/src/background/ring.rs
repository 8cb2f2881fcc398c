//! The newest output of a stream, with a place up to which it was read.

use std::collections::VecDeque;

use regex::bytes::Regex;

/// Keeps the newest `limit` bytes. Positions count from the stream's first byte.
#[derive(Debug)]
pub(super) struct Ring {
    kept: VecDeque<u8>,
    limit: usize,
    total: u64,
    read: u64,
}

/// What a look at a stream gave.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) text: String,
    /// Bytes that were pushed out before anyone looked.
    pub(crate) missed: u64,
    /// There is more to see already.
    pub(crate) more: bool,
}

impl Ring {
    pub(super) fn new(limit: usize) -> Self {
        Self { kept: VecDeque::new(), limit, total: 0, read: 0 }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.total += chunk.len() as u64;
        let chunk = &chunk[chunk.len().saturating_sub(self.limit)..];
        let excess = (self.kept.len() + chunk.len()).saturating_sub(self.limit);
        self.kept.drain(..excess);
        self.kept.extend(chunk);
    }

    /// Takes at most `limit` bytes that nobody has seen, all of them or only the lines that match. What may still be
    /// completed, half a character or with a filter half a line, stays for the next look unless `ended`.
    pub(super) fn take(&mut self, limit: usize, filter: Option<&Regex>, ended: bool) -> News {
        let oldest = self.total - self.kept.len() as u64;
        let missed = oldest.saturating_sub(self.read);
        self.read = self.read.max(oldest);
        // Fits: what is unread is no longer than what is kept.
        let skip = usize::try_from(self.read - oldest).unwrap_or(usize::MAX);
        let unread = self.kept.make_contiguous().get(skip..).unwrap_or_default();
        let look = match filter {
            None => plain(unread, limit, ended),
            Some(filter) => matching(unread, limit, filter, ended),
        };
        self.read += look.seen as u64;
        let text = String::from_utf8_lossy(&look.shown).replace('\0', "\u{fffd}");
        News { text, missed, more: look.more }
    }
}

/// What to show of some bytes, and how many of them are done with.
struct Look {
    shown: Vec<u8>,
    seen: usize,
    more: bool,
}

fn plain(unread: &[u8], limit: usize, ended: bool) -> Look {
    let cut = &unread[..unread.len().min(limit)];
    let more = cut.len() < unread.len();
    let seen = if ended && !more { cut.len() } else { whole_characters(cut) };
    Look { shown: cut[..seen].to_vec(), seen, more }
}

fn matching(unread: &[u8], limit: usize, filter: &Regex, ended: bool) -> Look {
    let (mut shown, mut seen) = (Vec::new(), 0);
    for line in unread.split_inclusive(|byte| *byte == b'\n') {
        let unfinished = !line.ends_with(b"\n") && !ended;
        if unfinished && line.len() < limit {
            break;
        }
        if filter.is_match(line.trim_ascii_end()) {
            let line = if line.len() > limit { &line[..whole_characters(&line[..limit])] } else { line };
            if !shown.is_empty() && shown.len() + line.len() > limit {
                return Look { shown, seen, more: true };
            }
            shown.extend_from_slice(line);
        }
        seen += line.len();
    }
    Look { shown, seen, more: false }
}

/// The length without an unfinished character at the end.
fn whole_characters(bytes: &[u8]) -> usize {
    let end = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    // A chunk's invalid part at the very end is either garbage or a beginning; only the latter could go on.
    let begun = matches!(end.first(), Some(0xc2..=0xf4))
        && std::str::from_utf8(end).is_err_and(|e| e.error_len().is_none());
    if begun { bytes.len() - end.len() } else { bytes.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ring: &mut Ring) -> String {
        ring.take(100, None, false).text
    }

    #[test]
    fn every_byte_is_seen_once() {
        let mut ring = Ring::new(10);
        ring.push(b"abc");
        assert_eq!(text(&mut ring), "abc");
        assert_eq!(ring.take(100, None, false), News::default());
        ring.push(b"de");
        ring.push(b"f");
        assert_eq!(text(&mut ring), "def");
    }

    #[test]
    fn what_was_pushed_out_is_counted() {
        let mut ring = Ring::new(4);
        ring.push(b"ab");
        text(&mut ring);
        ring.push(b"cdefghij");
        assert_eq!(ring.take(100, None, false), News { text: "ghij".into(), missed: 4, more: false });
        ring.push(b"k");
        assert_eq!(ring.take(100, None, false), News { text: "k".into(), missed: 0, more: false });
    }

    #[test]
    fn much_comes_in_parts() {
        let mut ring = Ring::new(100);
        ring.push(b"abcdefgh");
        assert_eq!(ring.take(5, None, false), News { text: "abcde".into(), missed: 0, more: true });
        assert_eq!(ring.take(5, None, false), News { text: "fgh".into(), missed: 0, more: false });
    }

    #[test]
    fn a_character_is_not_cut_but_garbage_passes() {
        let mut ring = Ring::new(100);
        ring.push(b"a\xc3");
        assert_eq!(text(&mut ring), "a");
        ring.push(b"\xa9\xff\0");
        assert_eq!(text(&mut ring), "é\u{fffd}\u{fffd}");
        ring.push(b"b\xe2\x82");
        assert_eq!(text(&mut ring), "b");
        assert_eq!(ring.take(100, None, true).text, "\u{fffd}");
    }

    #[test]
    fn only_matching_whole_lines() {
        let filter = Regex::new("^err").unwrap();
        let mut ring = Ring::new(100);
        ring.push(b"error 1\nfine\nerr");
        assert_eq!(ring.take(50, Some(&filter), false).text, "error 1\n");
        ring.push(b"or 2\r\nmore");
        assert_eq!(ring.take(50, Some(&filter), false).text, "error 2\r\n");
        assert_eq!(ring.take(50, Some(&filter), true).text, "");
        ring.push(b"err a\nerr b\nerr c\n");
        let news = ring.take(12, Some(&filter), false);
        assert_eq!((news.text.as_str(), news.more), ("err a\nerr b\n", true));
        assert_eq!(ring.take(12, Some(&filter), true).text, "err c\n");
    }
}
