//! The table of programs that execute something else, by option, sub-command or argument.
//!
//! A program with several rows executes with each of them. Wrappers such as `env`, whose arguments are the command, are not
//! here: their command is judged on its own.

mod languages;
mod packages;
mod system;

use super::Row;

const CODE: &str = "it executes code of files or arguments";
const BUILDS: &str = "it executes code of the workspace or of packages";
const SETTING: &str = "a setting may name a program that it runs";
const OPTION: &str = "an option names a program, or a file with commands, that it runs";
const ARGUMENT: &str = "an argument may hold commands that it runs";
const ALIAS: &str = "it may be an alias or an extension, which can run any program";
const TRANSPORT: &str = "an address names the program that connects";
const IMAGE: &str = "it runs the program of an image";
const FILTER: &str = "the script may run commands";

pub(super) fn rows() -> impl Iterator<Item = &'static Row> {
    [system::ROWS, languages::ROWS, packages::ROWS].into_iter().flatten()
}

/// Options whose value is a command: letters, and long names, which may be abbreviated.
pub(super) const COMMAND_OPTIONS: &[(&[&str], &str, &[&str])] = &[
    (
        &["tar", "gtar", "bsdtar"],
        "IF",
        &[
            "use-compress-program",
            "info-script",
            "new-volume-script",
            "to-command",
            "rsh-command",
            "checkpoint-action",
        ],
    ),
    (&["cpio"], "", &["rsh-command"]),
    (&["sort"], "", &["compress-program"]),
    (&["split"], "", &["filter"]),
    (&["install"], "", &["strip-program"]),
    (&["diff3"], "", &["diff-program"]),
    (&["rg"], "", &["pre", "hostname-bin"]),
    (&["ag", "ack", "bat", "batcat"], "", &["pager"]),
    (&["fzf", "sk"], "", &["preview"]),
    (&["man"], "PH", &["pager", "html"]),
    (&["wget", "wget2"], "", &["use-askpass"]),
    (&["nc", "ncat", "netcat"], "ec", &["exec", "sh-exec"]),
    (&["tcpdump"], "z", &[]),
    (&["hg", "svn"], "", &["ssh", "diff-cmd", "diff3-cmd", "editor-cmd"]),
    (&["helm"], "", &["post-renderer"]),
];
