//! Matches patterns with `*` and `?` against texts, which may have unknown parts.
//!
//! `*` matches any text, including slashes, line breaks and the empty text; `?` matches one character. There is no escape.

/// Represents an unknown part of a text. Commands cannot contain this character.
pub(crate) const ANY: char = '\0';

/// Whether a pattern matches a whole text. A trailing ` *` is optional: `ls *` matches `ls`.
///
/// Takes the time of one left-to-right search for each piece of the pattern.
#[must_use]
pub fn fits(pattern: &str, text: &str) -> bool {
    variants(pattern).any(|pattern| glob(pattern, '*', text, char_matches))
}

/// Whether a pattern could match a text, depending on its [`ANY`] parts.
pub(crate) fn may_fit(pattern: &str, text: &str) -> bool {
    if !text.contains(ANY) {
        return fits(pattern, text);
    }
    variants(pattern).any(|pattern| {
        if pattern.contains('*') {
            // Both can stretch in the middle, so only their ends can differ.
            let agree = |(in_pattern, in_text)| char_matches(in_pattern, in_text);
            let start = |text: &'_ str, stop: char| -> Vec<char> {
                text.chars().take_while(|next| *next != stop).collect()
            };
            let end = |text: &'_ str, stop: char| -> Vec<char> {
                text.chars().rev().take_while(|next| *next != stop).collect()
            };
            start(pattern, '*').into_iter().zip(start(text, ANY)).all(agree)
                && end(pattern, '*').into_iter().zip(end(text, ANY)).all(agree)
        } else {
            glob(text, ANY, pattern, |in_text, in_pattern| char_matches(in_pattern, in_text))
        }
    })
}

/// Whether one pattern matches everything that another one matches. May give false negatives, but no false positives.
pub(crate) fn covers(wide: &str, narrow: &str) -> bool {
    let all = |narrow: &str| fits(wide, &narrow.replace('*', "\0"));
    variants(narrow).all(all)
}

/// Whether a pattern matches everything.
pub(crate) fn is_universal(pattern: &str) -> bool {
    !pattern.is_empty() && pattern.chars().all(|next| next == '*')
}

fn variants(pattern: &str) -> impl Iterator<Item = &str> {
    std::iter::once(pattern).chain(pattern.strip_suffix(" *"))
}

fn char_matches(in_pattern: char, in_text: char) -> bool {
    in_text != ANY && (in_pattern == '?' || in_pattern == in_text)
}

/// Greedy: the leftmost match of each piece leaves the most text for the next one, so no backtracking is needed.
fn glob(pattern: &str, star: char, text: &str, same: fn(char, char) -> bool) -> bool {
    let mut pieces = pattern.split(star);
    let Some(mut rest) = after_start(pieces.next().unwrap_or_default(), text, same) else { return false };
    let Some(last) = pieces.next_back() else { return rest.is_empty() };
    for piece in pieces.filter(|piece| !piece.is_empty()) {
        match after(piece, rest, same) {
            Some(behind) => rest = behind,
            None => return false,
        }
    }
    let mut behind = rest.chars().rev();
    last.chars().rev().all(|wanted| behind.next().is_some_and(|next| same(wanted, next)))
}

fn after_start<'a>(piece: &str, text: &'a str, same: fn(char, char) -> bool) -> Option<&'a str> {
    let mut rest = text.chars();
    piece.chars().all(|wanted| rest.next().is_some_and(|next| same(wanted, next))).then_some(rest.as_str())
}

fn after<'a>(piece: &str, text: &'a str, same: fn(char, char) -> bool) -> Option<&'a str> {
    if piece.contains('?') || text.contains('?') {
        return text.char_indices().find_map(|(at, _)| after_start(piece, &text[at..], same));
    }
    text.find(piece).map(|at| &text[at + piece.len()..])
}
