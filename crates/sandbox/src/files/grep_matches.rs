//! Collects the matches of a grep.

use std::{io, ops::ControlFlow};

use grep_searcher::{Searcher, Sink, SinkContext, SinkFinish, SinkMatch};

use super::search_limits::SearchLimits;
use crate::search_query::{GrepMatch, GrepMode, MAX_RESULT_BYTES};

/// The most bytes of a line in a result.
const MAX_SHOWN_BYTES: usize = 4096;

/// The requested page of the matches.
#[derive(Debug)]
pub(super) struct MatchCollector {
    pub(super) matches: Vec<GrepMatch>,
    /// There are more matches.
    pub(super) truncated: bool,
    to_skip: usize,
    limit: usize,
    bytes: usize,
}

/// A state that can be restored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checkpoint {
    matches: usize,
    truncated: bool,
    to_skip: usize,
    bytes: usize,
}

impl MatchCollector {
    pub(super) fn new(to_skip: usize, limit: usize) -> Self {
        Self { matches: Vec::new(), truncated: false, to_skip, limit, bytes: 0 }
    }

    /// Adds a match. Breaks if the limit is reached.
    pub(super) fn add(&mut self, found: GrepMatch) -> ControlFlow<()> {
        if self.to_skip > 0 {
            self.to_skip -= 1;
            return ControlFlow::Continue(());
        }
        // Roughly its size as JSON.
        let bytes = found.path.len() + found.text.len() + 64;
        if self.matches.len() == self.limit || self.bytes + bytes > MAX_RESULT_BYTES {
            self.truncated = true;
            return ControlFlow::Break(());
        }
        self.bytes += bytes;
        self.matches.push(found);
        ControlFlow::Continue(())
    }

    pub(super) fn checkpoint(&self) -> Checkpoint {
        let Self { matches, truncated, to_skip, bytes, .. } = self;
        Checkpoint { matches: matches.len(), truncated: *truncated, to_skip: *to_skip, bytes: *bytes }
    }

    pub(super) fn restore(&mut self, checkpoint: Checkpoint) {
        self.matches.truncate(checkpoint.matches);
        (self.truncated, self.to_skip, self.bytes) =
            (checkpoint.truncated, checkpoint.to_skip, checkpoint.bytes);
    }
}

/// Receives the matches of one file.
#[derive(Debug)]
pub(super) struct FileSink<'a> {
    pub(super) path: String,
    /// Number of matching lines; at most one if only the file's name is needed.
    pub(super) count: u64,
    pub(super) is_binary: bool,
    mode: GrepMode,
    limits: &'a SearchLimits,
    collected: &'a mut MatchCollector,
}

impl<'a> FileSink<'a> {
    pub(super) fn new(
        path: String,
        mode: GrepMode,
        limits: &'a SearchLimits,
        collected: &'a mut MatchCollector,
    ) -> Self {
        Self { path, count: 0, is_binary: false, mode, limits, collected }
    }

    fn add(&mut self, line: Option<u64>, context: bool, bytes: &[u8]) -> bool {
        let found = GrepMatch { path: self.path.clone(), line, context, text: display_line(bytes) };
        self.collected.add(found).is_continue() && self.limits.may_continue()
    }
}

impl Sink for FileSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let mut number = found.line_number();
        for line in found.lines() {
            self.count += 1;
            let may_continue = match self.mode {
                GrepMode::Content => self.add(number, false, line),
                GrepMode::FilesWithMatches => false,
                GrepMode::Count => true,
            };
            if !may_continue {
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

/// A line as text, without its terminator, truncated.
fn display_line(bytes: &[u8]) -> String {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    if bytes.len() <= MAX_SHOWN_BYTES {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    // Cut at a character boundary.
    let cut = (0..=MAX_SHOWN_BYTES).rev().find(|cut| bytes[*cut] & 0xc0 != 0x80).unwrap_or(MAX_SHOWN_BYTES);
    format!("{} [… {} bytes left out …]", String::from_utf8_lossy(&bytes[..cut]), bytes.len() - cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shown_without_terminator_and_truncated() {
        assert_eq!(display_line(b"a b\r\n"), "a b");
        assert_eq!(display_line(b"caf\xe9"), "caf\u{fffd}");
        let long = "é".repeat(3000);
        let text = display_line(long.as_bytes());
        assert!(text.ends_with("é [… 1904 bytes left out …]"), "{}", &text[text.len() - 40..]);
    }

    #[test]
    fn matches_are_paged_limited_and_restored() {
        let found =
            |text: &str| GrepMatch { path: "p".into(), line: None, context: false, text: text.into() };
        let mut collected = MatchCollector::new(1, 2);
        let checkpoint = collected.checkpoint();
        for text in ["skipped", "one", "two"] {
            assert!(collected.add(found(text)).is_continue());
        }
        assert!(!collected.truncated);
        assert!(collected.add(found("three")).is_break() && collected.truncated);
        assert_eq!(collected.matches, [found("one"), found("two")]);
        collected.restore(checkpoint);
        assert!(collected.matches.is_empty() && !collected.truncated && collected.to_skip == 1);
        let mut collected = MatchCollector::new(0, usize::MAX);
        let text = "x".repeat(100_000);
        let added = (0..100).take_while(|_| collected.add(found(&text)).is_continue()).count();
        assert_eq!(added, 10);
    }
}
