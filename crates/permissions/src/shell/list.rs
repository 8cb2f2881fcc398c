//! Lists of commands: what stands between separators.

use super::{
    Found, Lost, MAX_COMMANDS, Redirection, Word, assignment,
    cursor::{Input, Reader, Simple},
};
use crate::wildcard::ANY;

/// Where a list ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With the script.
    Script,
    /// At a `)`.
    Parenthesis,
    /// At `;;` or `esac`.
    CaseItem,
}

/// What ended a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    AsExpected,
    Esac,
}

impl Reader<'_> {
    pub(super) fn list(&mut self, end: End) -> Found<Ended> {
        self.deeper(|reader| {
            let mut command = Simple::default();
            loop {
                let step = reader.step(&mut command, end);
                // Where the reader is lost, what it has is judged all the same.
                if !matches!(step, Ok(None)) {
                    reader.finish(&mut command)?;
                }
                if let Some(ended) = step? {
                    return Ok(ended);
                }
            }
        })
    }

    /// Takes one token.
    fn step(&mut self, command: &mut Simple, end: End) -> Found<Option<Ended>> {
        match self.peek() {
            None => return if end == End::Script { Ok(Some(Ended::AsExpected)) } else { Err(Lost) },
            Some(' ' | '\t') => self.at += 1,
            Some('#') => self.skip_comment(),
            Some('\n') => {
                self.finish(command)?;
                self.line_break()?;
            }
            Some(';') => {
                self.finish(command)?;
                if [";;&", ";;", ";&"].iter().any(|mark| self.eat(mark)) {
                    return if end == End::CaseItem { Ok(Some(Ended::AsExpected)) } else { Err(Lost) };
                }
                self.at += 1;
            }
            // To some shells it is a `&`, and a command that is only a redirection.
            Some('&') if self.ahead("&>") && self.posix => return Err(Lost),
            Some('&') if self.ahead("&>") => self.redirect(command)?,
            Some('&' | '|') => {
                self.finish(command)?;
                self.at += 1;
                // `&&`, `||` and `|&`.
                if matches!(self.peek(), Some('&' | '|')) {
                    self.at += 1;
                }
            }
            Some(')') => {
                self.at += 1;
                return if end == End::Parenthesis { Ok(Some(Ended::AsExpected)) } else { Err(Lost) };
            }
            Some('(') => self.parenthesis(command)?,
            Some('<' | '>') if !self.at_process() => self.redirect(command)?,
            Some(_) => {
                let word = self.word()?;
                if matches!(self.peek(), Some('<' | '>')) && is_descriptor(&word) {
                    command.descriptor = Some(word.raw);
                    return Ok(None);
                }
                return self.place(word, command, end);
            }
        }
        Ok(None)
    }

    pub(super) fn finish(&mut self, command: &mut Simple) -> Found {
        let command = std::mem::take(command);
        if self.simples.len() > MAX_COMMANDS {
            return Err(Lost);
        }
        if !command.is_empty() {
            self.simples.push(command);
        }
        Ok(())
    }

    pub(super) fn line_break(&mut self) -> Found {
        self.at += 1;
        self.take_bodies()
    }

    /// Puts a word where it belongs.
    fn place(&mut self, word: Word, command: &mut Simple, end: End) -> Found<Option<Ended>> {
        if command.is_empty() && !command.redirected && word.plain() {
            match word.text.as_str() {
                "if" | "then" | "elif" | "else" | "fi" | "while" | "until" | "do" | "done" | "!" | "{"
                | "}" => return Ok(None),
                "time" if !self.posix => {
                    command.timed = true;
                    return Ok(None);
                }
                "-p" | "--" if command.timed => return Ok(None),
                "for" | "select" => return self.for_each().map(|()| None),
                "case" => return self.case().map(|()| None),
                "function" => return self.function().map(|()| None),
                "coproc" => return self.coproc().map(|()| None),
                "[[" if !self.posix => return self.test().map(|()| None),
                "esac" if end == End::CaseItem => return Ok(Some(Ended::Esac)),
                _ => {}
            }
        }
        if command.timed && command.is_empty() && word.text.starts_with('-') {
            // It may be the program of that name.
            command.timed = false;
            command.words.push(Word { text: "time".to_owned(), raw: "time".to_owned() });
        }
        if command.words.is_empty() && assignment(&word.raw).is_some() {
            command.assignments.push(word);
        } else {
            command.words.push(word);
        }
        Ok(None)
    }

    /// Takes a redirection. Its target is a word, a descriptor, or the end of a here-document.
    fn redirect(&mut self, command: &mut Simple) -> Found {
        command.redirected = true;
        const OPERATORS: [(&str, bool, bool); 11] = [
            ("&>>", false, true),
            ("&>", false, true),
            ("<<<", false, false),
            ("<<", false, false),
            ("<>", true, true),
            ("<&", true, false),
            ("<", true, false),
            (">>", false, true),
            (">|", false, true),
            (">&", false, true),
            (">", false, true),
        ];
        let operator = OPERATORS.iter().find(|(text, ..)| self.eat(text));
        let (operator, reads, writes) = *operator.ok_or(Lost)?;
        let is_input = match command.descriptor.take() {
            Some(descriptor) => descriptor.parse() == Ok(0),
            None => operator.starts_with('<'),
        };
        if operator == "<<" {
            let body = self.begin_heredoc()?;
            if is_input {
                command.input = Some(Input::Body(body));
            }
            return Ok(());
        }
        self.skip_blanks();
        let target = self.word()?;
        if operator == "<<<" {
            if is_input {
                command.input = Some(Input::Text(target.text));
            }
            return Ok(());
        }
        // Bash expands such a target twice.
        if operator == ">&" && target.text.contains(['$', '`', ANY]) {
            return Err(Lost);
        }
        if is_input {
            command.input = None;
        }
        let copies = operator.ends_with('&') && is_copied_descriptor(&target.text);
        if !copies && !is_nobodys(&target.text) {
            if self.found.redirections.len() >= MAX_COMMANDS {
                return Err(Lost);
            }
            self.found.redirections.push(Redirection { target, reads, writes });
        }
        Ok(())
    }
}

/// `2` in `2>x`, `{name}` in `{name}>x`.
fn is_descriptor(word: &Word) -> bool {
    let name = word.raw.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let is_name = |name: &str| name.chars().all(|next| next.is_ascii_alphanumeric() || next == '_');
    word.raw.chars().all(|next| next.is_ascii_digit()) || name.is_some_and(is_name)
}

/// `1`, `1-` or `-` after `>&`.
fn is_copied_descriptor(text: &str) -> bool {
    let digits = text.strip_suffix('-').unwrap_or(text);
    !text.is_empty() && digits.chars().all(|next| next.is_ascii_digit())
}

/// Places that every command has anyway.
fn is_nobodys(target: &str) -> bool {
    let fixed = ["/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero"];
    let number = target.strip_prefix("/dev/fd/");
    fixed.contains(&target) || number.is_some_and(|digits| digits.chars().all(|next| next.is_ascii_digit()))
}
