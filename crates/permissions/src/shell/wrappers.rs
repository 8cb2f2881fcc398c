//! Programs that run what they are given.

mod special;

pub(super) use special::{git_settings, git_subcommand};

use super::{
    Word, known,
    options::{self, PLAIN, Spec},
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
const SHELL: &str = "it starts a shell";
const FROM_INPUT: &str = "it runs what it reads";
const ELSEWHERE: &str = "it runs what stands elsewhere";

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
];

/// They start a shell when no command is given.
const STARTS_SHELL: [&str; 4] = ["sudo", "doas", "chroot", "unshare"];

/// Whether words before the command set variables for it.
pub(super) fn sets_variables(program: &str) -> bool {
    matches!(program, "env" | "sudo")
}

/// What a command runs in turn, by its program and its words.
pub(super) fn inside(program: &str, words: &[Word], input: Option<&str>) -> Inside {
    if let Some(inside) = special::inside(program, words, input) {
        return inside;
    }
    if known::SHELLS.contains(&program) {
        return shell(program, words, input);
    }
    if known::INTERPRETERS.contains(&program) {
        let reads = words.len() == 1 || words.get(1).is_some_and(|word| known::is_input(&word.text));
        return Inside { unknown: reads.then_some(FROM_INPUT), ..Inside::default() };
    }
    if known::UNKNOWN.contains(&program) {
        return Inside { unknown: Some(ELSEWHERE), ..Inside::default() };
    }
    if known::COMPUTES.contains(&program) {
        let runs =
            |word: &Word| word.text.contains('[') && (word.text.contains("$(") || word.text.contains('`'));
        let unknown = words[1..].iter().any(runs).then_some(ELSEWHERE);
        return Inside { unknown, ..Inside::default() };
    }
    let Some((_, spec)) = WRAPPERS.iter().find(|(names, _)| names.contains(&program)) else {
        return Inside::default();
    };
    let options = options::skip(spec, words, 1);
    let rest = words[options.rest..].to_vec();
    let unknown = if options.unsure {
        Some(UNSURE)
    } else {
        (rest.is_empty() && STARTS_SHELL.contains(&program)).then_some(SHELL)
    };
    Inside { parts: vec![Part::Words(rest)], unknown }
}

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
        unsure |= !word.literal();
        if text.starts_with("--") {
            if matches!(text, "--rcfile" | "--init-file") {
                rest.next();
            }
            if matches!(text, "--version" | "--help") {
                return Inside::default();
            }
            continue;
        }
        command |= text.starts_with('-') && text.contains('c');
        from_input |= text.contains('s');
        for _ in text.matches(['o', 'O']) {
            rest.next();
        }
    }
    let script = |text: &str| Part::Script { text: text.to_owned(), posix };
    let mut inside = Inside { unknown: unsure.then_some(UNSURE), ..Inside::default() };
    match (operand, input) {
        (Some(operand), _) if command => inside.parts.push(script(&operand.text)),
        (Some(operand), _) if !from_input && !known::is_input(&operand.text) => {
            if !operand.literal() {
                inside.unknown = Some(ELSEWHERE);
            }
        }
        (_, Some(input)) => inside.parts.push(script(input)),
        _ => inside.unknown = Some(FROM_INPUT),
    }
    inside
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
