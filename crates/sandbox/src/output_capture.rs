//! Bounded capture of output: the beginning, the end, and the count of bytes omitted between.

use std::collections::VecDeque;

/// The captured output of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedOutput {
    /// Bytes that are not UTF-8, and NUL (which PostgreSQL cannot store), are replaced by U+FFFD. Where
    /// output was omitted, a line says how much.
    pub text: String,
    /// Whether output is missing.
    pub truncated: bool,
    /// Bytes that the command wrote, captured or not.
    pub total_bytes: u64,
    /// Workspace file with the complete output, up to the spill limit.
    pub artifact: Option<String>,
}

/// Keeps the first and the last `limit / 2` bytes.
#[derive(Debug)]
pub(crate) struct OutputCapture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    total: u64,
}

impl OutputCapture {
    pub(crate) fn new(limit: usize) -> Self {
        let tail_limit = limit / 2;
        Self { head: Vec::new(), tail: VecDeque::new(), head_limit: limit - tail_limit, tail_limit, total: 0 }
    }

    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.total += chunk.len() as u64;
        let (head, rest) = chunk.split_at(chunk.len().min(self.head_limit - self.head.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(self.tail_limit)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// Whether the chunk fits without omitting bytes.
    pub(crate) fn fits(&self, chunk: &[u8]) -> bool {
        self.total + chunk.len() as u64 <= (self.head_limit + self.tail_limit) as u64
    }

    /// The bytes captured so far.
    pub(crate) fn bytes_so_far(&self) -> Vec<u8> {
        self.head.iter().chain(&self.tail).copied().collect()
    }

    /// `complete` is false if the stream was abandoned before its end.
    pub(crate) fn finish(self, complete: bool) -> CapturedOutput {
        let Self { mut head, tail, total, .. } = self;
        let tail = Vec::from(tail);
        let omitted = total - head.len() as u64 - tail.len() as u64;
        if omitted == 0 {
            head.extend_from_slice(&tail);
            return CapturedOutput {
                text: printable(&head),
                truncated: !complete,
                total_bytes: total,
                artifact: None,
            };
        }
        // Characters split at the gap are omitted rather than shown as broken.
        let head = &head[..whole_prefix(&head)];
        let tail = &tail[broken_start(&tail)..];
        let omitted = total - head.len() as u64 - tail.len() as u64;
        let text = format!("{}\n[… {omitted} bytes left out …]\n{}", printable(head), printable(tail));
        CapturedOutput { text, truncated: true, total_bytes: total, artifact: None }
    }
}

fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text.into_owned() }
}

/// Length without an incomplete character at the end.
fn whole_prefix(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let start = bytes.len() - back;
        let width = match bytes[start] {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => return bytes.len(),
        };
        return if width > back { start } else { bytes.len() };
    }
    bytes.len()
}

/// Length of the rest of a split character at the start.
fn broken_start(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|byte| matches!(byte, 0x80..=0xbf)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(limit: usize, chunks: &[&[u8]]) -> CapturedOutput {
        let mut capture = OutputCapture::new(limit);
        for chunk in chunks {
            capture.push(chunk);
        }
        capture.finish(true)
    }

    #[test]
    fn short_output_is_kept_whole() {
        let captured = capture(8, &[b"abc", b"defgh"]);
        assert_eq!(
            captured,
            CapturedOutput { text: "abcdefgh".into(), truncated: false, total_bytes: 8, artifact: None }
        );
    }

    #[test]
    fn long_output_keeps_both_ends_and_counts_the_rest() {
        for chunk in [1, 3, 26] {
            let chunks: Vec<&[u8]> = b"abcdefghijklmnopqrstuvwxyz".chunks(chunk).collect();
            let captured = capture(8, &chunks);
            assert_eq!(captured.text, "abcd\n[… 18 bytes left out …]\nwxyz");
            assert_eq!((captured.truncated, captured.total_bytes), (true, 26));
        }
    }

    #[test]
    fn characters_split_across_chunks_survive_and_across_the_gap_are_omitted() {
        assert_eq!(capture(8, &[&[0xc3], &[0xa9]]).text, "é");
        let captured = capture(8, &["aééééééb".as_bytes()]);
        assert_eq!(captured.text, "aé\n[… 8 bytes left out …]\néb");
        assert!(!captured.text.contains('\u{fffd}'));
    }

    #[test]
    fn nul_and_invalid_bytes_become_replacement_characters() {
        assert_eq!(capture(64, &[b"a\0b\xffc"]).text, "a\u{fffd}b\u{fffd}c");
        assert_eq!(capture(0, &[b"abc"]).total_bytes, 3);
    }
}
