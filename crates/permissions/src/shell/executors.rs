//! Finds out whether a command makes its program execute something else, such as code of the workspace or a program that
//! an option names.
//!
//! A rule that allows the program does not mean these: `git *` is about git, not about the program behind `-c
//! core.fsmonitor`. So a rule that allows such a command has to name what executes, up to the word in question: `cargo
//! *` does not allow `cargo run`, `cargo run *` does. Commands that are known are judged on their own besides.

mod git;
mod sed;
mod table;

use super::{
    Word,
    wrappers::{NestedCommand, options_with_values},
};
use crate::wildcard::ANY;

/// That a command makes its program execute something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Executes {
    /// The number of words that a rule which allows the command has to name.
    pub(crate) words: usize,
    pub(crate) why: &'static str,
}

/// When a program executes something else.
#[derive(Clone, Copy, Debug)]
enum When {
    /// Always: that is what it is for.
    Always,
    /// With another sub-command than these.
    SubcommandExcept(&'static [&'static str]),
    /// With one of these words as an argument.
    Argument(&'static [&'static str]),
    /// With an option: letters that may be bundled, and long names that may be abbreviated.
    Option { letters: &'static str, long: &'static [&'static str] },
    /// With an argument that begins like this.
    Begins(&'static [&'static str]),
    /// With an argument that contains this, in any case.
    Contains(&'static [&'static str]),
    /// With options in the first word, even without a dash.
    Bundled(&'static str),
    /// By rules of its own: the position of the last word that matters.
    Special(fn(&[Word]) -> Option<usize>),
}

/// One row of the table.
type Row = (&'static [&'static str], When, &'static str);

/// What a command makes its program execute, if anything. If several words do, all of them have to be named.
pub(super) fn find(program: &str, words: &[Word]) -> Option<Executes> {
    let name = without_version(program);
    let rows = table::rows().filter(|(programs, ..)| programs.contains(&program) || programs.contains(&name));
    let found = rows.filter_map(|(_, when, why)| {
        when.position(words).map(|position| Executes { words: position + 1, why })
    });
    found.max_by_key(|executes| executes.words)
}

/// The commands in the values of options.
pub(super) fn option_commands(program: &str, words: &[Word]) -> Vec<NestedCommand> {
    let name = without_version(program);
    let rows = table::COMMAND_OPTIONS
        .iter()
        .filter(|(programs, ..)| programs.contains(&program) || programs.contains(&name));
    let values = rows.flat_map(|(_, letters, long)| options_with_values(&words[1..], letters, long));
    let command = |value: Word| {
        let text = value.text.strip_prefix("exec=").unwrap_or(&value.text).to_owned();
        NestedCommand::Script { text, posix: true }
    };
    values.map(command).collect()
}

/// `python3.12` is a `python`.
fn without_version(program: &str) -> &str {
    program.trim_end_matches(|next: char| next.is_ascii_digit() || next == '.' || next == '-')
}

impl When {
    /// The position of the last word that makes the program execute something.
    fn position(&self, words: &[Word]) -> Option<usize> {
        let last = |is: &dyn Fn(&str) -> bool| {
            let found = words.iter().enumerate().skip(1).filter(|(_, word)| is(&word.text));
            found.map(|(at, _)| at).last()
        };
        // Anything may come out of an expansion, except after `--`.
        let options = words.iter().position(|word| word.text == "--").unwrap_or(words.len());
        let expanded =
            || words[..options].iter().skip(1).rposition(|word| word.text.starts_with(ANY)).map(|at| at + 1);
        match self {
            Self::Always => Some(0),
            Self::SubcommandExcept(harmless) => {
                let at = words.iter().skip(1).position(|word| !word.text.starts_with(['-', '+']))? + 1;
                (!harmless.contains(&words[at].text.as_str())).then_some(at)
            }
            Self::Argument(arguments) => last(&|text| arguments.contains(&text)),
            Self::Option { letters, long } => {
                let is = |text: &str| match text.strip_prefix("--") {
                    Some(name) => {
                        let name = name.split('=').next().unwrap_or_default();
                        !name.is_empty() && long.iter().any(|long| long.starts_with(name))
                    }
                    None => text
                        .strip_prefix('-')
                        .is_some_and(|given| given.contains(|next| letters.contains(next))),
                };
                last(&is).max(expanded())
            }
            Self::Begins(begins) => {
                last(&|text| begins.iter().any(|begin| text.starts_with(begin))).max(expanded())
            }
            Self::Contains(parts) => {
                let is = |text: &str| {
                    let text = text.to_ascii_lowercase();
                    text.contains(ANY) || parts.iter().any(|part| text.contains(part))
                };
                last(&is)
            }
            Self::Bundled(letters) => {
                let first = words.get(1).filter(|word| !word.text.starts_with('-'))?;
                first.text.contains(|next| letters.contains(next) || next == ANY).then_some(1)
            }
            Self::Special(position) => position(words),
        }
    }
}
