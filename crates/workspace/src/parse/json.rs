//! Parses JSON with comments and trailing commas into a tree, with limits on depth and size.

use std::{collections::HashMap, iter::Peekable, str::Chars};

use super::tree::{Entry, Fault, Node, Position, Scalar, Value, quoted};

const MAX_DEPTH: usize = 64;
const MAX_NODES: usize = 100_000;

pub(crate) fn parse(text: &str) -> Result<Node, Fault> {
    let mut parser =
        Parser { chars: text.chars().peekable(), at: Position { line: 1, column: 1 }, depth: 0, nodes: 0 };
    parser.skip_space()?;
    let node = parser.node()?;
    parser.skip_space()?;
    match parser.chars.peek() {
        None => Ok(node),
        Some(_) => Err(parser.fault("expected the end, found more")),
    }
}

struct Parser<'a> {
    chars: Peekable<Chars<'a>>,
    at: Position,
    depth: usize,
    nodes: usize,
}

impl Parser<'_> {
    fn fault(&self, message: &str) -> Fault {
        Fault::new(self.at, format!("is not valid JSON: {message}"))
    }

    fn next(&mut self) -> Option<char> {
        let next = self.chars.next()?;
        if next == '\n' {
            self.at = Position { line: self.at.line + 1, column: 1 };
        } else {
            self.at.column += 1;
        }
        Some(next)
    }

    fn next_if(&mut self, wanted: char) -> bool {
        let found = self.chars.peek() == Some(&wanted);
        if found {
            self.next();
        }
        found
    }

    fn skip_space(&mut self) -> Result<(), Fault> {
        while let Some(&c) = self.chars.peek() {
            if c.is_ascii_whitespace() {
                self.next();
            } else if c == '/' {
                self.skip_comment()?;
            } else {
                break;
            }
        }
        Ok(())
    }

    fn skip_comment(&mut self) -> Result<(), Fault> {
        let began = self.at;
        self.next();
        match self.next() {
            Some('/') => while self.chars.peek().is_some_and(|c| *c != '\n') && self.next().is_some() {},
            Some('*') => loop {
                match self.next() {
                    Some('*') if self.next_if('/') => break,
                    Some(_) => {}
                    None => {
                        return Err(Fault::new(began, "is not valid JSON: unterminated comment"));
                    }
                }
            },
            _ => return Err(self.fault("expected a comment after /")),
        }
        Ok(())
    }

    fn node(&mut self) -> Result<Node, Fault> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(self.fault("it holds too many values"));
        }
        let at = self.at;
        let value = match self.chars.peek() {
            Some('{') => self.nested(Self::map)?,
            Some('[') => self.nested(Self::list)?,
            Some('"') => scalar(self.string()?, false),
            Some(_) => self.word()?,
            None => return Err(self.fault("expected a value, found the end")),
        };
        Ok(Node { at, value })
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Value, Fault>) -> Result<Value, Fault> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.fault("it is nested too deep"));
        }
        self.next();
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn map(&mut self) -> Result<Value, Fault> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut lines: HashMap<String, usize> = HashMap::new();
        loop {
            self.skip_space()?;
            if self.next_if('}') {
                return Ok(Value::Map(entries));
            }
            if self.chars.peek() != Some(&'"') {
                return Err(self.fault("expected a key in double quotes or }"));
            }
            let at = self.at;
            let key = self.string()?;
            if let Some(line) = lines.insert(key.clone(), at.line) {
                let message = format!("duplicate key {}, already set in line {line}", quoted(&key));
                return Err(Fault::new(at, message));
            }
            self.skip_space()?;
            if !self.next_if(':') {
                return Err(self.fault("expected : after the key"));
            }
            self.skip_space()?;
            let value = self.node()?;
            entries.push(Entry { key, at, value });
            self.skip_space()?;
            if !self.next_if(',') && self.chars.peek() != Some(&'}') {
                return Err(self.fault("expected , or }"));
            }
        }
    }

    fn list(&mut self) -> Result<Value, Fault> {
        let mut items = Vec::new();
        loop {
            self.skip_space()?;
            if self.next_if(']') {
                return Ok(Value::List(items));
            }
            items.push(self.node()?);
            self.skip_space()?;
            if !self.next_if(',') && self.chars.peek() != Some(&']') {
                return Err(self.fault("expected , or ]"));
            }
        }
    }

    fn string(&mut self) -> Result<String, Fault> {
        let began = self.at;
        let unclosed = || Fault::new(began, "is not valid JSON: unterminated string");
        self.next();
        let mut text = String::new();
        loop {
            match self.next().ok_or_else(unclosed)? {
                '"' => return Ok(text),
                '\n' => return Err(unclosed()),
                '\\' => text.push(self.escape()?),
                c => text.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Fault> {
        let escaped = match self.next() {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some(c @ ('"' | '\\' | '/')) => c,
            Some('u') => return self.unicode(),
            _ => return Err(self.fault("unknown escape")),
        };
        Ok(escaped)
    }

    fn unicode(&mut self) -> Result<char, Fault> {
        let first = self.hex()?;
        let code = if (0xD800..0xDC00).contains(&first) && self.next_if('\\') && self.next_if('u') {
            let second = self.hex()?;
            if !(0xDC00..0xE000).contains(&second) {
                return Err(self.fault("incomplete surrogate pair"));
            }
            0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
        } else {
            first
        };
        char::from_u32(code).ok_or_else(|| self.fault("incomplete surrogate pair"))
    }

    fn hex(&mut self) -> Result<u32, Fault> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.next().and_then(|c| c.to_digit(16));
            code = code * 16 + digit.ok_or_else(|| self.fault("expected four hexadecimal digits"))?;
        }
        Ok(code)
    }

    fn word(&mut self) -> Result<Value, Fault> {
        let fault = self.fault("expected a value");
        let mut word = String::new();
        while let Some(c) = self.chars.peek() {
            if !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')) || word.len() > 64 {
                break;
            }
            word.extend(self.next());
        }
        let numeric = |word: &str| {
            word.starts_with(|c: char| c.is_ascii_digit() || c == '-') && word.parse::<f64>().is_ok()
        };
        if matches!(word.as_str(), "true" | "false" | "null") || numeric(&word) {
            return Ok(scalar(word, true));
        }
        Err(fault)
    }
}

