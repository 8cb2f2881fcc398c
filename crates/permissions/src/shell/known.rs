//! What is known about programs by their names.

use super::Word;
use crate::path;

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

/// Whether an interpreter with these words reads a script from its input, or from what another command writes.
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
