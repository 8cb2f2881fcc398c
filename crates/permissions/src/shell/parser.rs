//! The state of the parser and its character-level operations.

use super::{MAX_DEPTH, ParseResult, ScriptAnalysis, Unparsable, Word, heredoc::PendingHeredoc};

/// Parses one text. Substitutions are parsed in place; scripts in strings get their own parser.
pub(super) struct Parser<'a> {
    chars: Vec<char>,
    pub(super) at: usize,
    pub(super) depth: usize,
    /// The shell may not be bash.
    pub(super) posix: bool,
    /// The result is not certain.
    pub(super) doubtful: bool,
    pub(super) simple_commands: Vec<SimpleCommand>,
    /// Here-documents whose text begins on the next line.
    pub(super) pending: Vec<PendingHeredoc>,
    /// The texts of all here-documents parsed so far.
    pub(super) bodies: Vec<String>,
    pub(super) analysis: &'a mut ScriptAnalysis,
}

/// A position to go back to.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) at: usize,
    simple_commands: usize,
    redirections: usize,
}

/// A simple command as written in the script.
#[derive(Clone, Debug, Default)]
pub(super) struct SimpleCommand {
    /// Preceded by `time`.
    pub(super) timed: bool,
    pub(super) assignments: Vec<Word>,
    pub(super) words: Vec<Word>,
    pub(super) input: Option<Input>,
    /// The file descriptor before the next redirection.
    pub(super) descriptor: Option<String>,
    /// Preceded by a redirection, so that its first word is not a reserved word.
    pub(super) redirected: bool,
}

impl SimpleCommand {
    pub(super) fn is_empty(&self) -> bool {
        self.assignments.is_empty() && self.words.is_empty()
    }
}

/// The standard input of a command, if the script contains it.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// The index of a here-document's text.
    Body(usize),
    Text(String),
}

impl<'a> Parser<'a> {
    pub(super) fn new(script: &str, depth: usize, posix: bool, analysis: &'a mut ScriptAnalysis) -> Self {
        Self {
            chars: script.chars().collect(),
            at: 0,
            depth,
            posix,
            doubtful: false,
            simple_commands: Vec::new(),
            pending: Vec::new(),
            bodies: Vec::new(),
            analysis,
        }
    }

    /// The next character. A backslash before a line break joins lines everywhere except in single quotes, comments and
    /// some here-documents.
    pub(super) fn peek(&mut self) -> Option<char> {
        while self.chars.get(self.at) == Some(&'\\') && self.chars.get(self.at + 1) == Some(&'\n') {
            self.at += 2;
        }
        self.chars.get(self.at).copied()
    }

    pub(super) fn bump(&mut self) -> Option<char> {
        self.peek()?;
        self.take_raw()
    }

    /// The next character without joining lines.
    pub(super) fn take_raw(&mut self) -> Option<char> {
        let next = self.chars.get(self.at).copied();
        self.at += usize::from(next.is_some());
        next
    }

    pub(super) fn eat(&mut self, text: &str) -> bool {
        let start = self.at;
        let found = text.chars().all(|wanted| self.bump() == Some(wanted));
        if !found {
            self.at = start;
        }
        found
    }

    pub(super) fn ahead(&mut self, text: &str) -> bool {
        let start = self.at;
        let found = self.eat(text);
        self.at = start;
        found
    }

    pub(super) fn slice(&self, from: usize) -> String {
        self.chars.get(from..self.at).unwrap_or_default().iter().collect()
    }

    /// Whether an array index begins here that contains a character that otherwise ends a word. Where a command may begin,
    /// bash takes the index as one word.
    pub(super) fn at_strange_index(&self) -> bool {
        let rest = self.chars.get(self.at..).unwrap_or_default();
        let next = rest.iter().find(|next| "] \t\n;&|<>()".contains(**next));
        next.is_some_and(|next| *next != ']')
    }

    pub(super) fn rest(&self) -> String {
        self.chars.get(self.at..).unwrap_or_default().iter().collect()
    }

    pub(super) fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t')) {
            self.at += 1;
        }
    }

    pub(super) fn skip_comment(&mut self) {
        while self.chars.get(self.at).is_some_and(|next| *next != '\n') {
            self.at += 1;
        }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark {
            at: self.at,
            simple_commands: self.simple_commands.len(),
            redirections: self.analysis.redirections.len(),
        }
    }

    /// Goes back to parse something in another way. The limit keeps nested retries from taking exponential time.
    pub(super) fn rewind(&mut self, mark: &Mark) -> ParseResult {
        const MAX_REWINDS: usize = 200;
        self.analysis.rewinds += 1;
        if self.analysis.rewinds > MAX_REWINDS {
            return Err(Unparsable);
        }
        self.at = mark.at;
        self.simple_commands.truncate(mark.simple_commands);
        self.analysis.redirections.truncate(mark.redirections);
        Ok(())
    }

    /// Parses something one nesting level deeper.
    pub(super) fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> ParseResult<T>) -> ParseResult<T> {
        if self.depth >= MAX_DEPTH {
            return Err(Unparsable);
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }
}
