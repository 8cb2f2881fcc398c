//! Variables: which matter to other commands, and the ways to set them or to run what they hold.

use super::Word;
use crate::wildcard::ANY;

/// What setting a variable does to other commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    Harmless,
    /// Its value is a command that others run.
    Command,
    /// It decides which programs others are, or what they load.
    ChangesOthers,
}

pub(super) fn setting(name: &str) -> Setting {
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
        | "SUDO_ASKPASS" => Setting::Command,
        "PATH" | "HOME" | "ENV" | "BASH_ENV" | "IFS" | "PS4" | "SHELLOPTS" | "BASHOPTS" | "GIT_EXEC_PATH"
        | "GIT_DIR" | "PERL5OPT" | "PERL5DB" | "RUBYOPT" | "NODE_OPTIONS" | "PYTHONSTARTUP"
        | "PYTHONHOME" | "PYTHONPATH" | "NODE_PATH" | "PERL5LIB" | "JAVA_TOOL_OPTIONS" | "LESSOPEN"
        | "RUSTC" | "RUSTC_WRAPPER" | "XDG_CONFIG_HOME" | "TAR_OPTIONS" | "MAKEFLAGS" | "ZDOTDIR"
        | "SHELL" => Setting::ChangesOthers,
        // What bash remembers about names, and whether it looks.
        "BASH_CMDS" | "BASH_ALIASES" | "POSIXLY_CORRECT" | "EXECIGNORE" => Setting::ChangesOthers,
        name if name.starts_with("LD_")
            || name.starts_with("GIT_CONFIG")
            || name.starts_with("BASH_FUNC") =>
        {
            Setting::ChangesOthers
        }
        _ => Setting::Harmless,
    }
}

/// Commands of the shell that set the variables they are told.
const TARGETS: [&str; 6] = ["read", "mapfile", "readarray", "getopts", "unset", "wait"];

/// Whether a command of the shell may set a variable that matters to others, in another way than by assigning it.
pub(super) fn sets_others(program: &str, words: &[Word]) -> bool {
    let begins = |text: &str, letter: char| text.starts_with('-') && text.contains([letter, ANY]);
    match program {
        program if TARGETS.contains(&program) => {
            words[1..].iter().any(|word| may_name(&word.text) || is_attached(&word.text))
        }
        // The name after `-v`, or after the format for `%n`.
        "printf" => {
            let names = |word: &Word| may_name(word.text.strip_prefix("-v").unwrap_or(&word.text));
            let first = words.get(1).map_or("", |word| word.text.as_str());
            match first.strip_prefix("-v") {
                Some("") => words.get(2).is_some_and(names) || words[2..].iter().any(is_named),
                Some(name) => may_name(name),
                None if first.starts_with('-') && first.contains(ANY) => true,
                None if first.starts_with(ANY) && may_name(first) => true,
                None => words[1..].iter().any(is_named),
            }
        }
        // Another name for a variable.
        "declare" | "typeset" | "local" => words[1..].iter().any(|word| begins(&word.text, 'n')),
        _ => false,
    }
}

/// Whether a name that matters to others, or one that cannot be told, may be attached to an option: `-aPATH`.
fn is_attached(text: &str) -> bool {
    let mut ends = text.char_indices().map(|(at, _)| &text[at..]);
    text.starts_with('-') && (text.contains(ANY) || ends.any(may_name))
}

fn is_named(word: &Word) -> bool {
    setting(&word.text) != Setting::Harmless
}

/// Whether a text may be the name of a variable that matters to others.
fn may_name(text: &str) -> bool {
    let name = text.split_once('[').map_or(text, |(name, _)| name);
    let any = name.chars().all(|next| next == ANY || next.is_ascii_alphanumeric() || next == '_');
    setting(name) != Setting::Harmless || (any && name.contains(ANY))
}

/// Whether an arithmetic expression names a variable that matters to others.
pub(super) fn computes_others(text: &str) -> bool {
    let names = text.split(|next: char| !(next.is_ascii_alphanumeric() || next == '_'));
    names.into_iter().any(|name| setting(name) != Setting::Harmless)
}

/// Whether a text runs commands when it is evaluated as a number: `a[$(…)]`.
pub(super) fn is_loaded(text: &str) -> bool {
    let indexes = text.match_indices('[').filter(|(at, _)| {
        text[..*at].ends_with(|before: char| before.is_ascii_alphanumeric() || before == '_')
    });
    indexes.into_iter().next().is_some_and(|(at, _)| substitutes(&text[at..]))
}

/// Whether a text holds a substitution of a command, should it be expanded once more.
pub(super) fn substitutes(text: &str) -> bool {
    ["$(", "`", "${ ", "${\t", "${\n", "${|"].iter().any(|begin| text.contains(begin))
}
