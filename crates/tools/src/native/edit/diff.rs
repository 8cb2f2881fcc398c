//! Unified diff of an edit.
//!
//! The replacements are known, so no comparison is needed: the affected lines are shown before and after.

use std::{fmt::Write as _, ops::Range};

use memchr::{memchr, memchr_iter, memrchr};

const CONTEXT_LINES: usize = 3;
/// Limits of a diff and of a line in it.
const MAX_BYTES: usize = 8 * 1024;
const MAX_LINE_CHARS: usize = 500;

/// Changed lines: their byte range in the old text, and the indexes of the replacements in them.
struct Block {
    lines: Range<usize>,
    replacements: Range<usize>,
}

/// The diff of replacing `length` bytes at each of `starts` by `new`.
pub(super) fn unified(old: &[u8], starts: &[usize], length: usize, new: &[u8]) -> String {
    let replacements = Replacements { old, starts, length, new };
    let mut diff = Diff::default();
    let (mut line, mut counted_to, mut moved) = (1, 0, 0_i64);
    for hunk in replacements.hunks() {
        if diff.is_full {
            break;
        }
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let from = lines_back(old, first.lines.start, CONTEXT_LINES);
        let to = lines_forward(old, last.lines.end, CONTEXT_LINES);
        line += count_lines(&old[counted_to..from]);
        counted_to = from;

        let mut body = Diff { text: String::new(), is_full: false, room: diff.room };
        let (mut before, mut after, mut shown_to) = (0, 0, from);
        for block in &hunk {
            let context = body.add(' ', &old[shown_to..block.lines.start]);
            let removed = body.add('-', &old[block.lines.clone()]);
            let added = body.add('+', &replacements.text_of(block));
            before += context + removed;
            after += context + added;
            shown_to = block.lines.end;
        }
        let context = body.add(' ', &old[shown_to..to]);
        (before, after) = (before + context, after + context);

        let at = |lines: usize, start: i64| if lines == 0 { start - 1 } else { start };
        let old_start = i64::try_from(line).unwrap_or(i64::MAX);
        let (old_at, new_at) = (at(before, old_start), at(after, old_start + moved));
        // Writing to a string cannot fail.
        let _infallible = write!(diff.text, "@@ -{old_at},{before} +{new_at},{after} @@\n{}", body.text);
        moved += i64::try_from(after).unwrap_or(0) - i64::try_from(before).unwrap_or(0);
        (diff.room, diff.is_full) = (body.room, body.is_full);
    }
    if diff.is_full {
        diff.text.push_str("[… the rest is left out …]\n");
    }
    diff.text
}

struct Replacements<'a> {
    old: &'a [u8],
    starts: &'a [usize],
    length: usize,
    new: &'a [u8],
}

impl Replacements<'_> {
    /// Groups blocks that are close enough to share a hunk.
    fn hunks(&self) -> Vec<Vec<Block>> {
        let mut hunks: Vec<Vec<Block>> = Vec::new();
        for (index, start) in self.starts.iter().enumerate() {
            let lines = self.lines_of(*start);
            if let Some(hunk) = hunks.last_mut()
                && let Some(last) = hunk.last_mut()
            {
                if lines.start < last.lines.end {
                    last.lines.end = last.lines.end.max(lines.end);
                    last.replacements.end = index + 1;
                    continue;
                }
                if count_lines(&self.old[last.lines.end..lines.start]) <= 2 * CONTEXT_LINES {
                    hunk.push(Block { lines, replacements: index..index + 1 });
                    continue;
                }
            }
            hunks.push(vec![Block { lines, replacements: index..index + 1 }]);
        }
        hunks
    }

    /// The whole lines that a replacement touches.
    fn lines_of(&self, start: usize) -> Range<usize> {
        let end = start + self.length;
        let from = memrchr(b'\n', &self.old[..start]).map_or(0, |newline| newline + 1);
        let ends_lines = |text: &[u8]| text.is_empty() || text.ends_with(b"\n");
        // Whole lines replaced by whole lines: the next line is unchanged.
        if from == start && ends_lines(&self.old[start..end]) && ends_lines(self.new) {
            return from..end;
        }
        from..lines_forward(self.old, end, 1)
    }

    fn text_of(&self, block: &Block) -> Vec<u8> {
        let (mut text, mut done) = (Vec::new(), block.lines.start);
        for start in &self.starts[block.replacements.clone()] {
            text.extend_from_slice(&self.old[done..*start]);
            text.extend_from_slice(self.new);
            done = start + self.length;
        }
        text.extend_from_slice(&self.old[done..block.lines.end]);
        text
    }
}

struct Diff {
    text: String,
    is_full: bool,
    room: usize,
}

