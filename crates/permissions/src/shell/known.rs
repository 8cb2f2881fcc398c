//! What is known about programs and variables by their names.

use super::Word;
use crate::{path, wildcard::ANY};

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

/// Commands of the shell whose words are assignments.
pub(super) const DECLARES: [&str; 5] = ["export", "declare", "typeset", "local", "readonly"];

/// Commands of the shell that compute with their words, and so run what is in an index.
pub(super) const COMPUTES: [&str; 15] = [
    "let",
    "test",
    "[",
    "declare",
    "typeset",
    "local",
    "export",
    "readonly",
    "printf",
    "read",
    "unset",
    "wait",
    "mapfile",
    "readarray",
    "getopts",
];

/// Commands of the shell that set the variables they are told.
const TARGETS: [&str; 6] = ["read", "mapfile", "readarray", "getopts", "unset", "wait"];

/// Whether a command of the shell may set a variable that matters to others, in another way than by assigning it.
pub(super) fn sets_others(program: &str, words: &[Word]) -> bool {
    let begins = |text: &str, letter: char| text.starts_with('-') && text.contains(letter);
    match program {
        program if TARGETS.contains(&program) => words[1..].iter().any(|word| may_name(&word.text)),
        // The name after `-v`, or after the format for `%n`.
        "printf" => {
            let names = |word: &Word| may_name(word.text.strip_prefix("-v").unwrap_or(&word.text));
            let first = words.get(1).map_or("", |word| word.text.as_str());
            match first.strip_prefix("-v") {
                Some("") => words.get(2).is_some_and(names) || words[2..].iter().any(is_named),
                Some(name) => may_name(name),
                None if first.starts_with(ANY) && may_name(first) => true,
                None => words[1..].iter().any(is_named),
            }
        }
        // Another name for a variable.
        "declare" | "typeset" | "local" => words[1..].iter().any(|word| begins(&word.text, 'n')),
        _ => false,
    }
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

/// What they run is in a file, or in a form that is not read here.
pub(super) const UNKNOWN: [&str; 9] =
    ["source", ".", "enable", "bind", "complete", "compgen", "fc", "at", "batch"];

/// They read a script from their input when nothing else is said.
const INTERPRETERS: [&str; 16] = [
    "python", "pypy", "perl", "ruby", "node", "nodejs", "php", "lua", "luajit", "deno", "bun", "tclsh",
    "Rscript", "julia", "guile", "irb",
];

/// By its name, with or without a version.
pub(super) fn is_interpreter(program: &str) -> bool {
    let name = program.trim_end_matches(|next: char| next.is_ascii_digit() || next == '.');
    INTERPRETERS.contains(&name)
}

/// Whether an interpreter with these words reads a script from its input.
pub(super) fn runs_input(words: &[Word]) -> bool {
    const ONLY_TELLS: [&str; 5] = ["--version", "-V", "-v", "--help", "-h"];
    match words {
        [only] if ONLY_TELLS.contains(&only.text.as_str()) => false,
        [first, ..] if is_input(&first.text) => true,
        words => words.iter().all(|word| word.text.starts_with('-') || is_input(&word.text)),
    }
}

pub(super) const SHELLS: [&str; 14] = [
    "bash", "sh", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish", "csh", "tcsh", "yash", "ksh93",
    "pwsh",
];

/// Shells whose scripts are read as if they were for another one, so what is found in them is not all.
pub(super) const FOREIGN: [&str; 6] = ["zsh", "fish", "csh", "tcsh", "yash", "pwsh"];

/// Whether a path is something that whoever opens it has open.
pub(super) fn is_input(path: &str) -> bool {
    let normal = path::lexical(path);
    let from_root = normal.trim_start_matches("../");
    let absolute = path.starts_with('/') || from_root.len() < normal.len();
    is_own_input(path)
        || absolute
            && ["dev/stdin", "dev/fd/", "proc/"]
                .iter()
                .any(|begin| format!("{from_root}/").starts_with(begin))
}

/// Whether a path is certainly the input of whoever opens it.
pub(super) fn is_own_input(path: &str) -> bool {
    matches!(path, "-" | "/dev/stdin" | "/dev/fd/0" | "/proc/self/fd/0")
}
