//! Text for people: removes control sequences from tool output, names, titles and failure messages.
//!
//! Terminals execute control sequences. Otherwise a tool could rename the window, move the cursor, forge lines that look like
//! output of this program, or reorder text with bidirectional controls.

use serde_json::Value;

const ESCAPE: char = '\u{1b}';

/// Removes escape sequences and control characters, except newlines and tabs.
#[must_use]
pub fn sanitize(text: &str) -> String {
    Sanitizer::default().push(text)
}

/// The same for text that arrives in pieces: an escape sequence may span several pieces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sanitizer(State);

/// The parser state: what the next character belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After an escape character.
    Escape,
    /// Parameters and intermediates, up to the final byte of a control sequence.
    Sequence,
    /// A control string, up to its terminator. A newline ends it too, so that it cannot hide all following text.
    String,
    /// After an escape character in a string.
    StringEscape,
}

impl Sanitizer {
    /// Returns the sanitized text of the next piece.
    pub fn push(&mut self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        for c in text.chars() {
            self.0 = self.0.next(c, &mut clean);
        }
        clean
    }
}

impl State {
    fn next(self, c: char, clean: &mut String) -> Self {
        match (self, c) {
            (Self::Escape, '[') => Self::Sequence,
            (Self::Escape, ']' | 'P' | 'X' | '^' | '_') => Self::String,
            (Self::Sequence, '\u{20}'..='\u{3f}') => Self::Sequence,
            (Self::Sequence, '\u{40}'..='\u{7e}') => Self::Text,
            (Self::StringEscape, '\\') => Self::Text,
            (Self::String | Self::StringEscape, '\u{7}' | '\u{9c}') => Self::Text,
            (Self::String | Self::StringEscape, ESCAPE) => Self::StringEscape,
            (Self::String | Self::StringEscape, c) if c != '\n' => Self::String,
            (_, ESCAPE) => Self::Escape,
            (_, '\u{9b}') => Self::Sequence,
            (_, '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}') => Self::String,
            (_, c) => {
                if matches!(c, '\n' | '\t') || !is_harmful(c) {
                    clean.push(c);
                }
                Self::Text
            }
        }
    }
}

/// Sanitizes text that must stay on one line, such as a table cell.
#[must_use]
pub fn one_line(text: &str) -> String {
    sanitize(text).replace(['\n', '\t'], " ")
}

/// A JSON document on one line. JSON escapes C0 control characters itself; this escapes the other harmful ones.
#[must_use]
pub fn json_text(value: &Value) -> String {
    let text = value.to_string();
    if !text.chars().any(is_harmful) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmful(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// A number with its noun: `1 line`, `2 lines`.
#[must_use]
pub fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Control characters (C0, DEL, C1), bidirectional controls, separators that break lines, and invisible tags.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_unchanged() {
        for text in ["", "hi\n\tthere\n", "日本語 é ✓ 👩‍👩‍👧", "[31m not an escape"] {
            assert_eq!(sanitize(text), text);
        }
    }

    #[test]
    fn escape_sequences_are_removed_completely() {
        assert_eq!(sanitize("a\u{1b}[31;1mred\u{1b}[0m b"), "ared b");
        assert_eq!(sanitize("\u{1b}]0;owned\u{7}title"), "title");
        assert_eq!(sanitize("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\"), "link");
        assert_eq!(sanitize("\u{1b}Pq data\u{1b}\\x"), "x");
        assert_eq!(sanitize("\u{9b}2Jx"), "x");
        assert_eq!(sanitize("\u{1b}cx"), "cx");
        assert_eq!(sanitize("\u{1b}"), "");
        assert_eq!(sanitize("\u{1b}[\u{1b}[31mx"), "x");
    }

    #[test]
    fn unterminated_control_string_hides_only_its_line() {
        assert_eq!(sanitize("a\u{1b}]0;never ends\nsecond line"), "a\nsecond line");
    }

    #[test]
    fn control_and_bidirectional_characters_are_removed() {
        assert_eq!(sanitize("10%\r20%\u{8}\u{0}\u{7f}\u{85}"), "10%20%");
        assert_eq!(sanitize("a\r\nb"), "a\nb");
        assert_eq!(sanitize("user\u{202e}txt.exe\u{2066}\u{200f}"), "usertxt.exe");
        assert_eq!(one_line("forged\n✓ completed\tx"), "forged ✓ completed x");
    }

    #[test]
    fn text_in_pieces_is_sanitized_like_the_whole() {
        let text = "a\u{1b}[31;1mred\u{1b}]0;owned\u{1b}\\title\u{1b}Pq\nb\u{9b}2Jx\u{1b}cé\u{202e}";
        for at in text.char_indices().map(|(at, _)| at) {
            let mut sanitizer = Sanitizer::default();
            let (head, tail) = text.split_at(at);
            let pieces = sanitizer.push(head) + &sanitizer.push(tail);
            assert_eq!(pieces, sanitize(text), "cut at {at}");
        }
    }

    #[test]
    fn no_harmful_character_is_kept() {
        for c in (0..=0x0f_ffff).filter_map(char::from_u32) {
            let text = sanitize(&format!("a{c}"));
            assert!(text.chars().all(|c| c == '\n' || c == '\t' || !is_harmful(c)), "{c:?}");
        }
    }

    #[test]
    fn only_one_takes_the_singular() {
        assert_eq!((counted(1, "line"), counted(0, "line")), ("1 line".to_owned(), "0 lines".to_owned()));
    }

    #[test]
    fn escaped_json_parses_to_the_same_value() {
        let value = serde_json::json!({ "t": "\u{1b}[31m\u{9b}x\u{202e}\u{e0041}é\n" });
        let text = json_text(&value);
        assert!(!text.chars().any(is_harmful), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