impl Default for Diff {
    fn default() -> Self {
        Self { text: String::new(), is_full: false, room: MAX_BYTES }
    }
}

impl Diff {
    /// Adds lines while there is room. Returns the number of all lines.
    fn add(&mut self, sign: char, lines: &[u8]) -> usize {
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            if self.is_full {
                break;
            }
            let text = line.strip_suffix(b"\n").unwrap_or(line);
            let text = String::from_utf8_lossy(&text[..text.len().min(MAX_LINE_CHARS * 4)]);
            let mut shown: String = text.chars().take(MAX_LINE_CHARS).collect();
            if shown.len() < text.len() {
                shown.push('…');
            }
            // NUL cannot be stored.
            let shown = shown.replace('\0', "\u{fffd}");
            let end = if line.ends_with(b"\n") { "\n" } else { "\n\\ No newline at end of file\n" };
            let Some(room) = self.room.checked_sub(shown.len() + end.len() + 1) else {
                self.is_full = true;
                break;
            };
            self.room = room;
            self.text.push(sign);
            self.text.push_str(&shown);
            self.text.push_str(end);
        }
        count_lines(lines)
    }
}

/// Number of lines, including one without a terminator.
fn count_lines(text: &[u8]) -> usize {
    memchr_iter(b'\n', text).count() + usize::from(!text.is_empty() && !text.ends_with(b"\n"))
}

/// Start of the line that is `lines` lines before the one starting at `at`.
fn lines_back(text: &[u8], at: usize, lines: usize) -> usize {
    (0..lines).fold(at, |at, _| match at.checked_sub(1) {
        Some(newline) => memrchr(b'\n', &text[..newline]).map_or(0, |newline| newline + 1),
        None => 0,
    })
}

/// End of the `lines` lines that start at `at`.
fn lines_forward(text: &[u8], at: usize, lines: usize) -> usize {
    (0..lines).fold(at, |at, _| memchr(b'\n', &text[at..]).map_or(text.len(), |newline| at + newline + 1))
}

#[cfg(test)]
mod tests {
    use memchr::memmem;

    use super::*;

    fn diff(text: &str, old: &str, new: &str) -> String {
        let starts: Vec<usize> = memmem::find_iter(text.as_bytes(), old).collect();
        unified(text.as_bytes(), &starts, old.len(), new.as_bytes())
    }

    const TEN: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n";

    #[test]
    fn diff_shows_changed_lines_with_context() {
        assert_eq!(diff(TEN, "5", "five"), "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
        assert_eq!(diff(TEN, "5\n", ""), "@@ -2,7 +2,6 @@\n 2\n 3\n 4\n-5\n 6\n 7\n 8\n");
        assert_eq!(diff("a\nb\n", "a\n", "a"), "@@ -1,2 +1,1 @@\n-a\n-b\n+ab\n");
        assert_eq!(diff("a\nb\n", "b\n", "b\nc\n"), "@@ -1,2 +1,3 @@\n a\n-b\n+b\n+c\n");
        assert_eq!(
            diff("last", "last", "x"),
            "@@ -1,1 +1,1 @@\n-last\n\\ No newline at end of file\n+x\n\\ No newline at end of file\n"
        );
    }

    #[test]
    fn new_file_shows_only_added_lines() {
        assert_eq!(unified(b"", &[0], 0, b"a\nb\n"), "@@ -0,0 +1,2 @@\n+a\n+b\n");
    }

    #[test]
    fn only_close_changes_share_a_hunk() {
        assert_eq!(diff("x x\n", "x", "y"), "@@ -1,1 +1,1 @@\n-x x\n+y y\n");
        let text = format!("x\n{TEN}x\n{}x\n", &TEN[..4]);
        assert_eq!(
            diff(&text, "x\n", "y\ny\n"),
            "@@ -1,4 +1,5 @@\n-x\n+y\n+y\n 1\n 2\n 3\n\
             @@ -9,7 +10,9 @@\n 8\n 9\n 10\n-x\n+y\n+y\n 1\n 2\n-x\n+y\n+y\n"
        );
    }

    #[test]
    fn diff_size_is_bounded() {
        let many = diff(&"x\n\n\n\n\n\n\n\n".repeat(10_000), "x", "y");
        assert!(
            many.len() < 3 * MAX_BYTES && many.ends_with("[… the rest is left out …]\n"),
            "{}",
            many.len()
        );
        let wide = diff(&"x".repeat(100_000), "x", "y");
        assert!(wide.len() < 2 * MAX_BYTES, "{}", wide.len());
        assert!(!diff("a\0b", "a", "c").contains('\0'));
    }
}
