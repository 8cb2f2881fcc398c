//! What is known about programs and variables by their names.

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
        | "PYTHONHOME" | "JAVA_TOOL_OPTIONS" | "LESSOPEN" | "RUSTC_WRAPPER" => Setting::ChangesOthers,
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
pub(super) const COMPUTES: [&str; 13] = [
    "let", "test", "[", "declare", "typeset", "local", "export", "readonly", "printf", "read", "unset",
    "wait", "mapfile",
];

/// What they run is in a file, or in a form that is not read here.
pub(super) const UNKNOWN: [&str; 8] = ["source", ".", "enable", "bind", "complete", "fc", "at", "batch"];

/// They read a script from their input when nothing else is said.
pub(super) const INTERPRETERS: [&str; 10] =
    ["python", "python2", "python3", "perl", "ruby", "node", "nodejs", "php", "lua", "deno"];

pub(super) const SHELLS: [&str; 8] = ["bash", "sh", "dash", "zsh", "ksh", "mksh", "ash", "rbash"];

/// Whether a path is the input of whoever opens it.
pub(super) fn is_input(path: &str) -> bool {
    path == "-" || path == "/dev/stdin" || path.starts_with("/dev/fd/") || path.starts_with("/proc/")
}
