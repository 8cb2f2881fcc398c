//! Parses here-documents. Their text is not part of the script, unless it is the input of a shell.

use super::{ParseResult, Unparsable, collect, parser::Parser, variables};
use crate::wildcard::ANY;

/// A here-document whose text begins on the next line.
#[derive(Clone, Debug)]
pub(super) struct PendingHeredoc {
    index: usize,
    end: String,
    /// No substitution takes place.
    quoted: bool,
    strips_tabs: bool,
}

impl Parser<'_> {
    /// Parses the delimiter after `<<`. The text follows later.
    pub(super) fn begin_heredoc(&mut self) -> ParseResult<usize> {
        let strips_tabs = self.eat("-");
        self.skip_blanks();
        let end = self.word()?;
        if !end.literal() || end.raw.contains(['$', '`']) {
            return Err(Unparsable);
        }
        let index = self.bodies.len();
        self.bodies.push(String::new());
        self.pending.push(PendingHeredoc { index, quoted: !end.plain(), end: end.text, strips_tabs });
        Ok(index)
    }

    /// Parses the texts that begin on this line.
    pub(super) fn take_bodies(&mut self) -> ParseResult {
        for pending in std::mem::take(&mut self.pending) {
            let mut body = String::new();
            while let Some(line) = self.line(pending.quoted) {
                let line = if pending.strips_tabs { line.trim_start_matches('\t') } else { &line };
                if line == pending.end {
                    break;
                }
                body.push_str(line);
                body.push('\n');
            }
            if !pending.quoted {
                body = collect::expand(&body, self.depth + 1, self.posix, self.analysis)?;
            }
            self.analysis.has_runnable_text |= variables::runs_when_evaluated(&body);
            if let Some(target) = self.bodies.get_mut(pending.index) {
                *target = body;
            }
        }
        Ok(())
    }

    /// The next line without its line break. Lines are joined unless the delimiter is quoted.
    fn line(&mut self, quoted: bool) -> Option<String> {
        let mut line = String::new();
        let mut next = self.take_raw()?;
        loop {
            match next {
                '\n' => return Some(line),
                '\\' if !quoted => match self.take_raw() {
                    Some('\n') => {}
                    Some(escaped) => line.extend(['\\', escaped]),
                    None => line.push('\\'),
                },
                next => line.push(next),
            }
            match self.take_raw() {
                Some(following) => next = following,
                None => return Some(line),
            }
        }
    }

    /// Parses the text of a here-document with its substitutions.
    pub(super) fn body(&mut self) -> ParseResult<String> {
        let mut text = String::new();
        while let Some(next) = self.peek() {
            match next {
                '$' => self.dollar(&mut text, true)?,
                '`' => {
                    self.backticks(false)?;
                    text.push(ANY);
                }
                '\\' => {
                    self.at += 1;
                    let next = self.take_raw().unwrap_or('\\');
                    if !matches!(next, '$' | '`' | '\\') {
                        text.push('\\');
                    }
                    text.push(next);
                }
                next => {
                    self.at += 1;
                    text.push(next);
                }
            }
        }
        Ok(text)
    }
}
