//! The simple commands of a shell script, as far as they can be told without running it.

/// One simple command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Simple {
    /// Without assignments before it and redirections.
    pub(super) words: Vec<String>,
    /// Its input comes from a file or a pipe.
    pub(super) fed: bool,
}

/// The simple commands of a script, or none when its structure is beyond this small reader: groups, loops, functions,
/// substitutions. What comes before such a place is left out, too, where that place could feed or redefine it.
pub(super) fn commands(script: &str) -> Vec<Simple> {
    let mut reader = Reader { rest: script.chars().collect(), at: 0, commands: vec![Simple::default()] };
    match reader.read() {
        Some(()) => reader.commands.into_iter().filter(|command| !command.words.is_empty()).collect(),
        None => Vec::new(),
    }
}

/// Words that begin, continue or end something larger than a simple command, and those that change what follows.
const BEYOND: [&str; 24] = [
    "if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac", "select",
    "function", "{", "}", "[[", "coproc", "eval", "alias", "source", ".", "exec", "trap",
];

struct Reader {
    rest: Vec<char>,
    at: usize,
    commands: Vec<Simple>,
}

impl Reader {
    /// `None` when the script is beyond us.
    fn read(&mut self) -> Option<()> {
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' | '\r' => self.at += 1,
                '#' => self.skip_line(),
                '\n' | ';' => self.separate(false),
                '&' if self.ahead("&>") => self.redirect()?,
                '&' => {
                    self.skip_all('&');
                    self.separate(false);
                }
                '|' => {
                    let before = self.at;
                    self.skip_all('|');
                    let pipe = self.at - before == 1;
                    if pipe && self.peek() == Some('&') {
                        self.at += 1;
                    }
                    self.separate(pipe);
                    self.skip_blank_lines(pipe);
                }
                '(' | ')' => return None,
                '<' | '>' => self.redirect()?,
                '0'..='9' if self.descriptor() => self.redirect()?,
                _ => {
                    let (word, quoted) = self.word()?;
                    self.take(word, quoted)?;
                }
            }
        }
        Some(())
    }

    fn peek(&self) -> Option<char> {
        self.rest.get(self.at).copied()
    }

    fn ahead(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(offset, wanted)| self.rest.get(self.at + offset) == Some(&wanted))
    }

    fn skip_all(&mut self, what: char) {
        while self.peek() == Some(what) {
            self.at += 1;
        }
    }

    fn skip_line(&mut self) {
        while self.peek().is_some_and(|next| next != '\n') {
            self.at += 1;
        }
    }

    fn skip_blank_lines(&mut self, pipe: bool) {
        // A pipe goes on after a line break.
        while pipe && self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn separate(&mut self, fed: bool) {
        if matches!(self.peek(), Some('\n' | ';')) {
            self.at += 1;
        }
        self.commands.push(Simple { fed, ..Simple::default() });
    }

    /// Whether digits here are the descriptor of a redirection.
    fn descriptor(&self) -> bool {
        let digits = self.rest[self.at..].iter().take_while(|next| next.is_ascii_digit()).count();
        matches!(self.rest.get(self.at + digits), Some('<' | '>'))
    }

    /// Takes a redirection and its target. `None` for here-documents, whose text would be read as commands.
    fn redirect(&mut self) -> Option<()> {
        while self.peek().is_some_and(|next| next.is_ascii_digit() || next == '&') {
            self.at += 1;
        }
        let input = self.peek() == Some('<');
        if self.ahead("<<<") {
            self.at += 3;
        } else if self.ahead("<<") {
            return None;
        } else {
            while matches!(self.peek(), Some('<' | '>' | '&' | '|')) {
                self.at += 1;
            }
        }
        while matches!(self.peek(), Some(' ' | '\t')) {
            self.at += 1;
        }
        self.word()?;
        if input && let Some(command) = self.commands.last_mut() {
            command.fed = true;
        }
        Some(())
    }

    /// A word without its quotes, and whether it had any. `None` where something is substituted that we cannot read.
    fn word(&mut self) -> Option<(String, bool)> {
        let (mut word, mut quoted, start) = (String::new(), false, self.at);
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '<' | '>' => break,
                '(' | ')' | '`' => return None,
                '\'' => {
                    quoted = true;
                    self.at += 1;
                    self.until('\'', &mut word)?;
                }
                '"' => {
                    quoted = true;
                    self.at += 1;
                    self.double_quoted(&mut word)?;
                }
                '\\' => {
                    self.at += 1;
                    word.extend(self.peek().filter(|next| *next != '\n'));
                    self.at += 1;
                }
                '$' if self.ahead("$(") => return None,
                _ => {
                    word.push(next);
                    self.at += 1;
                }
            }
        }
        // Nothing was there where a word had to be.
        (self.at > start).then_some((word, quoted))
    }

    fn until(&mut self, end: char, word: &mut String) -> Option<()> {
        loop {
            let next = self.peek()?;
            self.at += 1;
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
                    self.at += 1;
                    return Some(());
                }
                '`' => return None,
                '$' if self.ahead("$(") => return None,
                '\\' => {
                    word.extend(self.rest.get(self.at + 1));
                    self.at += 2;
                }
                next => {
                    word.push(next);
                    self.at += 1;
                }
            }
        }
    }

    fn take(&mut self, word: String, quoted: bool) -> Option<()> {
        let command = self.commands.last_mut()?;
        if command.words.is_empty() && !quoted {
            if BEYOND.contains(&word.as_str()) {
                return None;
            }
            // These say nothing about what is run.
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
        commands(script).into_iter().map(|command| (command.words.join("|"), command.fed)).collect()
    }

    #[test]
    fn simple_commands_are_told_apart() {
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
            let expected: Vec<_> = expected.into_iter().map(|(words, fed)| (words.to_owned(), fed)).collect();
            assert_eq!(read(script), expected, "{script}");
        }
    }

    #[test]
    fn what_is_beyond_gives_nothing() {
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
    fn nothing_makes_it_hang_or_panic() {
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
