//! Programs that run what they are given.

mod git;
mod remote;
mod special;
mod tools;

pub(super) use git::{git_settings, git_subcommand};

use super::{
    Word, known,
    options::{self, PLAIN, Spec},
    variables,
};
use crate::wildcard::ANY;

/// What a command runs in turn.
#[derive(Debug, Default)]
pub(super) struct Inside {
    pub(super) parts: Vec<Part>,
    /// Why it may run anything.
    pub(super) unknown: Option<&'static str>,
}

#[derive(Debug)]
pub(super) enum Part {
    Words(Vec<Word>),
    /// Read by a shell that may not be bash if `posix`.
    Script {
        text: String,
        posix: bool,
    },
}

const UNSURE: &str = "where the command in it begins cannot be told";
pub(super) const SHELL: &str = "it starts a shell";
pub(super) const FROM_INPUT: &str = "it runs what it reads";
const ELSEWHERE: &str = "it runs what stands elsewhere";
const FOREIGN: &str = "it is read by a shell of another kind";
const CHANGES_OTHERS: &str = "it changes what other commands do";

/// Programs whose words end with another command.
const WRAPPERS: &[(&[&str], Spec)] = &[
    (&["nohup", "builtin", "busybox", "toybox", "eatmydata", "pkexec", "torify", "setpriv"], PLAIN),
    (&["setsid"], Spec { flags: "cfw", long_flags: &["ctty", "fork", "wait"], ..PLAIN }),
    (&["nice"], Spec { values: "n", flags: "0123456789", long_values: &["adjustment"], ..PLAIN }),
    (&["ionice"], Spec { values: "cn", flags: "t", long_values: &["class", "classdata"], ..PLAIN }),
    (&["chrt"], Spec { flags: "abfiormv", operands: 1, ..PLAIN }),
    (&["taskset"], Spec { flags: "ac", operands: 1, ..PLAIN }),
    (&["gosu", "su-exec"], Spec { operands: 1, ..PLAIN }),
    (&["fakeroot"], Spec { values: "lsibd", flags: "u", ..PLAIN }),
    (&["stdbuf"], Spec { values: "ioe", long_values: &["input", "output", "error"], ..PLAIN }),
    (
        &["timeout"],
        Spec {
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
        Spec {
            values: "fo",
            flags: "apqv",
            long_values: &["format", "output"],
            long_flags: &["portability", "verbose", "append", "quiet"],
            ..PLAIN
        },
    ),
    (&["doas"], Spec { values: "uC", flags: "Lns", ..PLAIN }),
    (
        &["sudo"],
        Spec {
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
        Spec { long_flags: &["skip-chdir"], long_values: &["userspec", "groups"], operands: 1, ..PLAIN },
    ),
    (
        &["unshare"],
        Spec {
            values: "RwSG",
            flags: "imnpuUCTfrc",
            long_flags: &["mount", "net", "pid", "user", "fork", "map-root-user", "ipc", "uts"],
            ..PLAIN
        },
    ),
    (
        &["strace", "ltrace"],
        Spec {
            values: "abeEoOpPsSuUX",
            flags: "cCdDfFhiknqrtTvVwxyYzZ",
            long_flags: &["follow-forks"],
            ..PLAIN
        },
    ),
    (&["exec"], Spec { values: "a", flags: "cl", ..PLAIN }),
    (&["prlimit"], Spec { values: "p", long_values: &["pid"], ..PLAIN }),
    (
        &["linux32", "linux64", "i386", "x86_64"],
        Spec { flags: "BFILRSTXZv3", long_flags: &["addr-no-randomize", "verbose"], ..PLAIN },
    ),
    (&["choom"], Spec { values: "np", long_values: &["adjust", "pid"], ..PLAIN }),
    (
        &["nsenter"],
        Spec {
            values: "tSG",
            flags: "amuinpUCTFre",
            long_values: &["target"],
            long_flags: &["all", "mount", "uts", "ipc", "net", "pid", "user"],
            ..PLAIN
        },
    ),
    (&["dbus-run-session"], Spec { long_values: &["config-file", "dbus-daemon"], ..PLAIN }),
    (
        &["systemd-run"],
        Spec {
            values: "puEMH",
            flags: "tPdqGS",
            long_values: &["unit", "property", "description", "slice", "uid", "gid", "setenv"],
            long_flags: &["user", "scope", "pty", "pipe", "wait", "collect", "quiet", "no-block"],
            ..PLAIN
        },
    ),
    (
        &["npx", "bunx", "pnpx", "uvx"],
        Spec {
            values: "p",
            flags: "yq",
            long_values: &["package", "from"],
            long_flags: &["yes", "no-install"],
            ..PLAIN
        },
    ),
    (&["chronic", "unbuffer", "ifne"], Spec { flags: "venp", ..PLAIN }),
    (&["entr"], Spec { flags: "acdnprz", ..PLAIN }),
    (&["faketime"], Spec { flags: "fm", operands: 1, ..PLAIN }),
    (&["valgrind", "xvfb-run", "proxychains", "proxychains4", "dumb-init", "tini", "catchsegv"], PLAIN),
];

/// They start a shell when no command is given.
const STARTS_SHELL: [&str; 8] =
    ["sudo", "doas", "chroot", "unshare", "fakeroot", "nsenter", "linux32", "linux64"];

/// Whether words before the command set variables for it.
pub(super) fn sets_variables(program: &str) -> bool {
    matches!(program, "env" | "sudo")
}

/// What a command runs in turn, by its program and its words.
pub(super) fn inside(program: &str, words: &[Word], input: Option<&str>, posix: bool) -> Inside {
    if let Some(inside) = special::inside(program, words, input, posix) {
        return inside;
    }
    if known::SHELLS.contains(&program) {
        return shell(program, words, input);
    }
    if known::is_interpreter(program) {
        let unknown = known::runs_input(program, &words[1..]).then_some(FROM_INPUT);
        return Inside { unknown, ..Inside::default() };
    }
    if known::UNKNOWN.contains(&program) {
        return Inside { unknown: Some(ELSEWHERE), ..Inside::default() };
    }
    if known::COMPUTES.contains(&program) {
        let runs = |word: &Word| variables::is_loaded(&word.text);
        let calls = matches!(program, "mapfile" | "readarray") && special::has_letter(words, 'C');
        let unknown = (calls || words[1..].iter().any(runs)).then_some(ELSEWHERE);
        return Inside { unknown, ..Inside::default() };
    }
    let Some((_, spec)) = WRAPPERS.iter().find(|(names, _)| names.contains(&program)) else {
        return Inside::default();
    };
    let options = options::skip(spec, words, 1);
    let rest = words[options.rest..].to_vec();
    let is_shell = rest.is_empty() && STARTS_SHELL.contains(&program);
    let unknown = if options.unsure { Some(UNSURE) } else { is_shell.then_some(SHELL) };
    let mut parts = vec![Part::Words(rest)];
    parts.extend(input.filter(|_| is_shell).map(|text| Part::Script { text: text.to_owned(), posix: true }));
    Inside { parts, unknown }
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

/// `sh -c script`, `sh file`, or `sh` with a script as its input.
fn shell(program: &str, words: &[Word], input: Option<&str>) -> Inside {
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
            return Inside::default();
        }
        // Bash knows its long options by one dash as well.
        let long = text.trim_start_matches('-');
        if text.starts_with("--") || LONG_OPTIONS.contains(&long) {
            unsure |= !text.starts_with("--") || known::FOREIGN.contains(&program);
            if matches!(long, "rcfile" | "init-file") {
                // It is run before the rest.
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
    let script = |text: &str| Part::Script { text: text.to_owned(), posix };
    let mut inside = Inside { unknown: unsure.then_some(UNSURE), ..Inside::default() };
    match (operand, input) {
        (Some(operand), _) if command => {
            inside.parts.push(script(&operand.text));
            // Some shells go on with their input.
            if from_input {
                inside.parts.extend(input.map(script));
                inside.unknown = Some(FROM_INPUT);
            }
            if known::FOREIGN.contains(&program) {
                inside.unknown = Some(FOREIGN);
            }
        }
        (Some(operand), _) if !from_input && !known::is_own_input(&operand.text) => {
            if !operand.literal() || known::is_input(&operand.text) {
                inside.unknown = Some(ELSEWHERE);
            }
        }
        (_, Some(input)) if !known::FOREIGN.contains(&program) => inside.parts.push(script(input)),
        _ => inside.unknown = Some(FROM_INPUT),
    }
    inside
}

/// The values of some options, wherever these stand: by their letters, or by long names, which may be shortened.
fn options_with_values(words: &[Word], letters: &str, long: &[&str]) -> Vec<Word> {
    let mut values = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let attached = if let Some(name) = word.text.strip_prefix("--") {
            let (name, value) = name.split_once('=').unwrap_or((name, ""));
            let is_meant = !name.is_empty() && long.iter().any(|long| long.starts_with(name));
            is_meant.then_some(value)
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

fn joined(words: &[Word]) -> String {
    words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
}

/// Words in which a mark stands for something that is put there.
fn filled(words: &[Word], marks: &[&str]) -> Vec<Word> {
    let fill = |word: &Word| {
        let text = marks.iter().fold(word.text.clone(), |text, mark| text.replace(mark, "\0"));
        Word { text, raw: word.raw.clone() }
    };
    words.iter().map(fill).collect()
}

/// A word for what is put at the end of a command.
fn anything() -> Word {
    Word { text: ANY.to_string(), raw: String::from("…") }
}
