//! Here-documents: text in a script that is not a part of it, unless it is given to a shell.

use super::{Found, Lost, cursor::Reader, run, variables};
use crate::wildcard::ANY;

/// A here-document that begins at the next line.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    index: usize,
    end: String,
    /// Nothing in it is substituted.
    quoted: bool,
    strips_tabs: bool,
}

impl Reader<'_> {
    /// Takes what stands behind `<<`. The text follows later.
    pub(super) fn begin_heredoc(&mut self) -> Found<usize> {
        let strips_tabs = self.eat("-");
        self.skip_blanks();
        let end = self.word()?;
        if !end.literal() || end.raw.contains(['$', '`']) {
            return Err(Lost);
        }
        let index = self.bodies.len();
        self.bodies.push(String::new());
        self.pending.push(Pending { index, quoted: !end.plain(), end: end.text, strips_tabs });
        Ok(index)
    }

    /// Takes the texts that begin at this line.
    pub(super) fn take_bodies(&mut self) -> Found {
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
                body = run::expand(&body, self.depth + 1, self.posix, self.found)?;
            }
            self.found.loaded |= variables::is_loaded(&body);
            if let Some(place) = self.bodies.get_mut(pending.index) {
                *place = body;
            }
        }
        Ok(())
    }

    /// The next line without its break. Lines are joined as elsewhere unless nothing is substituted.
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

    /// The text of a here-document, whose substitutions are run.
    pub(super) fn body(&mut self) -> Found<String> {
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
