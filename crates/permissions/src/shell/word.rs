//! Words: quotes, and what the shell makes of what is not quoted.

use super::{Found, Lost, Word, assignment, cursor::Reader, list::End, variables};
use crate::wildcard::ANY;

/// A word in the making, with the places where it stops being what is written.
#[derive(Default)]
struct Text {
    text: String,
    /// A brace that was opened, and whether it has alternatives.
    brace: Option<(usize, bool)>,
    bracket: Option<usize>,
    /// Everything from here depends on files or stands for several words.
    open: Option<usize>,
}

impl Text {
    fn unquoted(&mut self, next: char) {
        let at = self.text.len();
        match next {
            '*' | '?' => {
                self.text.push(ANY);
                return;
            }
            '[' => self.bracket = self.bracket.or(Some(at)),
            ']' => self.open_from(self.bracket),
            '{' => self.brace = self.brace.or(Some((at, false))),
            ',' => self.brace = self.brace.map(|(at, _)| (at, true)),
            '}' => {
                let alternatives =
                    self.brace.filter(|(at, several)| *several || self.text[*at..].contains(".."));
                self.open_from(alternatives.map(|(at, _)| at));
                self.brace = None;
            }
            _ => {}
        }
        self.text.push(next);
    }

    fn open_from(&mut self, at: Option<usize>) {
        self.open = match (self.open, at) {
            (Some(before), Some(at)) => Some(before.min(at)),
            (before, at) => before.or(at),
        };
    }

    fn finish(mut self) -> String {
        if let Some(at) = self.open {
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

impl Reader<'_> {
    /// Whether a substitution of a process begins here, which is a word and no redirection.
    pub(super) fn at_process(&mut self) -> bool {
        self.ahead("<(") || self.ahead(">(")
    }

    pub(super) fn word(&mut self) -> Found<Word> {
        self.peek();
        let start = self.at;
        let mut text = Text::default();
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' | '\n' | ';' | '&' | '|' | ')' => break,
                '<' | '>' => {
                    if !self.at_process() {
                        break;
                    }
                    self.process()?;
                    text.text.push(ANY);
                }
                '(' => {
                    let written = self.slice(start);
                    if !(written.ends_with('=') && assignment(&written).is_some()) {
                        break;
                    }
                    self.at += 1;
                    self.deeper(Self::array)?;
                    text.text.push(ANY);
                }
                '[' if is_name(&text.text) && self.at_strange_index() => return Err(Lost),
                '\'' => self.single_quotes(&mut text.text)?,
                '"' => self.double_quotes(&mut text.text)?,
                '`' => {
                    self.backticks(false)?;
                    text.text.push(ANY);
                }
                '$' => self.dollar(&mut text.text, false)?,
                '\\' => {
                    self.at += 1;
                    text.text.extend(self.take_raw());
                }
                _ => {
                    self.at += 1;
                    text.unquoted(next);
                }
            }
        }
        if self.at == start {
            return Err(Lost);
        }
        let raw = self.slice(start).replace("\\\n", "");
        self.found.loaded |= variables::is_loaded(&text.text);
        Ok(Word { text: text.finish(), raw })
    }

    /// `<(…)` or `>(…)`.
    pub(super) fn process(&mut self) -> Found {
        self.at += 1;
        self.substitution()
    }

    /// A list in parentheses that stands within a word. Here-documents outside of it wait until it ends.
    pub(super) fn substitution(&mut self) -> Found {
        self.eat("(");
        let start = self.at;
        let outside = std::mem::take(&mut self.pending);
        self.list(End::Parenthesis)?;
        let unfinished = !self.pending.is_empty();
        if unfinished || (!outside.is_empty() && self.slice(start).contains('\n')) {
            return Err(Lost);
        }
        self.pending = outside;
        Ok(())
    }

    /// The words of an array up to its `)`.
    fn array(&mut self) -> Found {
        loop {
            self.skip_blanks();
            match self.peek().ok_or(Lost)? {
                ')' => {
                    self.at += 1;
                    return Ok(());
                }
                '\n' if self.pending.is_empty() => self.at += 1,
                '#' => self.skip_comment(),
                _ => {
                    let word = self.word()?;
                    self.found.computes |= word.raw.starts_with('[');
                }
            }
        }
    }

    pub(super) fn single_quotes(&mut self, text: &mut String) -> Found {
        self.at += 1;
        loop {
            match self.take_raw().ok_or(Lost)? {
                '\'' => return Ok(()),
                next => text.push(next),
            }
        }
    }

    pub(super) fn double_quotes(&mut self, text: &mut String) -> Found {
        self.at += 1;
        self.deeper(|reader| {
            loop {
                match reader.peek().ok_or(Lost)? {
                    '"' => {
                        reader.at += 1;
                        return Ok(());
                    }
                    '`' => {
                        reader.backticks(true)?;
                        text.push(ANY);
                    }
                    '$' => reader.dollar(text, true)?,
                    '\\' => {
                        reader.at += 1;
                        let next = reader.take_raw().ok_or(Lost)?;
                        if !matches!(next, '$' | '`' | '"' | '\\') {
                            text.push('\\');
                        }
                        text.push(next);
                    }
                    next => {
                        reader.at += 1;
                        text.push(next);
                    }
                }
            }
        })
    }
}
