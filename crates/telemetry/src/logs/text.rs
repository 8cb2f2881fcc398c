//! Masks, truncates and escapes text for log lines.

use super::{
    fields::BoundedText,
    secrets::{self, MASK},
};

/// Bytes shown of a message, and of any other text.
pub(super) const MAX_MESSAGE: usize = 8 * 1024;
pub(super) const MAX_TEXT: usize = 4 * 1024;

/// Masks secrets and truncates to `limit`, plus a note with the number of missing bytes.
///
/// Secrets are searched in the whole recorded text before it is truncated, so that no part of a secret at the cut is shown.
pub(super) fn masked_and_truncated(text: &BoundedText, limit: usize) -> String {
    let all = text.start.as_str();
    let end =
        if text.missing == 0 && all.len() <= limit { all.len() } else { all.floor_char_boundary(limit) };
    let mut out = String::with_capacity(end + 32);
    let mut at = 0;
    for secret in secrets::find(all) {
        if secret.start >= end {
            break;
        }
        out.push_str(&all[at..secret.start]);
        out.push_str(MASK);
        at = secret.end;
    }
    if at < end {
        out.push_str(&all[at..end]);
    }
    let missing = (all.len() - end).saturating_add(text.missing);
    if missing > 0 {
        out.push_str(&format!("… ({missing} bytes more)"));
    }
    out
}

/// The same for a text outside of log lines.
pub(crate) fn masked(text: &str, limit: usize) -> String {
    masked_and_truncated(&BoundedText::new(text), limit)
}

/// Writes text with harmful characters escaped.
pub(super) fn push_clean(out: &mut String, text: &str) {
    for c in text.chars() {
        if is_harmful(c) { push_escape(out, c) } else { out.push(c) }
    }
}

/// Writes a JSON string that is also safe to display.
pub(super) fn push_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if is_harmful(c) => push_escape(out, c),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Writes a JSON escape.
fn push_escape(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c => {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}

/// Control characters (C0, DEL, C1), bidirectional controls, separators that break lines, and invisible tags.
pub(super) fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::{super::json::MAX_LINE, *};

    #[test]
    fn documented_limits_are_the_enforced_ones() {
        let docs = include_str!("../../../../docs/logging.md");
        let [message, text, line] = [MAX_MESSAGE, MAX_TEXT, MAX_LINE].map(|bytes| bytes / 1024);
        let expected = format!("at most {message} KiB, any other text {text} KiB, a line {line} KiB");
        assert!(docs.contains(&expected), "{expected}");
    }
}
