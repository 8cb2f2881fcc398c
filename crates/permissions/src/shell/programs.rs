//! Facts about programs and shell builtins by name.

use super::Word;
use crate::path;

/// Shell builtins whose arguments are assignments.
pub(super) const DECLARES: [&str; 5] = ["export", "declare", "typeset", "local", "readonly"];

/// Shell builtins that evaluate arguments as arithmetic, and so run substitutions in an array index.
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

/// Programs whose commands are in a file or in a form that is not parsed here.
pub(super) const UNKNOWN: [&str; 9] =
    ["source", ".", "enable", "bind", "complete", "compgen", "fc", "at", "batch"];

/// Interpreters that by default read a script from their input.
const INTERPRETERS: [&str; 16] = [
    "python", "pypy", "perl", "ruby", "node", "nodejs", "php", "lua", "luajit", "deno", "bun", "tclsh",
    "Rscript", "julia", "guile", "irb",
];

/// Compares the name without a version suffix.
pub(super) fn is_interpreter(program: &str) -> bool {
    let name = program.trim_end_matches(|next: char| next.is_ascii_digit() || next == '.');
    INTERPRETERS.contains(&name)
}

/// Whether an interpreter with these arguments reads a script from its input or from a process substitution.
pub(super) fn runs_input(program: &str, words: &[Word]) -> bool {
    const TAKES_NEXT: [&str; 6] = ["-W", "-X", "-r", "-I", "--require", "--import"];
    let python = program.starts_with("py");
    let tells =
        |text: &str| matches!(text, "--version" | "-V" | "--help" | "-h") || (text == "-v" && !python);
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let text = word.text.as_str();
        if is_input(text) || word.raw.starts_with("<(") {
            return true;
        }
        if tells(text) || !text.starts_with('-') {
            return false;
        }
        if TAKES_NEXT.contains(&text) {
            rest.next();
        }
    }
    true
}

pub(super) const SHELLS: [&str; 14] = [
    "bash", "sh", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish", "csh", "tcsh", "yash", "ksh93",
    "pwsh",
];

/// Shells with another syntax: the parser may miss commands in their scripts.
pub(super) const FOREIGN: [&str; 6] = ["zsh", "fish", "csh", "tcsh", "yash", "pwsh"];

/// Whether a path refers to an open file descriptor of the process that opens it.
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

/// Whether a path certainly is the standard input of the process that opens it.
pub(super) fn is_own_input(path: &str) -> bool {
    matches!(path, "-" | "/dev/stdin" | "/dev/fd/0" | "/proc/self/fd/0")
}
