//! Whether a sed script executes commands, by its command `e` or by a flag of `s`.

use crate::shell::Word;

/// The position of the script that does, or that cannot be read.
pub(super) fn position(words: &[Word]) -> Option<usize> {
    let mut scripts = Vec::new();
    let (mut operands, mut at, mut named) = (Vec::new(), 1, false);
    while let Some(word) = words.get(at) {
        let text = word.text.as_str();
        match text {
            "--" => {
                operands.extend(at + 1..words.len());
                break;
            }
            "-e" | "--expression" => {
                (at, named) = (at + 1, true);
                scripts.push((at, words.get(at).map_or("", |word| word.text.as_str())));
            }
            // The script is in a file.
            "-f" | "--file" => return Some((at + 1).min(words.len() - 1)),
            "--sandbox" => return None,
            "-l" | "--line-length" => at += 1,
            "-n" | "-E" | "-r" | "-s" | "-u" | "-z" | "-i" | "--quiet" | "--silent" | "--null-data"
            | "--in-place" | "--regexp-extended" | "--separate" | "--unbuffered" | "--posix" | "--debug"
            | "--follow-symlinks" | "--version" | "--help" => {}
            text if text.starts_with("--expression=") => {
                named = true;
                scripts.push((at, &text["--expression=".len()..]));
            }
            text if text.starts_with("-i") || text.starts_with("--in-place=") => {}
            text if text.starts_with('-') && text.len() > 1 => match bundled(text) {
                Bundled::Flags => {}
                Bundled::Script(script) => {
                    named = true;
                    scripts.push((at, script));
                }
                Bundled::ScriptNext => {
                    (at, named) = (at + 1, true);
                    scripts.push((at, words.get(at).map_or("", |word| word.text.as_str())));
                }
                Bundled::Unknown => return Some(at),
            },
            _ => operands.push(at),
        }
        at += 1;
    }
    if let Some(first) = operands.first().filter(|_| !named) {
        scripts.push((*first, &words[*first].text));
    }
    // Options are also read after operands, so an expansion may be one.
    let expanded =
        operands.iter().copied().skip(usize::from(!named)).filter(|at| words[*at].text.starts_with('\0'));
    let executing = scripts.into_iter().filter(|(_, script)| executes(script)).map(|(at, _)| at);
    executing.chain(expanded).map(|at| at.min(words.len() - 1)).max()
}

enum Bundled<'a> {
    Flags,
    Script(&'a str),
    ScriptNext,
    Unknown,
}

/// Short options in one word, such as `-ne`.
fn bundled(text: &str) -> Bundled<'_> {
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            'n' | 'E' | 'r' | 's' | 'u' | 'z' => {}
            // The rest is a suffix.
            'i' => return Bundled::Flags,
            'e' if at + 1 == text.len() => return Bundled::ScriptNext,
            'e' => return Bundled::Script(&text[at + 1..]),
            _ => return Bundled::Unknown,
        }
    }
    Bundled::Flags
}

/// Whether a script executes commands. In doubt, it does.
fn executes(script: &str) -> bool {
    let mut reader = Reader { chars: script.chars().collect(), at: 0 };
    reader.script().is_none()
}

struct Reader {
    chars: Vec<char>,
    at: usize,
}

