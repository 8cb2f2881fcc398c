//! Parses compound commands: subshells, loops, `case`, functions, tests, arithmetic.

use super::{
    Command, ParseResult, Unparsable, Word,
    list::{EndedBy, Terminator},
    parser::{Parser, SimpleCommand},
    variables,
};
use crate::wildcard::ANY;

impl Parser<'_> {
    /// Parses a subshell, arithmetic, or the definition of a function.
    pub(super) fn parenthesis(&mut self, command: &mut SimpleCommand) -> ParseResult {
        if command.is_empty() {
            if !self.posix && self.arithmetic_if(false)? {
                return Ok(());
            }
            self.eat("(");
            return self.list(Terminator::Parenthesis).map(drop);
        }
        self.eat("(");
        self.skip_blanks();
        let defines = command.assignments.is_empty() && command.words.len() == 1 && self.eat(")");
        if !defines {
            return Err(Unparsable);
        }
        // The body is judged where it is defined.
        *command = SimpleCommand::default();
        Ok(())
    }

    /// Parses arithmetic, if it begins here. Otherwise nothing is consumed: it is a subshell in a subshell.
    pub(super) fn arithmetic_if(&mut self, in_word: bool) -> ParseResult<bool> {
        let start = self.mark();
        if !self.eat("((") {
            return Ok(false);
        }
        let ended = self.deeper(|parser| parser.arithmetic(in_word));
        if matches!(ended, Ok(true)) {
            self.record_arithmetic(start.at);
            return Ok(true);
        }
        // This may not be arithmetic, so its text is judged as commands as well. Bash also takes the text of a
        // here-document within it from another place.
        self.doubtful |= ended.is_err() || self.slice(start.at).contains("<<");
        self.rewind(&start)?;
        Ok(false)
    }

    /// Records the effects of an arithmetic expression besides its substitutions.
    pub(super) fn record_arithmetic(&mut self, from: usize) {
        let expression = self.slice(from).replace("\\\n", "");
        self.analysis.evaluates_arithmetic = true;
        if variables::names_sensitive_variable(&expression) {
            self.analysis.push(Command::unknown_script(&expression, "it may change what other commands do"));
        }
    }

    /// Parses up to `))`. Commands are only in its substitutions.
    fn arithmetic(&mut self, in_word: bool) -> ParseResult<bool> {
        let (mut open, mut quoted) = (0_usize, false);
        loop {
            match self.peek() {
                None => return Ok(false),
                Some('(') => open += 1,
                Some(')') if open == 0 => {
                    let ends = self.eat("))");
                    return if ends && quoted { Err(Unparsable) } else { Ok(ends) };
                }
                Some(')') => open -= 1,
                // Whether it quotes depends on the context, and quoted text may run as well.
                Some('\'') if in_word => return Err(Unparsable),
                Some('\'') => {
                    quoted = true;
                    self.single_quotes(&mut String::new())?;
                    continue;
                }
                Some(_) => {}
            }
            self.in_expression()?;
        }
    }

    /// Parses `$[…]`, the older form of arithmetic.
    pub(super) fn bracket_arithmetic(&mut self) -> ParseResult {
        let (mut open, start) = (0_usize, self.at);
        loop {
            match self.peek().ok_or(Unparsable)? {
                '[' => open += 1,
                ']' if open == 0 => {
                    self.record_arithmetic(start);
                    self.at += 1;
                    return Ok(());
                }
                ']' => open -= 1,
                '\'' => return Err(Unparsable),
                _ => {}
            }
            self.in_expression()?;
        }
    }

    fn in_expression(&mut self) -> ParseResult {
        let mut unused = String::new();
        match self.peek().ok_or(Unparsable)? {
            '"' => {
                self.double_quotes(&mut unused)?;
                // Quoted text may run as well.
                if variables::substitutes(&unused) { Err(Unparsable) } else { Ok(()) }
            }
            '`' => self.backticks(true),
            '$' => self.dollar(&mut unused, true),
            '\\' => {
                self.at += 1;
                if matches!(self.take_raw(), Some('$' | '`')) { Err(Unparsable) } else { Ok(()) }
            }
            _ => {
                self.at += 1;
                Ok(())
            }
        }
    }

    /// Parses `for` and `select` up to their body, which is parsed as a list.
    pub(super) fn for_loop(&mut self) -> ParseResult {
        self.skip_blanks();
        if self.ahead("((") {
            return if self.arithmetic_if(false)? { Ok(()) } else { Err(Unparsable) };
        }
        let name = self.word()?.raw;
        let sets = Word { text: format!("{name}={ANY}"), raw: format!("{name}=…") };
        self.finish(&mut SimpleCommand { assignments: vec![sets], ..SimpleCommand::default() })?;
        loop {
            self.skip_blanks();
            let before = self.at;
            match self.peek() {
                None | Some('\n' | ';') => return Ok(()),
                Some('#') => self.skip_comment(),
                Some(_) => {
                    let word = self.word()?;
                    if word.plain() && (word.text == "do" || word.text == "{") {
                        self.at = before;
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Parses a whole `case` command.
    pub(super) fn case(&mut self) -> ParseResult {
        self.deeper(|parser| {
            parser.skip_blanks();
            parser.word()?;
            parser.skip_lines()?;
            if parser.word()?.raw != "in" {
                return Err(Unparsable);
            }
            loop {
                parser.skip_lines()?;
                if parser.ahead("esac") {
                    let before = parser.mark();
                    if parser.word()?.raw == "esac" {
                        return Ok(());
                    }
                    parser.rewind(&before)?;
                }
                parser.eat("(");
                parser.case_patterns()?;
                if parser.list(Terminator::CaseItem)? == EndedBy::Esac {
                    return Ok(());
                }
            }
        })
    }

    fn case_patterns(&mut self) -> ParseResult {
        loop {
            self.skip_blanks();
            match self.peek() {
                Some('|') => self.at += 1,
                Some(')') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => drop(self.word()?),
            }
        }
    }

    fn skip_lines(&mut self) -> ParseResult {
        loop {
            self.skip_blanks();
            match self.peek() {
                Some('\n') => self.line_break()?,
                Some('#') => self.skip_comment(),
                _ => return Ok(()),
            }
        }
    }

    pub(super) fn function(&mut self) -> ParseResult {
        self.skip_blanks();
        self.word()?;
        self.skip_blanks();
        if self.eat("(") {
            self.skip_blanks();
            return if self.eat(")") { Ok(()) } else { Err(Unparsable) };
        }
        Ok(())
    }

    /// Skips the optional name of a coprocess, which only a compound command can have.
    pub(super) fn coproc(&mut self) -> ParseResult {
        const BEGINS: [&str; 8] = ["{", "if", "for", "while", "until", "case", "select", "[["];
        self.skip_blanks();
        if matches!(self.peek(), None | Some('\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')')) {
            return Ok(());
        }
        let before = self.mark();
        let first = self.word()?;
        self.skip_blanks();
        let behind = self.mark();
        let larger = match self.peek() {
            Some('(') => true,
            None | Some('\n' | ';' | '&' | '|' | '<' | '>' | ')') => false,
            Some(_) => {
                let second = self.word()?;
                second.plain() && BEGINS.contains(&second.text.as_str())
            }
        };
        let named = larger && first.plain() && !BEGINS.contains(&first.text.as_str());
        self.rewind(if named { &behind } else { &before })
    }

    /// Parses `[[` up to `]]`. Commands are only in its substitutions.
    pub(super) fn test(&mut self) -> ParseResult {
        const COMPUTES: [&str; 8] = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"];
        loop {
            self.skip_blanks();
            match self.peek().ok_or(Unparsable)? {
                '\n' => self.line_break()?,
                // It may be a comment or part of an expression.
                ';' | '#' => return Err(Unparsable),
                '(' | ')' | '&' | '|' => self.at += 1,
                '<' | '>' if !self.at_process() => self.at += 1,
                _ => {
                    let word = self.word()?;
                    if word.raw == "]]" {
                        return Ok(());
                    }
                    self.analysis.evaluates_arithmetic |= COMPUTES.contains(&word.raw.as_str());
                }
            }
        }
    }
}
