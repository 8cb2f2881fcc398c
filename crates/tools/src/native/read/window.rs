//! A window of lines of a file that is read in chunks.

use std::fmt::Write as _;

use memchr::memchr;
use remuda_domain::error::{Error, Result};
use serde_json::{Value, json};

use crate::arguments::field;

pub(super) const DEFAULT_LINES: u64 = 2000;
/// The most bytes of one result, however long the lines are.
const MAX_SHOWN_BYTES: usize = 256 * 1024;
const MAX_LINE_CHARS: usize = 2000;
/// Buffered bytes of the current line: enough for `MAX_LINE_CHARS`.
const MAX_KEPT_BYTES: usize = MAX_LINE_CHARS * 4;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

#[derive(Debug)]
pub(super) struct Window {
    first: u64,
    limit: u64,
    /// Number of completed lines.
    lines: u64,
    shown: String,
    count: u64,
    /// A later line was omitted.
    truncated: bool,
    is_crlf: bool,
    line: Line,
    /// No bytes were read yet.
    at_start: bool,
}

/// The current, incomplete line.
#[derive(Debug, Default)]
struct Line {
    kept: Vec<u8>,
    bytes: usize,
}

impl Window {
    pub(super) fn new(first: u64, limit: u64) -> Self {
        let (shown, line) = (String::new(), Line::default());
        Self {
            first,
            limit,
            lines: 0,
            shown,
            count: 0,
            truncated: false,
            is_crlf: false,
            line,
            at_start: true,
        }
    }

    /// Whether no later line can be shown.
    pub(super) fn is_over(&self) -> bool {
        self.truncated
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        if std::mem::take(&mut self.at_start) {
            rest = rest.strip_prefix(BYTE_ORDER_MARK).unwrap_or(rest);
        }
        while let Some(end) = memchr(b'\n', rest) {
            self.line.add(&rest[..end]);
            self.end_line();
            rest = &rest[end + 1..];
        }
        self.line.add(rest);
    }

    /// Builds the tool result. `at_end`: the file was read completely.
    pub(super) fn finish(mut self, at_end: bool) -> Result<Value> {
        if at_end && self.line.bytes > 0 {
            self.end_line();
        }
        let total = self.lines;
        if at_end && self.first > total.max(1) {
            let message = format!("expected at most {total}, the number of lines");
            return Err(Error::invalid(field("offset"), message));
        }
        // NUL may occur after the sniffed range, and cannot be stored.
        let content =
            if self.shown.contains('\0') { self.shown.replace('\0', "\u{fffd}") } else { self.shown };
        let mut answer = json!({
            "content": content,
            "start_line": self.first,
            "lines": self.count,
            "total_lines": at_end.then_some(total),
            "truncated": self.truncated || !at_end,
        });
        if self.is_crlf {
            answer["line_ending"] = "\r\n".into();
        }
        Ok(answer)
    }

    fn end_line(&mut self) {
        self.lines += 1;
        let line = std::mem::take(&mut self.line);
        if self.lines < self.first {
            return;
        }
        // After one omitted line, all later lines are omitted.
        if self.truncated || self.count == self.limit || self.shown.len() >= MAX_SHOWN_BYTES {
            self.truncated = true;
            return;
        }
        self.is_crlf |= line.is_crlf();
        line.show(&mut self.shown, self.lines);
        self.count += 1;
    }
}

impl Line {
    fn add(&mut self, bytes: &[u8]) {
        let room = MAX_KEPT_BYTES.saturating_sub(self.kept.len()).min(bytes.len());
        self.kept.extend_from_slice(&bytes[..room]);
        self.bytes += bytes.len();
    }

    fn is_whole(&self) -> bool {
        self.kept.len() == self.bytes
    }

    fn is_crlf(&self) -> bool {
        self.is_whole() && self.kept.ends_with(b"\r")
    }

    fn show(&self, shown: &mut String, number: u64) {
        let ending = usize::from(self.is_crlf());
        let text = String::from_utf8_lossy(&self.kept[..self.kept.len() - ending]);
        let cut = text.char_indices().nth(MAX_LINE_CHARS).map(|(index, _)| index);
        let kept = &text[..cut.unwrap_or(text.len())];
        // Writing to a string cannot fail.
        let _infallible = write!(shown, "{number:>6}\t{kept}");
        if cut.is_some() || !self.is_whole() {
            let left_out = self.bytes.saturating_sub(ending + kept.len());
            let _infallible = write!(shown, " [… {left_out} bytes left out …]");
        }
        shown.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that the result does not depend on the chunk size.
    fn show(text: &[u8], first: u64, limit: u64) -> Value {
        let answers: Vec<Value> = [1, 2, 3, 7, text.len().max(1)]
            .map(|size| {
                let mut window = Window::new(first, limit);
                text.chunks(size).for_each(|chunk| window.push(chunk));
                window.finish(true).unwrap()
            })
            .into();
        // A byte order mark is searched only in the first chunk, which is never that small in practice.
        if !text.starts_with(BYTE_ORDER_MARK) {
            assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
        }
        answers.into_iter().next_back().unwrap()
    }

    #[test]
    fn lines_are_numbered_independent_of_chunks() {
        assert_eq!(show(b"", 1, 9)["content"], "");
        assert_eq!(show(b"a\nb", 1, 9)["content"], "     1\ta\n     2\tb\n");
        assert_eq!(show("é\n日本\n".as_bytes(), 2, 9)["content"], "     2\t日本\n");
        let answer = show(b"a\r\nb\r\n\r\n", 1, 9);
        assert_eq!(
            (answer["content"].as_str(), &answer["line_ending"]),
            (Some("     1\ta\n     2\tb\n     3\t\n"), &json!("\r\n"))
        );
        assert_eq!(show(b"a\rb\n", 1, 9)["content"], "     1\ta\rb\n");
        assert_eq!(show(b"\xef\xbb\xbfa\n", 1, 9)["content"], "     1\ta\n");
        assert_eq!(show(b"a\0b\xff\n", 1, 9)["content"], "     1\ta\u{fffd}b\u{fffd}\n");
    }

    #[test]
    fn window_is_truncated_only_if_more_lines_follow() {
        let answer = show(b"a\nb\nc\n", 2, 1);
        assert_eq!(
            (&answer["lines"], &answer["total_lines"], &answer["truncated"]),
            (&json!(1), &json!(3), &json!(true))
        );
        assert_eq!(show(b"a\nb\n", 2, 1)["truncated"], false);
    }

    #[test]
    fn partially_read_file_has_no_line_count() {
        let mut window = Window::new(1, 1);
        window.push(b"a\nb\nc");
        assert!(window.is_over());
        let answer = window.finish(false).unwrap();
        assert_eq!((&answer["total_lines"], &answer["truncated"]), (&Value::Null, &json!(true)));
    }
}
