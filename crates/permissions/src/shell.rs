//! Static analysis of shell scripts: finds the commands that a script may run.
//!
//! The parser follows bash's grammar as far as needed to find every command that could run, wherever it is. It does not
//! validate: it may accept scripts that bash rejects. Where it is not certain how bash would parse a script, parsing fails
//! with [`Unparsable`], and the whole script counts as unknown.

mod collect;
mod compound;
mod executors;
mod expansion;
mod heredoc;
mod list;
mod options;
mod parser;
mod programs;
mod variables;
mod word;
mod wrappers;

pub(crate) use self::executors::Executes;
use crate::{path, wildcard::ANY};

const MAX_BYTES: usize = 64 * 1024;
const MAX_DEPTH: usize = 32;
const MAX_COMMANDS: usize = 1000;

/// What a script may do: its commands and redirections.
#[derive(Debug, Default)]
pub(crate) struct ScriptAnalysis {
    pub(crate) commands: Vec<Command>,
    pub(crate) redirections: Vec<Redirection>,
    /// The working directory may change, so relative paths are unknown.
    pub(crate) changes_directory: bool,
    overflow: bool,
    /// Arithmetic is evaluated, which may run commands in the value of a variable.
    evaluates_arithmetic: bool,
    /// There is text that runs commands if it is evaluated as arithmetic.
    has_runnable_text: bool,
    /// How often the parser went back.
    rewinds: usize,
    /// How often the parser resumed after a failure.
    resumed: usize,
}

/// A word after quote removal and line joining.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    /// Contains [`ANY`] for parts that are only known at run time.
    pub(crate) text: String,
    /// The source text.
    pub(crate) raw: String,
}

impl Word {
    fn literal(&self) -> bool {
        !self.text.contains(ANY)
    }

    /// Without quotes and expansions: only such a word can be a reserved word.
    fn plain(&self) -> bool {
        self.text == self.raw
    }

    /// Certainly expands to exactly one word: unquoted expansions may become none or several.
    fn single(&self) -> bool {
        let quotes = self.raw.matches('"').count() == 2 && self.raw.ends_with('"');
        let before = self.raw.split_once('"').map_or("", |(before, _)| before);
        // `"$@"` and `"${a[@]}"` expand to any number of words.
        self.literal()
            || (quotes && !before.contains(['$', '`', '*', '?', '[', '{']) && !self.raw.contains('@'))
    }
}

/// A command that may run.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    /// Empty for a whole script.
    pub(crate) words: Vec<Word>,
    pub(crate) text: String,
    pub(crate) raw: String,
    /// Why it may run anything, if so.
    pub(crate) unknown: Option<&'static str>,
    /// Has variable assignments before it.
    pub(crate) assigned: bool,
    /// That its program executes something else, if so.
    pub(crate) executes: Option<Executes>,
}

/// A text of a command that rules may match.
#[derive(Clone, Debug)]
pub(crate) struct AlternativeText {
    pub(crate) text: String,
    /// It is certainly the same program.
    pub(crate) same: bool,
    /// The number of characters that a rule which allows it has to name.
    pub(crate) named: usize,
}

impl Command {
    fn new(words: Vec<Word>, unknown: Option<&'static str>) -> Self {
        let join = |part: fn(&Word) -> &str| words.iter().map(part).collect::<Vec<_>>().join(" ");
        let (text, raw) = (join(|word| &word.text), join(|word| &word.raw));
        Self { words, text, raw, unknown, assigned: false, executes: None }
    }

    fn unknown_script(script: &str, why: &'static str) -> Self {
        Self {
            words: Vec::new(),
            text: ANY.to_string(),
            raw: script.trim().to_owned(),
            unknown: Some(why),
            assigned: false,
            executes: None,
        }
    }

    /// How many bytes of the text, and of the source text, a rule that allows the command has to name.
    pub(crate) fn named(&self, part: fn(&Word) -> &str) -> usize {
        let Some(executes) = self.executes else { return 0 };
        let words = self.words.iter().take(executes.words);
        words.map(|word| part(word).len() + 1).sum::<usize>().saturating_sub(1)
    }

