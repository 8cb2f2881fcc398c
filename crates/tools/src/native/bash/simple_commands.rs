//! Splits a shell script into simple commands, as far as that is possible without running it.

/// One simple command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SimpleCommand {
    /// Words without leading assignments and redirections.
    pub(super) words: Vec<String>,
    /// Its stdin comes from a file or a pipe.
    pub(super) has_input: bool,
}

/// The simple commands of a script. Empty if the script has unsupported structure (groups, loops, functions,
/// substitutions), since that could redirect or redefine the other commands.
pub(super) fn commands(script: &str) -> Vec<SimpleCommand> {
    let mut parser = Parser {
        characters: script.chars().collect(),
        position: 0,
        commands: vec![SimpleCommand::default()],
    };
    match parser.read() {
        Some(()) => parser.commands.into_iter().filter(|command| !command.words.is_empty()).collect(),
        None => Vec::new(),
    }
}

/// Words of compound commands, and builtins that change what follows.
const UNSUPPORTED_WORDS: [&str; 24] = [
    "if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac", "select",
    "function", "{", "}", "[[", "coproc", "eval", "alias", "source", ".", "exec", "trap",
];

struct Parser {
    characters: Vec<char>,
    position: usize,
    commands: Vec<SimpleCommand>,
}

impl Parser {
    /// `None` if the script is not supported.
    fn read(&mut self) -> Option<()> {
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' | '\r' => self.position += 1,
                '#' => self.skip_line(),
                '\n' | ';' => self.separate(false),
                '&' if self.starts_with("&>") => self.redirect()?,
                '&' => {
                    self.skip_all('&');
                    self.separate(false);
                }
                '|' => {
                    let before = self.position;
                    self.skip_all('|');
                    let pipe = self.position - before == 1;
                    if pipe && self.peek() == Some('&') {
                        self.position += 1;
                    }
                    self.separate(pipe);
                    self.skip_blank_lines(pipe);
                }
                '(' | ')' => return None,
                '<' | '>' => self.redirect()?,
                '0'..='9' if self.descriptor() => self.redirect()?,
                _ => {
                    let (word, quoted) = self.word()?;
                    self.add_word(word, quoted)?;
                }
            }
        }
        Some(())
    }

    fn peek(&self) -> Option<char> {
        self.characters.get(self.position).copied()
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars()
            .enumerate()
            .all(|(offset, wanted)| self.characters.get(self.position + offset) == Some(&wanted))
    }

    fn skip_all(&mut self, what: char) {
        while self.peek() == Some(what) {
            self.position += 1;
        }
    }

    fn skip_line(&mut self) {
        while self.peek().is_some_and(|next| next != '\n') {
            self.position += 1;
        }
    }

    fn skip_blank_lines(&mut self, pipe: bool) {
        // A pipeline continues after a line break.
        while pipe && self.peek().is_some_and(char::is_whitespace) {
            self.position += 1;
        }
    }

    fn separate(&mut self, has_input: bool) {
        if matches!(self.peek(), Some('\n' | ';')) {
            self.position += 1;
        }
        self.commands.push(SimpleCommand { has_input, ..SimpleCommand::default() });
    }

    /// Whether the digits here are the descriptor of a redirection.
    fn descriptor(&self) -> bool {
        let digits = self.characters[self.position..].iter().take_while(|next| next.is_ascii_digit()).count();
        matches!(self.characters.get(self.position + digits), Some('<' | '>'))
    }

    /// Skips a redirection and its target. `None` for here-documents, whose text would be parsed as commands.
    fn redirect(&mut self) -> Option<()> {
        while self.peek().is_some_and(|next| next.is_ascii_digit() || next == '&') {
            self.position += 1;
        }
        let input = self.peek() == Some('<');
        if self.starts_with("<<<") {
            self.position += 3;
        } else if self.starts_with("<<") {
            return None;
        } else {
            while matches!(self.peek(), Some('<' | '>' | '&' | '|')) {
                self.position += 1;
            }
        }
        while matches!(self.peek(), Some(' ' | '\t')) {
            self.position += 1;
        }
        self.word()?;
        if input && let Some(command) = self.commands.last_mut() {
            command.has_input = true;
        }
        Some(())
    }

    /// A word without its quotes, and whether it was quoted. `None` for unsupported substitutions.
    fn word(&mut self) -> Option<(String, bool)> {
        let (mut word, mut quoted, start) = (String::new(), false, self.position);
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '<' | '>' => break,
                '(' | ')' | '`' => return None,
                '\'' => {
                    quoted = true;
                    self.position += 1;
                    self.until('\'', &mut word)?;
                }
                '"' => {
                    quoted = true;
                    self.position += 1;
                    self.double_quoted(&mut word)?;
                }
                '\\' => {
                    self.position += 1;
                    word.extend(self.peek().filter(|next| *next != '\n'));
                    self.position += 1;
                }
                '$' if self.starts_with("$(") => return None,
                _ => {
                    word.push(next);
                    self.position += 1;
                }
            }
        }
        // No word where one is required.
        (self.position > start).then_some((word, quoted))
    }

    fn until(&mut self, end: char, word: &mut String) -> Option<()> {
        loop {
            let next = self.peek()?;
            self.position += 1;
            if next == end {
                return Some(());
            }
            word.push(next);
        }
    }

    fn double_quoted(&mut self, word: &mut String) -> Option<()> {
        loop {
            match self.peek()? {
                '"' => {
                    self.position += 1;
                    return Some(());
                }
                '`' => return None,
                '$' if self.starts_with("$(") => return None,
                '\\' => {
                    word.extend(self.characters.get(self.position + 1));
                    self.position += 2;
                }
                next => {
                    word.push(next);
                    self.position += 1;
                }
            }
        }
    }

    fn add_word(&mut self, word: String, quoted: bool) -> Option<()> {
        let command = self.commands.last_mut()?;
        if command.words.is_empty() && !quoted {
            if UNSUPPORTED_WORDS.contains(&word.as_str()) {
                return None;
            }
            // Prefixes of the actual command.
            if ["!", "time", "command", "sudo"].contains(&word.as_str()) || is_assignment(&word) {
                return Some(());
            }
        }
        command.words.push(word);
        Some(())
    }
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name.trim_end_matches('+'));
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    begins && name.chars().all(|next| next.is_ascii_alphanumeric() || next == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(script: &str) -> Vec<(String, bool)> {
        commands(script).into_iter().map(|command| (command.words.join("|"), command.has_input)).collect()
    }

    #[test]
    fn scripts_are_split_into_simple_commands() {
        for (script, expected) in [
            ("ls", vec![("ls", false)]),
            (
                "a b;c&&d||e & f\ng",
                vec![("a|b", false), ("c", false), ("d", false), ("e", false), ("f", false), ("g", false)],
            ),
            ("a 'b c' \"d e\" f\\ g", vec![("a|b c|d e|f g", false)]),
            ("a # b; c\nd", vec![("a", false), ("d", false)]),
            ("X=1 Y= a b=c", vec![("a|b=c", false)]),
            ("a | b |& c", vec![("a", false), ("b", true), ("c", true)]),
            ("a |\n  b", vec![("a", false), ("b", true)]),
            ("a < f > g 2>&1 b", vec![("a|b", true)]),
            ("a <<< 'x y' b", vec![("a|b", true)]),
            ("a &> f; b >> g", vec![("a", false), ("b", false)]),
            ("a ';' \"|\"", vec![("a|;||", false)]),
            ("a \\\n b", vec![("a||b", false)]),
            ("a 2b", vec![("a|2b", false)]),
            ("sudo a; time b", vec![("a", false), ("b", false)]),
        ] {
            let expected: Vec<_> =
                expected.into_iter().map(|(words, has_input)| (words.to_owned(), has_input)).collect();
            assert_eq!(read(script), expected, "{script}");
        }
    }

    #[test]
    fn unsupported_scripts_yield_no_commands() {
        for script in [
            "vim $(ls)",
            "vim `ls`",
            "vim \"$(ls)\"",
            "(vim)",
            "vim() { :; }; vim",
            "for f in *; do vim $f; done < x",
            "vim <<E\nx\nE",
            "if true; then vim; fi",
            "exec < f; read x",
            "{ vim; } < f",
            "diff <(a) b",
            "vim 'unclosed",
            "vim \"unclosed",
            "a >",
            "",
            "  \n ; ",
        ] {
            assert_eq!(read(script), [], "{script}");
        }
    }

    #[test]
    fn no_input_hangs_or_panics() {
        let pieces = [
            "a", " ", "'", "\"", "\\", "$(", "`", "|", "&", ";", "<", ">", "\n", "1", "#", "é", "(", "=",
            "\0",
        ];
        for first in pieces {
            for second in pieces {
                for third in pieces {
                    commands(&format!("{first}{second}{third}"));
                }
            }
        }
    }
}
