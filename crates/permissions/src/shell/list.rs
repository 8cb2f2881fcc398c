//! Parses lists of commands between separators.

use super::{
    MAX_COMMANDS, ParseResult, Redirection, Unparsable, Word, assignment,
    parser::{Input, Parser, SimpleCommand},
};
use crate::wildcard::ANY;

/// The expected end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Terminator {
    /// The end of the script.
    Script,
    /// `)`.
    Parenthesis,
    /// `;;` or `esac`.
    CaseItem,
}

/// What ended a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    AsExpected,
    Esac,
}

impl Parser<'_> {
    pub(super) fn list(&mut self, end: Terminator) -> ParseResult<EndedBy> {
        self.deeper(|parser| {
            let mut command = SimpleCommand::default();
            loop {
                let step = parser.step(&mut command, end);
                // On failure, the part parsed so far is judged anyway.
                if !matches!(step, Ok(None)) {
                    parser.finish(&mut command)?;
                }
                if let Some(ended) = step? {
                    return Ok(ended);
                }
            }
        })
    }

    /// Parses one token.
    fn step(&mut self, command: &mut SimpleCommand, end: Terminator) -> ParseResult<Option<EndedBy>> {
        match self.peek() {
            None => {
                return if end == Terminator::Script {
                    Ok(Some(EndedBy::AsExpected))
                } else {
                    Err(Unparsable)
                };
            }
            Some(' ' | '\t') => self.at += 1,
            Some('#') => self.skip_comment(),
            Some('\n') => {
                self.finish(command)?;
                self.line_break()?;
            }
            Some(';') => {
                self.finish(command)?;
                if [";;&", ";;", ";&"].iter().any(|mark| self.eat(mark)) {
                    return if end == Terminator::CaseItem {
                        Ok(Some(EndedBy::AsExpected))
                    } else {
                        Err(Unparsable)
                    };
                }
                self.at += 1;
            }
            // Some shells parse it as `&` followed by a redirection without a command.
            Some('&') if self.ahead("&>") && self.posix => return Err(Unparsable),
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
                return if end == Terminator::Parenthesis {
                    Ok(Some(EndedBy::AsExpected))
                } else {
                    Err(Unparsable)
                };
            }
            Some('(') => self.parenthesis(command)?,
            Some('<' | '>') if !self.at_process() => self.redirect(command)?,
            Some(_) => {
                let word = self.word()?;
                if matches!(self.peek(), Some('<' | '>')) && is_descriptor(&word) {
                    command.descriptor = Some(word.raw);
                    return Ok(None);
                }
                return self.add_word(word, command, end);
            }
        }
        Ok(None)
    }

    pub(super) fn finish(&mut self, command: &mut SimpleCommand) -> ParseResult {
        let command = std::mem::take(command);
        if self.simple_commands.len() > MAX_COMMANDS {
            return Err(Unparsable);
        }
        if !command.is_empty() {
            self.simple_commands.push(command);
        }
        Ok(())
    }

    pub(super) fn line_break(&mut self) -> ParseResult {
        self.at += 1;
        self.take_bodies()
    }

    /// Adds a word to the command, or parses the compound command that it begins.
    fn add_word(
        &mut self,
        word: Word,
        command: &mut SimpleCommand,
        end: Terminator,
    ) -> ParseResult<Option<EndedBy>> {
        if command.is_empty() && !command.redirected && word.plain() {
            match word.text.as_str() {
                "if" | "then" | "elif" | "else" | "fi" | "while" | "until" | "do" | "done" | "!" | "{"
                | "}" => return Ok(None),
                "time" if !self.posix => {
                    command.timed = true;
                    return Ok(None);
                }
                "-p" | "--" if command.timed => return Ok(None),
                "for" | "select" => return self.for_loop().map(|()| None),
                "case" => return self.case().map(|()| None),
                "function" => return self.function().map(|()| None),
                "coproc" => return self.coproc().map(|()| None),
                "[[" if !self.posix => return self.test().map(|()| None),
                "esac" if end == Terminator::CaseItem => return Ok(Some(EndedBy::Esac)),
                _ => {}
            }
        }
        if command.timed && command.is_empty() && word.text.starts_with('-') {
            // With an option, it may be the program `time`.
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

    /// Parses a redirection. Its target is a word, a descriptor, or the delimiter of a here-document.
    fn redirect(&mut self, command: &mut SimpleCommand) -> ParseResult {
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
        let (operator, reads, writes) = *operator.ok_or(Unparsable)?;
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
        // Bash expands this target twice.
        if operator == ">&" && target.text.contains(['$', '`', ANY]) {
            return Err(Unparsable);
        }
        if is_input {
            command.input = None;
        }
        let copies = operator.ends_with('&') && is_copied_descriptor(&target.text);
        if !copies && !is_standard_device(&target.text) {
            if self.analysis.redirections.len() >= MAX_COMMANDS {
                return Err(Unparsable);
            }
            self.analysis.redirections.push(Redirection { target, reads, writes });
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

/// Devices that every command may use.
fn is_standard_device(target: &str) -> bool {
    let fixed = ["/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero"];
    let number = target.strip_prefix("/dev/fd/");
    fixed.contains(&target) || number.is_some_and(|digits| digits.chars().all(|next| next.is_ascii_digit()))
}
