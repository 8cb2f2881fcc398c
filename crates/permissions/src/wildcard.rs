//! Patterns with `*` and `?`, and texts of which a part cannot be told.
//!
//! `*` stands for anything, also for slashes, line breaks and nothing; `?` for one character. There is no escape.

/// Stands in a text for a part that cannot be told. A command has no such character of its own.
pub(crate) const ANY: char = '\0';

/// Whether a pattern fits all of a text. A trailing ` *` may also be missing: `ls *` fits `ls`.
///
/// The time is that of searching the text for each piece of the pattern once, from left to right.
#[must_use]
pub fn fits(pattern: &str, text: &str) -> bool {
    forms(pattern).any(|pattern| glob(pattern, '*', text, one))
}

/// Whether a pattern could fit a text, depending on what its [`ANY`] parts are.
pub(crate) fn may_fit(pattern: &str, text: &str) -> bool {
    if !text.contains(ANY) {
        return fits(pattern, text);
    }
    forms(pattern).any(|pattern| {
        if pattern.contains('*') {
            // Both can be stretched in the middle, so only their ends can disagree.
            let agree = |(in_pattern, in_text)| one(in_pattern, in_text);
            let start = |text: &'_ str, stop: char| -> Vec<char> {
                text.chars().take_while(|next| *next != stop).collect()
            };
            let end = |text: &'_ str, stop: char| -> Vec<char> {
                text.chars().rev().take_while(|next| *next != stop).collect()
            };
            start(pattern, '*').into_iter().zip(start(text, ANY)).all(agree)
                && end(pattern, '*').into_iter().zip(end(text, ANY)).all(agree)
        } else {
            glob(text, ANY, pattern, |in_text, in_pattern| one(in_pattern, in_text))
        }
    })
}

/// Whether one pattern fits whatever another one fits. It may miss that, but never claims it wrongly.
pub(crate) fn covers(wide: &str, narrow: &str) -> bool {
    let all = |narrow: &str| fits(wide, &narrow.replace('*', "\0"));
    forms(narrow).all(all)
}

/// Whether a pattern fits everything.
pub(crate) fn is_universal(pattern: &str) -> bool {
    !pattern.is_empty() && pattern.chars().all(|next| next == '*')
}

fn forms(pattern: &str) -> impl Iterator<Item = &str> {
    std::iter::once(pattern).chain(pattern.strip_suffix(" *"))
}

fn one(in_pattern: char, in_text: char) -> bool {
    in_text != ANY && (in_pattern == '?' || in_pattern == in_text)
}

/// The leftmost place of each piece leaves the most room for the next one, so nothing is ever tried twice.
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
