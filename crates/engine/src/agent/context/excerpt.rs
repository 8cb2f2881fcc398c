//! Bounded excerpts of texts: the beginning, the end, and how much was left out.

use super::tokens::weight;

/// Space for the note about the omission, in quarters of a token.
const NOTE_QUARTERS: u64 = 48;

/// At most `limit` characters of a text, two thirds of them from its beginning.
pub(super) fn excerpt(text: &str, limit: usize) -> String {
    bounded(text, limit as u64, 0, |_| 1)
}

/// At most `tokens` estimated tokens of a text, two thirds of them from its beginning.
pub(super) fn within_tokens(text: &str, tokens: u64) -> String {
    bounded(text, tokens.saturating_mul(4), NOTE_QUARTERS, weight)
}

fn bounded(text: &str, limit: u64, note: u64, weight: impl Fn(char) -> u64) -> String {
    if text.chars().map(&weight).sum::<u64>() <= limit {
        return text.to_owned();
    }
    let limit = limit.saturating_sub(note);
    let take = |limit: u64, characters: &mut dyn Iterator<Item = char>| {
        let mut taken = 0;
        let fitting = characters.take_while(|character| {
            taken += weight(*character);
            taken <= limit
        });
        fitting.map(char::len_utf8).sum::<usize>()
    };
    let head = take(limit - limit / 3, &mut text.chars());
    let tail = text.len() - take(limit / 3, &mut text[head..].chars().rev());
    let omitted = text[head..tail].chars().count();
    format!("{}\n[… {omitted} characters left out …]\n{}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod unit {
    use super::*;
    use crate::agent::context::tokens;

    #[test]
    fn excerpt_keeps_both_ends() {
        for (text, limit, expected) in [
            ("abc", 3, "abc"),
            ("abcdefghij", 6, "abcd\n[… 4 characters left out …]\nij"),
            ("äöüßäöüßäö", 3, "äö\n[… 7 characters left out …]\nö"),
            ("abc", 0, "\n[… 3 characters left out …]\n"),
        ] {
            assert_eq!(excerpt(text, limit), expected);
        }
    }

    #[test]
    fn excerpt_stays_within_the_token_limit() {
        for text in ["word ".repeat(1000), "日本".repeat(1000), "мир ".repeat(1000)] {
            for limit in [12, 50, 500] {
                let kept = within_tokens(&text, limit);
                assert!(tokens::text(&kept) <= limit, "{limit}: {}", tokens::text(&kept));
                assert!(kept.contains("left out"));
            }
            assert_eq!(within_tokens(&text, 9999), text);
        }
    }
}
