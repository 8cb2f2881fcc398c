//! What a search has found so far.

use std::{io, ops::ControlFlow};

use grep_searcher::{Searcher, Sink, SinkContext, SinkFinish, SinkMatch};

use super::bounds::Bounds;
use crate::search::{GrepMatch, GrepMode, MAX_ANSWER_BYTES};

/// How much of a line is shown.
const MAX_SHOWN_BYTES: usize = 4096;

/// The part of the answer that was asked for.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) matches: Vec<GrepMatch>,
    /// There is more.
    pub(super) truncated: bool,
    to_skip: usize,
    limit: usize,
    bytes: usize,
}

/// A state to return to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    matches: usize,
    truncated: bool,
    to_skip: usize,
    bytes: usize,
}

impl Collected {
    pub(super) fn new(to_skip: usize, limit: usize) -> Self {
        Self { matches: Vec::new(), truncated: false, to_skip, limit, bytes: 0 }
    }

    /// Takes one more, or says that there is no room.
    pub(super) fn add(&mut self, found: GrepMatch) -> ControlFlow<()> {
        if self.to_skip > 0 {
            self.to_skip -= 1;
            return ControlFlow::Continue(());
        }
        // Roughly what it takes as JSON.
        let bytes = found.path.len() + found.text.len() + 64;
        if self.matches.len() == self.limit || self.bytes + bytes > MAX_ANSWER_BYTES {
            self.truncated = true;
            return ControlFlow::Break(());
        }
        self.bytes += bytes;
        self.matches.push(found);
        ControlFlow::Continue(())
    }

    pub(super) fn mark(&self) -> Mark {
        let Self { matches, truncated, to_skip, bytes, .. } = self;
        Mark { matches: matches.len(), truncated: *truncated, to_skip: *to_skip, bytes: *bytes }
    }

    pub(super) fn back_to(&mut self, mark: Mark) {
        self.matches.truncate(mark.matches);
        (self.truncated, self.to_skip, self.bytes) = (mark.truncated, mark.to_skip, mark.bytes);
    }
}

/// Receives what is found in one file.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    pub(super) path: String,
    /// Matching lines; no more than one is looked for if only the file's name is wanted.
    pub(super) count: u64,
    pub(super) is_binary: bool,
    mode: GrepMode,
    bounds: &'a Bounds,
    collected: &'a mut Collected,
}

impl<'a> Lines<'a> {
    pub(super) fn new(
        path: String,
        mode: GrepMode,
        bounds: &'a Bounds,
        collected: &'a mut Collected,
    ) -> Self {
        Self { path, count: 0, is_binary: false, mode, bounds, collected }
    }

    fn add(&mut self, line: Option<u64>, context: bool, bytes: &[u8]) -> bool {
        let found = GrepMatch { path: self.path.clone(), line, context, text: shown(bytes) };
        self.collected.add(found).is_continue() && self.bounds.go_on()
    }
}

impl Sink for Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let mut number = found.line_number();
        for line in found.lines() {
            self.count += 1;
            let go_on = match self.mode {
                GrepMode::Content => self.add(number, false, line),
                GrepMode::FilesWithMatches => false,
                GrepMode::Count => true,
            };
            if !go_on {
                return Ok(false);
            }
            number = number.map(|number| number + 1);
        }
        Ok(true)
    }

    fn context(&mut self, _searcher: &Searcher, found: &SinkContext<'_>) -> io::Result<bool> {
        Ok(self.add(found.line_number(), true, found.bytes()))
    }

    fn finish(&mut self, _searcher: &Searcher, end: &SinkFinish) -> io::Result<()> {
        self.is_binary = end.binary_byte_offset().is_some();
        Ok(())
    }
}

/// A line as text, without its end, and not too much of it.
fn shown(bytes: &[u8]) -> String {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    if bytes.len() <= MAX_SHOWN_BYTES {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    // Not within a character.
    let cut = (0..=MAX_SHOWN_BYTES).rev().find(|cut| bytes[*cut] & 0xc0 != 0x80).unwrap_or(MAX_SHOWN_BYTES);
    format!("{} [… {} bytes left out …]", String::from_utf8_lossy(&bytes[..cut]), bytes.len() - cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shown_without_their_end() {
        assert_eq!(shown(b"a b\r\n"), "a b");
        assert_eq!(shown(b"caf\xe9"), "caf\u{fffd}");
        let long = "é".repeat(3000);
        let text = shown(long.as_bytes());
        assert!(text.ends_with("é [… 1904 bytes left out …]"), "{}", &text[text.len() - 40..]);
    }

    #[test]
    fn a_part_is_collected_and_taken_back() {
        let found =
            |text: &str| GrepMatch { path: "p".into(), line: None, context: false, text: text.into() };
        let mut collected = Collected::new(1, 2);
        let mark = collected.mark();
        for text in ["skipped", "one", "two"] {
            assert!(collected.add(found(text)).is_continue());
        }
        assert!(!collected.truncated);
        assert!(collected.add(found("three")).is_break() && collected.truncated);
        assert_eq!(collected.matches, [found("one"), found("two")]);
        collected.back_to(mark);
        assert!(collected.matches.is_empty() && !collected.truncated && collected.to_skip == 1);
        let mut collected = Collected::new(0, usize::MAX);
        let text = "x".repeat(100_000);
        let added = (0..100).take_while(|_| collected.add(found(&text)).is_continue()).count();
        assert_eq!(added, 10);
    }
}
