//! Finds the commands that wrapper programs such as `sudo` or `xargs` run.

mod git;
mod remote;
mod special;
mod tools;

pub(super) use git::{git_changes_settings, git_settings, git_subcommand};

use super::{
    Word,
    options::{self, OptionSpec, PLAIN},
    programs, variables,
};
use crate::wildcard::ANY;

/// The commands that a command runs.
#[derive(Debug, Default)]
pub(super) struct NestedCommands {
    pub(super) commands: Vec<NestedCommand>,
    /// Why it may run anything, if so.
    pub(super) unknown: Option<&'static str>,
}

#[derive(Debug)]
pub(super) enum NestedCommand {
    Words(Vec<Word>),
    /// With `posix`, the shell may not be bash.
    Script {
        text: String,
        posix: bool,
    },
}

const UNSURE: &str = "the start of the wrapped command is unclear";
pub(super) const SHELL: &str = "it starts a shell";
pub(super) const FROM_INPUT: &str = "it runs its input";
const ELSEWHERE: &str = "it runs commands from elsewhere";
const FOREIGN: &str = "it is run by another kind of shell";
const CHANGES_OTHERS: &str = "it changes what other commands do";

/// Programs whose arguments end with another command.
const WRAPPERS: &[(&[&str], OptionSpec)] = &[
    (&["nohup", "builtin", "busybox", "toybox", "eatmydata", "pkexec", "torify", "setpriv"], PLAIN),
    (&["setsid"], OptionSpec { flags: "cfw", long_flags: &["ctty", "fork", "wait"], ..PLAIN }),
    (&["nice"], OptionSpec { values: "n", flags: "0123456789", long_values: &["adjustment"], ..PLAIN }),
    (&["ionice"], OptionSpec { values: "cn", flags: "t", long_values: &["class", "classdata"], ..PLAIN }),
    (&["chrt"], OptionSpec { flags: "abfiormv", operands: 1, ..PLAIN }),
    (&["taskset"], OptionSpec { flags: "ac", operands: 1, ..PLAIN }),
    (&["gosu", "su-exec"], OptionSpec { operands: 1, ..PLAIN }),
    (&["fakeroot"], OptionSpec { values: "lsibd", flags: "u", ..PLAIN }),
    (&["stdbuf"], OptionSpec { values: "ioe", long_values: &["input", "output", "error"], ..PLAIN }),
    (
        &["timeout"],
        OptionSpec {
            values: "ks",
            flags: "fpv",
            long_values: &["kill-after", "signal"],
            long_flags: &["foreground", "preserve-status", "verbose"],
            operands: 1,
            ..PLAIN
        },
    ),
    (
        &["time"],
        OptionSpec {
            values: "fo",
            flags: "apqv",
            long_values: &["format", "output"],
            long_flags: &["portability", "verbose", "append", "quiet"],
            ..PLAIN
        },
    ),
    (&["doas"], OptionSpec { values: "uC", flags: "Lns", ..PLAIN }),
    (
        &["sudo"],
        OptionSpec {
            values: "ugpCrtTUhDR",
            flags: "AbBeEHiKklnNPSsvV",
            long_values: &["user", "group", "prompt", "close-from", "host", "chdir", "chroot", "other-user"],
            long_flags: &[
                "askpass",
                "background",
                "preserve-env",
                "set-home",
                "login",
                "non-interactive",
                "preserve-groups",
                "stdin",
                "shell",
                "list",
                "validate",
                "reset-timestamp",
                "edit",
            ],
            assignments: true,
            ..PLAIN
        },
    ),
    (
        &["chroot"],
        OptionSpec {
            long_flags: &["skip-chdir"],
            long_values: &["userspec", "groups"],
            operands: 1,
            ..PLAIN
        },
    ),
    (
        &["unshare"],
        OptionSpec {
            values: "RwSG",
            flags: "imnpuUCTfrc",
            long_flags: &["mount", "net", "pid", "user", "fork", "map-root-user", "ipc", "uts"],
            ..PLAIN
        },
    ),
    (
        &["strace", "ltrace"],
        OptionSpec {
            values: "abeEoOpPsSuUX",
            flags: "cCdDfFhiknqrtTvVwxyYzZ",
            long_flags: &["follow-forks"],
            ..PLAIN
        },
    ),
    (&["exec"], OptionSpec { values: "a", flags: "cl", ..PLAIN }),
    (&["prlimit"], OptionSpec { values: "p", long_values: &["pid"], ..PLAIN }),
    (
        &["linux32", "linux64", "i386", "x86_64"],
        OptionSpec { flags: "BFILRSTXZv3", long_flags: &["addr-no-randomize", "verbose"], ..PLAIN },
    ),
    (&["choom"], OptionSpec { values: "np", long_values: &["adjust", "pid"], ..PLAIN }),
    (
        &["nsenter"],
        OptionSpec {
            values: "tSG",
            flags: "amuinpUCTFre",
            long_values: &["target"],
            long_flags: &["all", "mount", "uts", "ipc", "net", "pid", "user"],
            ..PLAIN
        },
    ),
    (&["dbus-run-session"], OptionSpec { long_values: &["config-file", "dbus-daemon"], ..PLAIN }),
    (
        &["systemd-run"],
        OptionSpec {
            values: "puEMH",
            flags: "tPdqGS",
            long_values: &["unit", "property", "description", "slice", "uid", "gid", "setenv"],
            long_flags: &["user", "scope", "pty", "pipe", "wait", "collect", "quiet", "no-block"],
            ..PLAIN
        },
    ),
    (
        &["npx", "bunx", "pnpx", "uvx"],
        OptionSpec {
            values: "p",
            flags: "yq",
            long_values: &["package", "from"],
            long_flags: &["yes", "no-install"],
            ..PLAIN
        },
    ),
    (&["chronic", "unbuffer", "ifne"], OptionSpec { flags: "venp", ..PLAIN }),
    (&["entr"], OptionSpec { flags: "acdnprz", ..PLAIN }),
    (&["faketime"], OptionSpec { flags: "fm", operands: 1, ..PLAIN }),
    (&["valgrind", "xvfb-run", "proxychains", "proxychains4", "dumb-init", "tini", "catchsegv"], PLAIN),
];