impl Reader {
    fn next(&mut self) -> Option<char> {
        let next = self.chars.get(self.at).copied();
        self.at += usize::from(next.is_some());
        next
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn skip(&mut self, is: impl Fn(char) -> bool) {
        while self.peek().is_some_and(&is) {
            self.at += 1;
        }
    }

    /// `None` if a command executes something, or is not understood.
    fn script(&mut self) -> Option<()> {
        loop {
            self.skip(|next| next.is_whitespace() || next == ';' || next == '}' || next == '{');
            if self.peek().is_none() {
                return Some(());
            }
            self.address()?;
            match self.next()? {
                '{' | '}' | '=' | 'd' | 'D' | 'g' | 'G' | 'h' | 'H' | 'n' | 'N' | 'p' | 'P' | 'x' | 'z'
                | 'F' => {}
                's' => {
                    let delimiter = self.next()?;
                    self.text_to(delimiter)?;
                    self.text_to(delimiter)?;
                    self.flags()?;
                }
                'y' => {
                    let delimiter = self.next()?;
                    self.text_to(delimiter)?;
                    self.text_to(delimiter)?;
                }
                'q' | 'Q' | 'l' | 'L' => self.skip(|next| next == ' ' || next.is_ascii_digit()),
                '#' | 'r' | 'R' | 'w' | 'W' => self.skip(|next| next != '\n'),
                // Some versions end labels at a semicolon.
                'b' | 't' | 'T' | ':' => self.skip(|next| next != '\n' && next != ';'),
                'a' | 'i' | 'c' => {
                    while let Some(next) = self.next().filter(|next| *next != '\n') {
                        if next == '\\' {
                            self.next();
                        }
                    }
                }
                _ => return None,
            }
        }
    }

    fn address(&mut self) -> Option<()> {
        loop {
            match self.peek() {
                Some('/') => {
                    self.at += 1;
                    self.text_to('/')?;
                    self.skip(|next| next == 'I' || next == 'M');
                }
                Some('\\') => {
                    self.at += 1;
                    let delimiter = self.next()?;
                    self.text_to(delimiter)?;
                    self.skip(|next| next == 'I' || next == 'M');
                }
                Some(next) if next.is_ascii_digit() || " \t$,~+!".contains(next) => self.at += 1,
                _ => return Some(()),
            }
        }
    }

    /// Reads a text up to its delimiter. Whether a bracket expression hides the delimiter depends on the version, so that is
    /// in doubt.
    fn text_to(&mut self, delimiter: char) -> Option<()> {
        if delimiter == '\\' || delimiter == '\n' || delimiter == '\0' {
            return None;
        }
        let mut bracket: Option<usize> = None;
        loop {
            let next = self.next()?;
            match next {
                '\\' => {
                    self.next()?;
                }
                '\0' => return None,
                next if next == delimiter => return bracket.is_none().then_some(()),
                '[' if bracket.is_none() => bracket = Some(self.at),
                // Right after the beginning, it is a member.
                ']' if bracket
                    .is_some_and(|begin| self.at > begin + 1 && self.chars.get(begin) != Some(&'^')) =>
                {
                    bracket = None;
                }
                ']' if bracket.is_some_and(|begin| self.at > begin + 2) => bracket = None,
                _ => {}
            }
        }
    }

    fn flags(&mut self) -> Option<()> {
        loop {
            match self.peek() {
                Some(next) if next.is_ascii_digit() || "gpIiMm".contains(next) => self.at += 1,
                Some('w') => {
                    self.skip(|next| next != '\n');
                    return Some(());
                }
                None | Some(';' | '\n' | '}' | ' ' | '\t' | '#') => return Some(()),
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_execute_are_found() {
        for script in [
            "e",
            "1e ls",
            "s/a/b/e",
            "s/a/b/ge",
            "s,a,b,;e",
            "/x/e date",
            "p;e ls",
            "{e}",
            "$!e",
            "y/a/b/;e",
            "s/[/]/e",
            "a\\\nx\ne ls",
            "k",
            "s/a/\0/",
            "s/a",
        ] {
            assert!(executes(script), "{script:?}");
        }
        for script in [
            "",
            "s/a/b/",
            "s/e/e/g",
            "p",
            "1,5p",
            "$d",
            "/e/d",
            "s|e/x|e|gI",
            "1i\\\ne",
            "a e",
            "/a/,/b/{s/x/y/;p}",
            "s/[a-z]e/b/2p",
            "s/a\\/e/b/",
            "y/e/f/",
            ":e\nbe",
            "# e",
            "1~2d",
            "s/a/b/w e",
            "N;P;D",
            "s/[]]/x/g",
            "s/[^e]*$//",
        ] {
            assert!(!executes(script), "{script:?}");
        }
    }
}