fn scalar(text: String, plain: bool) -> Value {
    Value::Scalar(Scalar { text, plain, from_env: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_ignored() {
        let text = "// first\n{\n  /* a\n b */ \"a\": [1, -2.5e1, true, null,],\n  \"b\": \"x // y\",\n}\n";
        let node = parse(text).unwrap();
        assert_eq!(node.to_json().to_string(), r#"{"a":[1,-25.0,true,null],"b":"x // y"}"#);
        let Value::Map(entries) = node.value else { panic!() };
        assert_eq!(entries[1].at, Position { line: 5, column: 3 });
    }

    #[test]
    fn escapes_are_decoded() {
        let node = parse(r#""a\n\"\u00e9\ud83d\ude00\/""#).unwrap();
        assert_eq!(node.to_json(), serde_json::json!("a\n\"é😀/"));
        for bad in [r#""\ud83d""#, r#""\ud83dx""#, r#""\q""#, r#""\u12""#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn faults_have_the_line_of_the_error() {
        for (text, line, fragment) in [
            ("{\n\"a\" 1}", 2, "expected :"),
            ("{\n\"a\": 1\n\"b\": 2}", 3, "expected ,"),
            ("{\n\"a\": 1,\n\"a\": 2}", 3, "already"),
            ("{\n\"a\": \"x\n}", 2, "unterminated"),
            ("{}\n{}", 2, "expected the end"),
            ("{ /* x", 1, "unterminated"),
            ("{\"a\": nope}", 1, "expected a value"),
            ("{a: 1}", 1, "double quotes"),
            ("", 1, "found the end"),
        ] {
            let fault = parse(text).unwrap_err();
            assert_eq!(fault.at.line, line, "{text}");
            assert!(fault.message.contains(fragment), "{text}: {}", fault.message);
        }
        assert!(parse(&"[".repeat(100_000)).unwrap_err().message.contains("deep"));
    }
}