/// Programs that start a shell if no command is given.
const STARTS_SHELL: [&str; 8] =
    ["sudo", "doas", "chroot", "unshare", "fakeroot", "nsenter", "linux32", "linux64"];

/// Whether arguments before the command may be assignments.
pub(super) fn sets_variables(program: &str) -> bool {
    matches!(program, "env" | "sudo")
}

/// The commands that a command runs, by its program and arguments.
pub(super) fn nested_commands(
    program: &str,
    words: &[Word],
    input: Option<&str>,
    posix: bool,
) -> NestedCommands {
    if let Some(nested) = special::nested_commands(program, words, input, posix) {
        return nested;
    }
    if programs::SHELLS.contains(&program) {
        return shell(program, words, input);
    }
    if programs::is_interpreter(program) {
        let unknown = programs::runs_input(program, &words[1..]).then_some(FROM_INPUT);
        return NestedCommands { unknown, ..NestedCommands::default() };
    }
    if programs::UNKNOWN.contains(&program) {
        return NestedCommands { unknown: Some(ELSEWHERE), ..NestedCommands::default() };
    }
    if programs::COMPUTES.contains(&program) {
        let runs = |word: &Word| variables::runs_when_evaluated(&word.text);
        let calls = matches!(program, "mapfile" | "readarray") && special::has_letter(words, 'C');
        let unknown = (calls || words[1..].iter().any(runs)).then_some(ELSEWHERE);
        return NestedCommands { unknown, ..NestedCommands::default() };
    }
    let Some((_, spec)) = WRAPPERS.iter().find(|(names, _)| names.contains(&program)) else {
        return NestedCommands::default();
    };
    let options = options::parse(spec, words, 1);
    let rest = words[options.rest..].to_vec();
    let is_shell = rest.is_empty() && STARTS_SHELL.contains(&program);
    let unknown = if options.unsure { Some(UNSURE) } else { is_shell.then_some(SHELL) };
    let mut commands = vec![NestedCommand::Words(rest)];
    commands.extend(
        input.filter(|_| is_shell).map(|text| NestedCommand::Script { text: text.to_owned(), posix: true }),
    );
    NestedCommands { commands, unknown }
}

