//! Going through the characters of a script.

use super::{Found, Lost, MAX_DEPTH, Script, Word, heredoc::Pending};

/// Reads one text. Substitutions within it are read on the way, scripts in strings by readers of their own.
pub(super) struct Reader<'a> {
    chars: Vec<char>,
    pub(super) at: usize,
    pub(super) depth: usize,
    /// Read by a shell that may not be bash.
    pub(super) posix: bool,
    /// It went on where it was lost.
    pub(super) doubtful: bool,
    pub(super) simples: Vec<Simple>,
    /// Here-documents that begin at the next line.
    pub(super) pending: Vec<Pending>,
    /// The texts of all here-documents so far.
    pub(super) bodies: Vec<String>,
    pub(super) found: &'a mut Script,
}

/// A place to go back to.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) at: usize,
    simples: usize,
    redirections: usize,
}

/// A simple command as it stands in a script.
#[derive(Clone, Debug, Default)]
pub(super) struct Simple {
    /// `time` stands before it.
    pub(super) timed: bool,
    pub(super) assignments: Vec<Word>,
    pub(super) words: Vec<Word>,
    pub(super) input: Option<Input>,
    /// The one that stands before a redirection.
    pub(super) descriptor: Option<String>,
    /// A redirection stood before its words, which then are no words of the shell.
    pub(super) redirected: bool,
}

impl Simple {
    pub(super) fn is_empty(&self) -> bool {
        self.assignments.is_empty() && self.words.is_empty()
    }
}

/// Text that a script gives to a command.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// One of the bodies of here-documents.
    Body(usize),
    Text(String),
}

impl<'a> Reader<'a> {
    pub(super) fn new(script: &str, depth: usize, posix: bool, found: &'a mut Script) -> Self {
        Self {
            chars: script.chars().collect(),
            at: 0,
            depth,
            posix,
            doubtful: false,
            simples: Vec::new(),
            pending: Vec::new(),
            bodies: Vec::new(),
            found,
        }
    }

    /// The next character. A backslash before a line break joins lines wherever it stands but in single quotes,
    /// comments and some here-documents.
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

    /// Whether an index of an array begins here that holds what elsewhere ends a word. Bash takes it as one word where a
    /// command may begin.
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
        Mark { at: self.at, simples: self.simples.len(), redirections: self.found.redirections.len() }
    }

    /// Goes back to read something in another way. Each level of nesting could do so, hence the bound.
    pub(super) fn rewind(&mut self, mark: &Mark) -> Found {
        const MAX_REWINDS: usize = 200;
        self.found.rewinds += 1;
        if self.found.rewinds > MAX_REWINDS {
            return Err(Lost);
        }
        self.at = mark.at;
        self.simples.truncate(mark.simples);
        self.found.redirections.truncate(mark.redirections);
        Ok(())
    }

    /// Reads something that is nested in what is being read.
    pub(super) fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Found<T>) -> Found<T> {
        if self.depth >= MAX_DEPTH {
            return Err(Lost);
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }
}
