//! Variables that affect other commands, and the ways to set them or to run their values.

use super::Word;
use crate::wildcard::ANY;

/// The effect of a variable on other commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VariableEffect {
    Harmless,
    /// Other programs run its value as a command.
    Command,
    /// It determines which programs run or what they load.
    ChangesOthers,
}

pub(super) fn effect_of(name: &str) -> VariableEffect {
    match name {
        "EDITOR"
        | "VISUAL"
        | "PAGER"
        | "MANPAGER"
        | "BROWSER"
        | "PROMPT_COMMAND"
        | "RSYNC_RSH"
        | "GIT_SSH"
        | "GIT_SSH_COMMAND"
        | "GIT_EDITOR"
        | "GIT_SEQUENCE_EDITOR"
        | "GIT_PAGER"
        | "GIT_EXTERNAL_DIFF"
        | "GIT_ASKPASS"
        | "SSH_ASKPASS"
        | "SUDO_ASKPASS" => VariableEffect::Command,
        "PATH" | "HOME" | "ENV" | "BASH_ENV" | "IFS" | "PS4" | "SHELLOPTS" | "BASHOPTS" | "GIT_EXEC_PATH"
        | "GIT_DIR" | "PERL5OPT" | "PERL5DB" | "RUBYOPT" | "NODE_OPTIONS" | "PYTHONSTARTUP"
        | "PYTHONHOME" | "PYTHONPATH" | "NODE_PATH" | "PERL5LIB" | "JAVA_TOOL_OPTIONS" | "LESSOPEN"
        | "RUSTC" | "RUSTC_WRAPPER" | "XDG_CONFIG_HOME" | "TAR_OPTIONS" | "MAKEFLAGS" | "ZDOTDIR"
        | "SHELL" => VariableEffect::ChangesOthers,
        // How bash looks up command names.
        "BASH_CMDS" | "BASH_ALIASES" | "POSIXLY_CORRECT" | "EXECIGNORE" => VariableEffect::ChangesOthers,
        name if name.starts_with("LD_")
            || name.starts_with("GIT_CONFIG")
            || name.starts_with("BASH_FUNC") =>
        {
            VariableEffect::ChangesOthers
        }
        _ => VariableEffect::Harmless,
    }
}

/// Shell builtins that set the variables named by their arguments.
const TARGETS: [&str; 6] = ["read", "mapfile", "readarray", "getopts", "unset", "wait"];

/// Whether a shell builtin may set a variable that affects other commands, other than by assignment.
pub(super) fn sets_sensitive_variable(program: &str, words: &[Word]) -> bool {
    let begins = |text: &str, letter: char| text.starts_with('-') && text.contains([letter, ANY]);
    match program {
        program if TARGETS.contains(&program) => {
            words[1..].iter().any(|word| may_name(&word.text) || is_attached(&word.text))
        }
        // The variable is after `-v`, or after the format for `%n`.
        "printf" => {
            let names = |word: &Word| may_name(word.text.strip_prefix("-v").unwrap_or(&word.text));
            let first = words.get(1).map_or("", |word| word.text.as_str());
            match first.strip_prefix("-v") {
                Some("") => words.get(2).is_some_and(names) || words[2..].iter().any(is_sensitive),
                Some(name) => may_name(name),
                None if first.starts_with('-') && first.contains(ANY) => true,
                None if first.starts_with(ANY) && may_name(first) => true,
                None => words[1..].iter().any(is_sensitive),
            }
        }
        // `-n` declares a reference to another variable.
        "declare" | "typeset" | "local" => words[1..].iter().any(|word| begins(&word.text, 'n')),
        _ => false,
    }
}

/// Whether the name of a variable that affects other commands, or an unknown name, may be attached to an option: `-aPATH`.
fn is_attached(text: &str) -> bool {
    let mut ends = text.char_indices().map(|(at, _)| &text[at..]);
    text.starts_with('-') && (text.contains(ANY) || ends.any(may_name))
}

fn is_sensitive(word: &Word) -> bool {
    effect_of(&word.text) != VariableEffect::Harmless
}

/// Whether a text may be the name of a variable that affects other commands.
fn may_name(text: &str) -> bool {
    let name = text.split_once('[').map_or(text, |(name, _)| name);
    let any = name.chars().all(|next| next == ANY || next.is_ascii_alphanumeric() || next == '_');
    effect_of(name) != VariableEffect::Harmless || (any && name.contains(ANY))
}

/// Whether an arithmetic expression names a variable that affects other commands.
pub(super) fn names_sensitive_variable(text: &str) -> bool {
    let names = text.split(|next: char| !(next.is_ascii_alphanumeric() || next == '_'));
    names.into_iter().any(|name| effect_of(name) != VariableEffect::Harmless)
}

/// Whether a text runs commands if it is evaluated as arithmetic: `a[$(…)]`.
pub(super) fn runs_when_evaluated(text: &str) -> bool {
    let indexes = text.match_indices('[').filter(|(at, _)| {
        text[..*at].ends_with(|before: char| before.is_ascii_alphanumeric() || before == '_')
    });
    indexes.into_iter().next().is_some_and(|(at, _)| substitutes(&text[at..]))
}

/// Whether a text contains a command substitution, in case it is expanded again.
pub(super) fn substitutes(text: &str) -> bool {
    ["$(", "`", "${ ", "${\t", "${\n", "${|"].iter().any(|begin| text.contains(begin))
}
