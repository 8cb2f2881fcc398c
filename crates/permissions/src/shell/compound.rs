//! What is larger than a simple command: groups, loops, choices, functions, tests, arithmetic.

use super::{
    Command, Found, Lost, Word,
    cursor::{Reader, Simple},
    list::{End, Ended},
    variables,
};
use crate::wildcard::ANY;

impl Reader<'_> {
    /// A subshell, arithmetic, or the definition of a function.
    pub(super) fn parenthesis(&mut self, command: &mut Simple) -> Found {
        if command.is_empty() {
            if !self.posix && self.arithmetic_if(false)? {
                return Ok(());
            }
            self.eat("(");
            return self.list(End::Parenthesis).map(drop);
        }
        self.eat("(");
        self.skip_blanks();
        let defines = command.assignments.is_empty() && command.words.len() == 1 && self.eat(")");
        if !defines {
            return Err(Lost);
        }
        // What it does is judged where it stands.
        *command = Simple::default();
        Ok(())
    }

    /// Arithmetic, if that is what begins here. Else nothing is taken: it is a subshell in another one.
    pub(super) fn arithmetic_if(&mut self, in_word: bool) -> Found<bool> {
        let start = self.mark();
        if !self.eat("((") {
            return Ok(false);
        }
        let ended = self.deeper(|reader| reader.arithmetic(in_word));
        if matches!(ended, Ok(true)) {
            self.computed(start.at);
            return Ok(true);
        }
        // Lost in what may be no arithmetic: what is in it is judged as commands as well. And bash takes the text of a
        // here-document in it from somewhere else.
        self.doubtful |= ended.is_err() || self.slice(start.at).contains("<<");
        self.rewind(&start)?;
        Ok(false)
    }

    /// Notes what an expression does beside its substitutions.
    pub(super) fn computed(&mut self, from: usize) {
        let expression = self.slice(from).replace("\\\n", "");
        self.found.computes = true;
        if variables::computes_others(&expression) {
            self.found.push(Command::whole(&expression, "it may change what other commands do"));
        }
    }

    /// Up to `))`. Commands are only in its substitutions.
    fn arithmetic(&mut self, in_word: bool) -> Found<bool> {
        let (mut open, mut quoted) = (0_usize, false);
        loop {
            match self.peek() {
                None => return Ok(false),
                Some('(') => open += 1,
                Some(')') if open == 0 => {
                    let ends = self.eat("))");
                    return if ends && quoted { Err(Lost) } else { Ok(ends) };
                }
                Some(')') => open -= 1,
                // Whether it quotes depends on where it stands, and what is quoted may be run all the same.
                Some('\'') if in_word => return Err(Lost),
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

    /// `$[…]`, the older form.
    pub(super) fn bracket_arithmetic(&mut self) -> Found {
        let (mut open, start) = (0_usize, self.at);
        loop {
            match self.peek().ok_or(Lost)? {
                '[' => open += 1,
                ']' if open == 0 => {
                    self.computed(start);
                    self.at += 1;
                    return Ok(());
                }
                ']' => open -= 1,
                '\'' => return Err(Lost),
                _ => {}
            }
            self.in_expression()?;
        }
    }

    fn in_expression(&mut self) -> Found {
        let mut unused = String::new();
        match self.peek().ok_or(Lost)? {
            '"' => {
                self.double_quotes(&mut unused)?;
                // What is quoted may be run all the same.
                if variables::substitutes(&unused) { Err(Lost) } else { Ok(()) }
            }
            '`' => self.backticks(true),
            '$' => self.dollar(&mut unused, true),
            '\\' => {
                self.at += 1;
                if matches!(self.take_raw(), Some('$' | '`')) { Err(Lost) } else { Ok(()) }
            }
            _ => {
                self.at += 1;
                Ok(())
            }
        }
    }

    /// `for` and `select` up to their body, which is a list like others.
    pub(super) fn for_each(&mut self) -> Found {
        self.skip_blanks();
        if self.ahead("((") {
            return if self.arithmetic_if(false)? { Ok(()) } else { Err(Lost) };
        }
        let name = self.word()?.raw;
        let sets = Word { text: format!("{name}={ANY}"), raw: format!("{name}=…") };
        self.finish(&mut Simple { assignments: vec![sets], ..Simple::default() })?;
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

    /// `case` as a whole.
    pub(super) fn case(&mut self) -> Found {
        self.deeper(|reader| {
            reader.skip_blanks();
            reader.word()?;
            reader.skip_lines()?;
            if reader.word()?.raw != "in" {
                return Err(Lost);
            }
            loop {
                reader.skip_lines()?;
                if reader.ahead("esac") {
                    let before = reader.mark();
                    if reader.word()?.raw == "esac" {
                        return Ok(());
                    }
                    reader.rewind(&before)?;
                }
                reader.eat("(");
                reader.case_patterns()?;
                if reader.list(End::CaseItem)? == Ended::Esac {
                    return Ok(());
                }
            }
        })
    }

    fn case_patterns(&mut self) -> Found {
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

    fn skip_lines(&mut self) -> Found {
        loop {
            self.skip_blanks();
            match self.peek() {
                Some('\n') => self.line_break()?,
                Some('#') => self.skip_comment(),
                _ => return Ok(()),
            }
        }
    }

    pub(super) fn function(&mut self) -> Found {
        self.skip_blanks();
        self.word()?;
        self.skip_blanks();
        if self.eat("(") {
            self.skip_blanks();
            return if self.eat(")") { Ok(()) } else { Err(Lost) };
        }
        Ok(())
    }

    /// Drops the name that may stand before something larger than a simple command.
    pub(super) fn coproc(&mut self) -> Found {
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

    /// `[[` up to `]]`. Commands are only in its substitutions.
    pub(super) fn test(&mut self) -> Found {
        const COMPUTES: [&str; 8] = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"];
        loop {
            self.skip_blanks();
            match self.peek().ok_or(Lost)? {
                '\n' => self.line_break()?,
                // A comment, unless it is a part of an expression.
                ';' | '#' => return Err(Lost),
                '(' | ')' | '&' | '|' => self.at += 1,
                '<' | '>' if !self.at_process() => self.at += 1,
                _ => {
                    let word = self.word()?;
                    if word.raw == "]]" {
                        return Ok(());
                    }
                    self.found.computes |= COMPUTES.contains(&word.raw.as_str());
                }
            }
        }
    }
}
