//! Parses expansions: everything that begins with `$`, and backticks.

use super::{Command, ParseResult, Unparsable, collect, parser::Parser, variables};
use crate::wildcard::ANY;

impl Parser<'_> {
    /// Parses an expansion. `quoted`: within double quotes, or where quotes have no meaning.
    pub(super) fn dollar(&mut self, text: &mut String, quoted: bool) -> ParseResult {
        self.at += 1;
        match self.peek() {
            // Some shells parse it as a `$` followed by quotes.
            Some('\'') if !quoted && self.posix => Err(Unparsable),
            Some('\'') if !quoted => self.escaped_quotes(text),
            Some('"') if !quoted => self.double_quotes(text),
            Some('(') => {
                text.push(ANY);
                if self.arithmetic_if(true)? { Ok(()) } else { self.substitution() }
            }
            Some('{') => {
                self.at += 1;
                self.deeper(|parser| parser.parameter(text, quoted))
            }
            // Not special in other shells.
            Some('[') if self.posix => Err(Unparsable),
            Some('[') => {
                self.at += 1;
                text.push(ANY);
                self.deeper(Self::bracket_arithmetic)
            }
            Some(next) if next.is_ascii_alphabetic() || next == '_' => {
                let mut name = String::new();
                while let Some(next) = self.peek().filter(|next| next.is_ascii_alphanumeric() || *next == '_')
                {
                    self.at += 1;
                    name.push(next);
                }
                self.push_variable(&name, text);
                Ok(())
            }
            Some('0'..='9' | '@' | '*' | '#' | '?' | '-' | '$' | '!') => {
                self.at += 1;
                text.push(ANY);
                Ok(())
            }
            _ => {
                text.push('$');
                Ok(())
            }
        }
    }

    /// Parses `${…}` after the brace.
    fn parameter(&mut self, text: &mut String, quoted: bool) -> ParseResult {
        // Newer shells run commands here.
        if matches!(self.peek(), Some(' ' | '\t' | '\n' | '|' | '(')) {
            return Err(Unparsable);
        }
        let start = self.at;
        let mut unused = String::new();
        loop {
            match self.peek().ok_or(Unparsable)? {
                '}' => break,
                '\\' => {
                    self.at += 1;
                    unused.extend(self.take_raw());
                }
                // Whether it quotes depends on the text before it.
                '\'' if quoted => return Err(Unparsable),
                '\'' => self.single_quotes(&mut unused)?,
                '"' => self.double_quotes(&mut unused)?,
                '`' => self.backticks(quoted)?,
                '$' => self.dollar(&mut unused, quoted)?,
                '<' | '>' if !quoted && self.at_process() => self.process()?,
                next => {
                    self.at += 1;
                    unused.push(next);
                }
            }
        }
        let written = self.slice(start).replace("\\\n", "");
        self.at += 1;
        self.record_expansion_arithmetic(&written, &unused)?;
        if written.ends_with("@P") {
            // `@P` runs the substitutions in a value.
            let script = format!("${{{written}}}");
            self.analysis.push(Command::unknown_script(&script, collect::VARIABLE));
        }
        self.push_variable(&written, text);
        Ok(())
    }

    /// Records arithmetic in an expansion: array indexes, substring offsets and indirect names are evaluated.
    fn record_expansion_arithmetic(&mut self, written: &str, quoted_text: &str) -> ParseResult {
        // `${name:=value}` sets a variable.
        let name = written.split(|next: char| !(next.is_ascii_alphanumeric() || next == '_')).next();
        let matters = written.starts_with('!') || name.is_some_and(variables::names_sensitive_variable);
        if matters && written.contains('=') {
            return Err(Unparsable);
        }
        let index = written.find('[').map(|at| &written[at..]);
        let offset = written.find(':').map(|at| &written[at..]);
        let offset = offset.filter(|offset| !offset[1..].starts_with(['-', '=', '+', '?']));
        if index.is_none() && offset.is_none() {
            self.analysis.evaluates_arithmetic |= written.starts_with('!');
            return Ok(());
        }
        self.analysis.evaluates_arithmetic = true;
        let others = [index, offset].into_iter().flatten().any(variables::names_sensitive_variable);
        // Quoted text runs as well.
        if others || variables::substitutes(quoted_text) { Err(Unparsable) } else { Ok(()) }
    }

    /// Appends the value of a variable, which is unknown. `HOME` at the start of a path becomes `~`, as rules write it.
    fn push_variable(&mut self, name: &str, text: &mut String) {
        let start = self.at;
        let closed = self.eat("\"");
        let next = self.peek();
        self.at = start;
        let ends = next.is_none_or(|next| " \t\n;&|<>)".contains(next)) && (closed || text.is_empty());
        let begins = text.is_empty() || next == Some('/') && text.ends_with([' ', '\t', '\n', '"', '\'']);
        let home = name == "HOME" && begins && (next == Some('/') || ends);
        text.push(if home { '~' } else { ANY });
    }

    /// Parses `` `…` ``, whose text is a script after its escapes are removed.
    pub(super) fn backticks(&mut self, quoted: bool) -> ParseResult {
        self.at += 1;
        let mut script = String::new();
        loop {
            match self.peek().ok_or(Unparsable)? {
                '`' => break,
                '\\' => {
                    self.at += 1;
                    let next = self.take_raw().ok_or(Unparsable)?;
                    if !(matches!(next, '`' | '\\' | '$') || (quoted && next == '"')) {
                        script.push('\\');
                    }
                    script.push(next);
                }
                next => {
                    self.at += 1;
                    script.push(next);
                }
            }
        }
        self.at += 1;
        collect::scan(&script, self.depth + 1, self.posix, self.analysis);
        Ok(())
    }

    /// Parses `$'…'`.
    fn escaped_quotes(&mut self, text: &mut String) -> ParseResult {
        self.at += 1;
        loop {
            match self.take_raw().ok_or(Unparsable)? {
                '\'' => return Ok(()),
                '\\' => {
                    let escape = self.take_raw().ok_or(Unparsable)?;
                    self.escape(escape, text);
                }
                next => text.push(next),
            }
        }
    }

    fn escape(&mut self, escape: char, text: &mut String) {
        let control = |code: u32| char::from_u32(code).filter(|next| *next != ANY);
        let made = match escape {
            'a' => control(7),
            'b' => control(8),
            'e' | 'E' => control(27),
            'f' => control(12),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => control(11),
            'x' => self.code(16, 2, 0),
            'u' => self.code(16, 4, 0),
            'U' => self.code(16, 8, 0),
            // The character that it consumes may be the closing quote.
            'c' => None,
            '0'..='7' => self.code(8, 2, escape.to_digit(8).unwrap_or_default()),
            '\\' | '\'' | '"' | '?' => Some(escape),
            other => {
                text.push('\\');
                Some(other)
            }
        };
        // For example one byte of a multi-byte character.
        text.push(made.unwrap_or(ANY));
    }

    /// Parses a character code.
    fn code(&mut self, radix: u32, digits: usize, mut code: u32) -> Option<char> {
        for _ in 0..digits {
            let Some(digit) = self.peek().and_then(|next| next.to_digit(radix)) else { break };
            self.at += 1;
            code = code.wrapping_mul(radix).wrapping_add(digit);
        }
        let is_byte = digits == 2;
        char::from_u32(code).filter(|made| *made != ANY && (!is_byte || made.is_ascii()))
    }
}