    /// Other texts that rules may match: without the program's directory, or without git's options before its sub-command.
    pub(crate) fn alternative_texts(&self) -> Vec<AlternativeText> {
        const SYSTEM: [&str; 5] = ["/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin"];
        let Some((first, rest)) = self.words.split_first() else { return Vec::new() };
        let Some(program) = self.program() else { return Vec::new() };
        let join = |rest: &[Word]| {
            let words = std::iter::once(program).chain(rest.iter().map(|word| word.text.as_str()));
            words.collect::<Vec<_>>().join(" ")
        };
        let different = |text: String| AlternativeText { text, same: false, named: usize::MAX };
        let mut alternatives = Vec::new();
        if let Some((directory, _)) = first.text.rsplit_once('/') {
            let shorter = first.text.len() - program.len();
            let named = self.named(|word| &word.text).saturating_sub(shorter);
            let same = SYSTEM.contains(&directory);
            alternatives.push(AlternativeText { text: join(rest), same, named });
        }
        let at = if program == "git" { wrappers::git_subcommand(&self.words) } else { 1 };
        if at > 1 {
            alternatives.push(different(join(&self.words[at..])));
        }
        let normal: Vec<String> = self.words.iter().map(normalized).collect();
        if normal.iter().zip(&self.words).any(|(normal, word)| *normal != word.text) {
            alternatives.push(different(normal.join(" ")));
        }
        alternatives
    }

    /// The text for built-in rules about paths, which match whole words. Arguments of commands that only print are left out.
    pub(crate) fn text_for_paths(&self) -> String {
        if let Some(program @ ("echo" | "printf")) = self.program() {
            return program.to_owned();
        }
        // A blank within a word must not end a path.
        let words = self.words.iter().map(|word| normalized(word).replace([' ', '\t', '\n'], "\u{a0}"));
        if self.words.is_empty() { self.text.clone() } else { words.collect::<Vec<_>>().join(" ") }
    }

    /// Whether the same text will run the same command next time: it runs neither its input nor the value of a variable.
    pub(crate) fn is_self_contained(&self) -> bool {
        let Some(reason) = self.unknown else { return true };
        let literal = self.words.iter().all(Word::literal);
        let opens =
            [collect::PROGRAM, collect::PARTLY, collect::VARIABLE, wrappers::FROM_INPUT, wrappers::SHELL]
                .contains(&reason);
        !opens && (literal || reason == collect::CHANGES_OTHERS)
    }

    /// The program without its directory, if it is known.
    pub(crate) fn program(&self) -> Option<&str> {
        program(&self.words)
    }
}

fn program(words: &[Word]) -> Option<&str> {
    let first = words.first().filter(|word| word.literal())?;
    Some(first.text.rsplit_once('/').map_or(first.text.as_str(), |(_, name)| name))
}

/// A word normalized as a path, if it looks like one.
fn normalized(word: &Word) -> String {
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

/// It is not certain how bash would parse the script from here on.
#[derive(Debug)]
struct Unparsable;

type ParseResult<T = ()> = Result<T, Unparsable>;

/// Analyzes a script.
pub(crate) fn analyze(script: &str) -> ScriptAnalysis {
    let mut analysis = ScriptAnalysis::default();
    if script.len() > MAX_BYTES || script.contains(ANY) {
        analysis.commands.push(Command::unknown_script(script, "it is too long to be judged"));
        return analysis;
    }
    collect::scan(script, 0, false, &mut analysis);
    if analysis.overflow {
        analysis.commands.push(Command::unknown_script(script, "it has too many commands to be judged"));
    }
    if analysis.evaluates_arithmetic && analysis.has_runnable_text {
        analysis
            .commands
            .push(Command::unknown_script(script, "it evaluates text that may contain commands"));
    }
    if analysis.commands.is_empty() {
        // Only assignments, tests or comments.
        let word = Word { text: script.trim().to_owned(), raw: script.trim().to_owned() };
        analysis.commands.push(Command::new(vec![word], None));
    }
    analysis
}

impl ScriptAnalysis {
    fn push(&mut self, command: Command) {
        if self.commands.len() < MAX_COMMANDS {
            self.commands.push(command);
        } else {
            self.overflow = true;
        }
    }
}

/// Splits `name=value`, `name+=value` or `name[…]=value`.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (target, value) = word.split_once('=')?;
    let name = target.strip_suffix('+').unwrap_or(target);
    let name = name.split_once('[').map_or(name, |(name, _)| name);
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let all = name.chars().all(|next| next.is_ascii_alphanumeric() || next == '_');
    (begins && all).then_some((name, value))
}
