//! Parses words: quotes, globs and brace expansion.

use super::{ParseResult, Unparsable, Word, assignment, list::Terminator, parser::Parser, variables};
use crate::wildcard::ANY;

/// A word under construction, with the positions of globs and braces.
#[derive(Default)]
struct WordBuilder {
    text: String,
    /// The position of an open brace, and whether it has alternatives.
    brace: Option<(usize, bool)>,
    bracket: Option<usize>,
    /// From here on, the text depends on files or expands to several words.
    unknown_from: Option<usize>,
}

impl WordBuilder {
    fn unquoted(&mut self, next: char) {
        let at = self.text.len();
        match next {
            '*' | '?' => {
                self.text.push(ANY);
                return;
            }
            '[' => self.bracket = self.bracket.or(Some(at)),
            ']' => self.mark_unknown_from(self.bracket),
            '{' => self.brace = self.brace.or(Some((at, false))),
            ',' => self.brace = self.brace.map(|(at, _)| (at, true)),
            '}' => {
                let alternatives =
                    self.brace.filter(|(at, several)| *several || self.text[*at..].contains(".."));
                self.mark_unknown_from(alternatives.map(|(at, _)| at));
                self.brace = None;
            }
            _ => {}
        }
        self.text.push(next);
    }

    fn mark_unknown_from(&mut self, at: Option<usize>) {
        self.unknown_from = match (self.unknown_from, at) {
            (Some(before), Some(at)) => Some(before.min(at)),
            (before, at) => before.or(at),
        };
    }

    fn finish(mut self) -> String {
        if let Some(at) = self.unknown_from {
            self.text.truncate(at);
            self.text.push(ANY);
        }
        self.text
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(|next| next.is_ascii_alphanumeric() || next == '_')
}

impl Parser<'_> {
    /// Whether a process substitution begins here, which is a word and not a redirection.
    pub(super) fn at_process(&mut self) -> bool {
        self.ahead("<(") || self.ahead(">(")
    }

    pub(super) fn word(&mut self) -> ParseResult<Word> {
        self.peek();
        let start = self.at;
        let mut builder = WordBuilder::default();
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' | '\n' | ';' | '&' | '|' | ')' => break,
                '<' | '>' => {
                    if !self.at_process() {
                        break;
                    }
                    self.process()?;
                    builder.text.push(ANY);
                }
                '(' => {
                    let written = self.slice(start);
                    if !(written.ends_with('=') && assignment(&written).is_some()) {
                        break;
                    }
                    self.at += 1;
                    self.deeper(Self::array)?;
                    builder.text.push(ANY);
                }
                '[' if is_name(&builder.text) && self.at_strange_index() => return Err(Unparsable),
                '\'' => self.single_quotes(&mut builder.text)?,
                '"' => self.double_quotes(&mut builder.text)?,
                '`' => {
                    self.backticks(false)?;
                    builder.text.push(ANY);
                }
                '$' => self.dollar(&mut builder.text, false)?,
                '\\' => {
                    self.at += 1;
                    builder.text.extend(self.take_raw());
                }
                _ => {
                    self.at += 1;
                    builder.unquoted(next);
                }
            }
        }
        if self.at == start {
            return Err(Unparsable);
        }
        let raw = self.slice(start).replace("\\\n", "");
        self.analysis.has_runnable_text |= variables::runs_when_evaluated(&builder.text);
        Ok(Word { text: builder.finish(), raw })
    }

    /// Parses `<(…)` or `>(…)`.
    pub(super) fn process(&mut self) -> ParseResult {
        self.at += 1;
        self.substitution()
    }

    /// Parses a list in parentheses within a word. Here-documents outside of it stay pending until it ends.
    pub(super) fn substitution(&mut self) -> ParseResult {
        self.eat("(");
        let start = self.at;
        let outside = std::mem::take(&mut self.pending);
        self.list(Terminator::Parenthesis)?;
        let unfinished = !self.pending.is_empty();
        if unfinished || (!outside.is_empty() && self.slice(start).contains('\n')) {
            return Err(Unparsable);
        }
        self.pending = outside;
        Ok(())
    }

    /// Parses the words of an array up to its `)`.
    fn array(&mut self) -> ParseResult {
        loop {
            self.skip_blanks();
            match self.peek().ok_or(Unparsable)? {
                ')' => {
                    self.at += 1;
                    return Ok(());
                }
                '\n' if self.pending.is_empty() => self.at += 1,
                '#' => self.skip_comment(),
                _ => {
                    let word = self.word()?;
                    self.analysis.evaluates_arithmetic |= word.raw.starts_with('[');
                }
            }
        }
    }

    pub(super) fn single_quotes(&mut self, text: &mut String) -> ParseResult {
        self.at += 1;
        loop {
            match self.take_raw().ok_or(Unparsable)? {
                '\'' => return Ok(()),
                next => text.push(next),
            }
        }
    }

    pub(super) fn double_quotes(&mut self, text: &mut String) -> ParseResult {
        self.at += 1;
        self.deeper(|parser| {
            loop {
                match parser.peek().ok_or(Unparsable)? {
                    '"' => {
                        parser.at += 1;
                        return Ok(());
                    }
                    '`' => {
                        parser.backticks(true)?;
                        text.push(ANY);
                    }
                    '$' => parser.dollar(text, true)?,
                    '\\' => {
                        parser.at += 1;
                        let next = parser.take_raw().ok_or(Unparsable)?;
                        if !matches!(next, '$' | '`' | '"' | '\\') {
                            text.push('\\');
                        }
                        text.push(next);
                    }
                    next => {
                        parser.at += 1;
                        text.push(next);
                    }
                }
            }
        })
    }
}