const LONG_OPTIONS: [&str; 14] = [
    "login",
    "noediting",
    "posix",
    "norc",
    "noprofile",
    "rcfile",
    "init-file",
    "restricted",
    "verbose",
    "debugger",
    "debug",
    "dump-strings",
    "dump-po-strings",
    "protected",
];

/// Shells: `sh -c script`, `sh file`, or `sh` with a script as its input.
fn shell(program: &str, words: &[Word], input: Option<&str>) -> NestedCommands {
    let posix = !matches!(program, "bash" | "rbash");
    let (mut command, mut from_input, mut unsure) = (false, false, false);
    let mut operand = None;
    let mut rest = words[1..].iter();
    while let Some(word) = rest.next() {
        let text = word.text.as_str();
        if text == "--" || text == "-" {
            operand = rest.next();
            break;
        }
        let sign = text.starts_with(['-', '+']);
        if !sign {
            operand = Some(word);
            break;
        }
        unsure |= !word.single() || !word.literal();
        if matches!(text, "--version" | "--help") {
            return NestedCommands::default();
        }
        // Bash also accepts its long options with one dash.
        let long = text.trim_start_matches('-');
        if text.starts_with("--") || LONG_OPTIONS.contains(&long) {
            unsure |= !text.starts_with("--") || programs::FOREIGN.contains(&program);
            if matches!(long, "rcfile" | "init-file") {
                // The file runs before the rest.
                unsure = true;
                rest.next();
            }
            continue;
        }
        command |= text.starts_with('-') && text.contains('c');
        from_input |= text.contains('s');
        for _ in text.matches(['o', 'O']) {
            unsure |= rest.next().is_some_and(|value| !value.single());
        }
    }
    let script = |text: &str| NestedCommand::Script { text: text.to_owned(), posix };
    let mut nested = NestedCommands { unknown: unsure.then_some(UNSURE), ..NestedCommands::default() };
    match (operand, input) {
        (Some(operand), _) if command => {
            nested.commands.push(script(&operand.text));
            // Some shells continue with their input.
            if from_input {
                nested.commands.extend(input.map(script));
                nested.unknown = Some(FROM_INPUT);
            }
            if programs::FOREIGN.contains(&program) {
                nested.unknown = Some(FOREIGN);
            }
        }
        (Some(operand), _) if !from_input && !programs::is_own_input(&operand.text) => {
            if !operand.literal() || programs::is_input(&operand.text) {
                nested.unknown = Some(ELSEWHERE);
            }
        }
        (_, Some(input)) if !programs::FOREIGN.contains(&program) => nested.commands.push(script(input)),
        _ => nested.unknown = Some(FROM_INPUT),
    }
    nested
}

/// The values of options at any position: by letter, or by long name, which may be abbreviated.
pub(super) fn options_with_values(words: &[Word], letters: &str, long: &[&str]) -> Vec<Word> {
    let mut values = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let attached = if let Some(name) = word.text.strip_prefix("--") {
            let (name, value) = name.split_once('=').unwrap_or((name, ""));
            let is_option = !name.is_empty() && long.iter().any(|long| long.starts_with(name));
            is_option.then_some(value)
        } else {
            let given = word.text.strip_prefix('-').unwrap_or_default();
            given.find(|letter| letters.contains(letter)).map(|at| &given[at + 1..])
        };
        let Some(attached) = attached else { continue };
        if attached.is_empty() {
            values.extend(words.get(index + 1).cloned());
        } else {
            values.push(Word { text: attached.to_owned(), raw: attached.to_owned() });
        }
    }
    values
}

fn join_words(words: &[Word]) -> String {
    words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
}

/// Replaces placeholders by an unknown text.
fn fill_placeholders(words: &[Word], marks: &[&str]) -> Vec<Word> {
    let fill = |word: &Word| {
        let text = marks.iter().fold(word.text.clone(), |text, mark| text.replace(mark, "\0"));
        Word { text, raw: word.raw.clone() }
    };
    words.iter().map(fill).collect()
}

/// A word for unknown arguments at the end of a command.
fn unknown_arguments() -> Word {
    Word { text: ANY.to_string(), raw: String::from("…") }
}
