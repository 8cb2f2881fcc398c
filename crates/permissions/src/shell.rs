//! Which commands are in a shell script, as far as that can be told without running it.
//!
//! The reader follows the structure of bash just as far as needed to find every command that could be run, wherever it
//! hides. It does not check a script: what bash would refuse may be read as something, and is judged then. Where it is
//! not certain how bash would read a script, the reader is lost, and the script counts as unknown as a whole.

mod compound;
mod cursor;
mod dollar;
mod heredoc;
mod known;
mod list;
mod options;
mod run;
mod variables;
mod word;
mod wrappers;

use crate::{path, wildcard::ANY};

const MAX_BYTES: usize = 64 * 1024;
const MAX_DEPTH: usize = 32;
const MAX_COMMANDS: usize = 1000;

/// What a script may do.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) commands: Vec<Command>,
    pub(crate) redirections: Vec<Redirection>,
    /// Where relative paths begin is not known.
    pub(crate) changes_directory: bool,
    overflow: bool,
    /// A number is computed, which may run what a variable holds.
    computes: bool,
    /// There is a text that runs commands when it is computed.
    loaded: bool,
    /// How often something was read twice.
    rewinds: usize,
    /// How often the reader went on after it was lost.
    resumed: usize,
}

/// A word after quotes are removed and lines joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    /// Holds [`ANY`] for what only running it would tell.
    pub(crate) text: String,
    /// As it was written.
    pub(crate) raw: String,
}

impl Word {
    fn literal(&self) -> bool {
        !self.text.contains(ANY)
    }

    /// Written without quotes or anything else that the shell acts on, as only such a word can be one of its own.
    fn plain(&self) -> bool {
        self.text == self.raw
    }

    /// Certainly one word when it is run: what is not quoted may become none or several.
    fn single(&self) -> bool {
        let quotes = self.raw.matches('"').count() == 2 && self.raw.ends_with('"');
        let before = self.raw.split_once('"').map_or("", |(before, _)| before);
        // `"$@"` and `"${a[@]}"` are as many words as there are.
        self.literal()
            || (quotes && !before.contains(['$', '`', '*', '?', '[', '{']) && !self.raw.contains('@'))
    }
}

/// One command that could be run.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    /// Empty for a script as a whole.
    pub(crate) words: Vec<Word>,
    pub(crate) text: String,
    pub(crate) raw: String,
    /// Why it may run anything.
    pub(crate) unknown: Option<&'static str>,
    /// Variables are set for it alone.
    pub(crate) assigned: bool,
}

impl Command {
    fn new(words: Vec<Word>, unknown: Option<&'static str>) -> Self {
        let join = |part: fn(&Word) -> &str| words.iter().map(part).collect::<Vec<_>>().join(" ");
        let (text, raw) = (join(|word| &word.text), join(|word| &word.raw));
        Self { words, text, raw, unknown, assigned: false }
    }

    fn whole(script: &str, why: &'static str) -> Self {
        Self {
            words: Vec::new(),
            text: ANY.to_string(),
            raw: script.trim().to_owned(),
            unknown: Some(why),
            assigned: false,
        }
    }

    /// The text as rules may have written it: without the directory of the program, or without the options of git
    /// before its sub-command. And whether that is certainly the same program.
    pub(crate) fn also(&self) -> Vec<(String, bool)> {
        const SYSTEM: [&str; 5] = ["/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin"];
        let Some((first, rest)) = self.words.split_first() else { return Vec::new() };
        let Some(program) = self.program() else { return Vec::new() };
        let join = |rest: &[Word]| {
            let words = std::iter::once(program).chain(rest.iter().map(|word| word.text.as_str()));
            words.collect::<Vec<_>>().join(" ")
        };
        let directory = first.text.rsplit_once('/').map(|(directory, _)| directory);
        let mut also: Vec<_> =
            directory.map(|directory| (join(rest), SYSTEM.contains(&directory))).into_iter().collect();
        let at = if program == "git" { wrappers::git_subcommand(&self.words) } else { 1 };
        if at > 1 {
            also.push((join(&self.words[at..]), false));
        }
        let normal: Vec<String> = self.words.iter().map(normal).collect();
        if normal.iter().zip(&self.words).any(|(normal, word)| *normal != word.text) {
            also.push((normal.join(" "), false));
        }
        also
    }

    /// The text for rules about paths: those are words of their own, and mean nothing to commands that only print.
    pub(crate) fn named(&self) -> String {
        if let Some(program @ ("echo" | "printf")) = self.program() {
            return program.to_owned();
        }
        // A blank within a word ends no path.
        let words = self.words.iter().map(|word| normal(word).replace([' ', '\t', '\n'], "\u{a0}"));
        if self.words.is_empty() { self.text.clone() } else { words.collect::<Vec<_>>().join(" ") }
    }

    /// Whether its text will mean the same the next time: it neither runs what it reads nor what a variable holds.
    pub(crate) fn says_what_it_does(&self) -> bool {
        let Some(reason) = self.unknown else { return true };
        let literal = self.words.iter().all(Word::literal);
        let opens = [run::PROGRAM, run::PARTLY, run::VARIABLE, wrappers::FROM_INPUT, wrappers::SHELL]
            .contains(&reason);
        !opens && (literal || reason == run::CHANGES_OTHERS)
    }

    /// The program without its directory, if that can be told.
    pub(crate) fn program(&self) -> Option<&str> {
        program(&self.words)
    }
}

fn program(words: &[Word]) -> Option<&str> {
    let first = words.first().filter(|word| word.literal())?;
    Some(first.text.rsplit_once('/').map_or(first.text.as_str(), |(_, name)| name))
}

/// A word that may be a path, without what says nothing in it.
fn normal(word: &Word) -> String {
    let text = word.text.as_str();
    let strange = ["//", "/./", "/../"].iter().any(|part| text.contains(part)) && !text.contains("://");
    if !strange || !word.literal() {
        return text.to_owned();
    }
    let path = path::lexical(text);
    if text.starts_with('/') { format!("/{}", path.trim_start_matches("../")) } else { path }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirection {
    pub(crate) target: Word,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

/// The reader does not know how bash would go on.
#[derive(Debug)]
struct Lost;

type Found<T = ()> = Result<T, Lost>;

/// Reads a script.
pub(crate) fn read(script: &str) -> Script {
    let mut found = Script::default();
    if script.len() > MAX_BYTES || script.contains(ANY) {
        found.commands.push(Command::whole(script, "it is too long to be judged"));
        return found;
    }
    run::scan(script, 0, false, &mut found);
    if found.overflow {
        found.commands.push(Command::whole(script, "it has too many commands to be judged"));
    }
    if found.computes && found.loaded {
        found.commands.push(Command::whole(script, "it computes with a text that may hold commands"));
    }
    if found.commands.is_empty() {
        // Only variables, tests or comments.
        let word = Word { text: script.trim().to_owned(), raw: script.trim().to_owned() };
        found.commands.push(Command::new(vec![word], None));
    }
    found
}

impl Script {
    fn push(&mut self, command: Command) {
        if self.commands.len() < MAX_COMMANDS {
            self.commands.push(command);
        } else {
            self.overflow = true;
        }
    }
}

/// `name=value`, `name+=value` or `name[…]=value`.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (target, value) = word.split_once('=')?;
    let name = target.strip_suffix('+').unwrap_or(target);
    let name = name.split_once('[').map_or(name, |(name, _)| name);
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let all = name.chars().all(|next| next.is_ascii_alphanumeric() || next == '_');
    (begins && all).then_some((name, value))
}
