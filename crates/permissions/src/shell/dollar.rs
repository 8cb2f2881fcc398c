//! What begins with `$`, and backticks.

use super::{Command, Found, Lost, cursor::Reader, run, variables};
use crate::wildcard::ANY;

impl Reader<'_> {
    /// Takes what a `$` begins. `quoted` within double quotes and where quotes mean nothing.
    pub(super) fn dollar(&mut self, text: &mut String, quoted: bool) -> Found {
        self.at += 1;
        match self.peek() {
            // Some shells read it as a `$` and other quotes.
            Some('\'') if !quoted && self.posix => Err(Lost),
            Some('\'') if !quoted => self.escaped_quotes(text),
            Some('"') if !quoted => self.double_quotes(text),
            Some('(') => {
                text.push(ANY);
                if self.arithmetic_if(true)? { Ok(()) } else { self.substitution() }
            }
            Some('{') => {
                self.at += 1;
                self.deeper(|reader| reader.parameter(text, quoted))
            }
            // Nothing special to other shells.
            Some('[') if self.posix => Err(Lost),
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
                self.push_value(&name, text);
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

    /// `${…}` behind the brace.
    fn parameter(&mut self, text: &mut String, quoted: bool) -> Found {
        // Newer shells run commands there.
        if matches!(self.peek(), Some(' ' | '\t' | '\n' | '|' | '(')) {
            return Err(Lost);
        }
        let start = self.at;
        let mut unused = String::new();
        loop {
            match self.peek().ok_or(Lost)? {
                '}' => break,
                '\\' => {
                    self.at += 1;
                    unused.extend(self.take_raw());
                }
                // Whether it quotes depends on what stands before it.
                '\'' if quoted => return Err(Lost),
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
        self.computes(&written, &unused)?;
        if written.ends_with("@P") {
            // Runs the substitutions in a value.
            let script = format!("${{{written}}}");
            self.found.push(Command::whole(&script, run::VARIABLE));
        }
        self.push_value(&written, text);
        Ok(())
    }

    /// An index and a place in a value are computed, and so is what a name stands for.
    fn computes(&mut self, written: &str, inside: &str) -> Found {
        // `${name:=value}` sets a variable.
        let name = written.split(|next: char| !(next.is_ascii_alphanumeric() || next == '_')).next();
        let matters = written.starts_with('!') || name.is_some_and(variables::computes_others);
        if matters && written.contains('=') {
            return Err(Lost);
        }
        let index = written.find('[').map(|at| &written[at..]);
        let place = written.find(':').map(|at| &written[at..]);
        let place = place.filter(|place| !place[1..].starts_with(['-', '=', '+', '?']));
        if index.is_none() && place.is_none() {
            self.found.computes |= written.starts_with('!');
            return Ok(());
        }
        self.found.computes = true;
        let others = [index, place].into_iter().flatten().any(variables::computes_others);
        // What is quoted there is run all the same.
        if others || variables::substitutes(inside) { Err(Lost) } else { Ok(()) }
    }

    /// What becomes of a variable. A home has no path that rules could name, so it stays what they write for it where it
    /// can only be one: at the start of a path.
    fn push_value(&mut self, name: &str, text: &mut String) {
        let start = self.at;
        let closed = self.eat("\"");
        let next = self.peek();
        self.at = start;
        let ends = next.is_none_or(|next| " \t\n;&|<>)".contains(next)) && (closed || text.is_empty());
        let begins = text.is_empty() || next == Some('/') && text.ends_with([' ', '\t', '\n', '"', '\'']);
        let home = name == "HOME" && begins && (next == Some('/') || ends);
        text.push(if home { '~' } else { ANY });
    }

    /// `` `…` ``, whose text is a script once its own escapes are removed.
    pub(super) fn backticks(&mut self, quoted: bool) -> Found {
        self.at += 1;
        let mut script = String::new();
        loop {
            match self.peek().ok_or(Lost)? {
                '`' => break,
                '\\' => {
                    self.at += 1;
                    let next = self.take_raw().ok_or(Lost)?;
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
        run::scan(&script, self.depth + 1, self.posix, self.found);
        Ok(())
    }

    /// `$'…'`
    fn escaped_quotes(&mut self, text: &mut String) -> Found {
        self.at += 1;
        loop {
            match self.take_raw().ok_or(Lost)? {
                '\'' => return Ok(()),
                '\\' => {
                    let escape = self.take_raw().ok_or(Lost)?;
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
            // What it takes may be the end.
            'c' => None,
            '0'..='7' => self.code(8, 2, escape.to_digit(8).unwrap_or_default()),
            '\\' | '\'' | '"' | '?' => Some(escape),
            other => {
                text.push('\\');
                Some(other)
            }
        };
        // Such as a byte of a longer character.
        text.push(made.unwrap_or(ANY));
    }

    /// A character by its number.
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
