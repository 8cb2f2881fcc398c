//! Makes text of others safe to show: tool output, names, titles, failure messages.
//!
//! A terminal obeys what it is sent. Without this a tool could rename the window, move the cursor, forge lines that look
//! like ours, or turn text around with bidirectional controls.

use serde_json::Value;

const ESCAPE: char = '\u{1b}';

/// Drops escape sequences and control characters. Line ends and tabs stay.
pub(crate) fn sanitize(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\n' | '\t' => clean.push(c),
            ESCAPE => match rest.next_if(|next| matches!(next, '[' | ']' | 'P' | 'X' | '^' | '_')) {
                Some('[') => skip_sequence(&mut rest),
                Some(_) => skip_string(&mut rest),
                None => {}
            },
            '\u{9b}' => skip_sequence(&mut rest),
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => skip_string(&mut rest),
            c if is_harmful(c) => {}
            c => clean.push(c),
        }
    }
    clean
}

/// The same for text that must stay on one line, such as a cell of a table.
pub(crate) fn one_line(text: &str) -> String {
    sanitize(text).replace(['\n', '\t'], " ")
}

/// A document on one line. JSON escapes the old control characters itself; this adds the rest.
pub(crate) fn json_text(value: &Value) -> String {
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

/// Parameters and intermediates up to the final byte of a control sequence.
fn skip_sequence(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while rest.next_if(|c| matches!(c, '\u{20}'..='\u{3f}')).is_some() {}
    let _final_byte = rest.next_if(|c| matches!(c, '\u{40}'..='\u{7e}'));
}

/// A string for the terminal up to its terminator. A line end stops it too, so that text cannot swallow all that follows.
fn skip_string(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while let Some(c) = rest.next_if(|c| *c != '\n') {
        match c {
            '\u{7}' | '\u{9c}' => return,
            ESCAPE if rest.next_if_eq(&'\\').is_some() => return,
            _ => {}
        }
    }
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
    fn plain_text_stays() {
        for text in ["", "hi\n\tthere\n", "日本語 é ✓ 👩‍👩‍👧", "[31m not an escape"] {
            assert_eq!(sanitize(text), text);
        }
    }

    #[test]
    fn escape_sequences_go_as_a_whole() {
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
    fn an_unfinished_string_hides_only_its_line() {
        assert_eq!(sanitize("a\u{1b}]0;never ends\nsecond line"), "a\nsecond line");
    }

    #[test]
    fn controls_and_reordering_go() {
        assert_eq!(sanitize("10%\r20%\u{8}\u{0}\u{7f}\u{85}"), "10%20%");
        assert_eq!(sanitize("a\r\nb"), "a\nb");
        assert_eq!(sanitize("user\u{202e}txt.exe\u{2066}\u{200f}"), "usertxt.exe");
        assert_eq!(one_line("forged\n✓ completed\tx"), "forged ✓ completed x");
    }

    #[test]
    fn nothing_harmful_survives() {
        for c in (0..=0x0f_ffff).filter_map(char::from_u32) {
            let text = sanitize(&format!("a{c}"));
            assert!(text.chars().all(|c| c == '\n' || c == '\t' || !is_harmful(c)), "{c:?}");
        }
    }

    #[test]
    fn json_keeps_its_meaning() {
        let value = serde_json::json!({ "t": "\u{1b}[31m\u{9b}x\u{202e}\u{e0041}é\n" });
        let text = json_text(&value);
        assert!(!text.chars().any(is_harmful), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
