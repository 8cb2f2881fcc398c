//! Programs that run what they are given, each in its own way.

use super::{ELSEWHERE, Inside, Part, SHELL, UNSURE, anything, filled, joined};
use crate::shell::{
    Word,
    options::{self, Options, PLAIN, Spec},
};

pub(super) fn inside(program: &str, words: &[Word], input: Option<&str>) -> Option<Inside> {
    Some(match program {
        "env" => env(words),
        "command" => command(words),
        "eval" => Inside { parts: vec![script(joined(&words[1..]), false)], unknown: None },
        "trap" => trap(words),
        "alias" => alias(words),
        "xargs" => xargs(words),
        "find" => find(words),
        "parallel" => parallel(words),
        "watch" => watch(words),
        "flock" => flock(words),
        "su" | "script" => with_command(words, input),
        "runuser" if words.iter().any(|word| word.text == "-u") => {
            wrapper(&Spec { values: "ugGw", flags: "lmpP", ..PLAIN }, words)
        }
        "runuser" => with_command(words, input),
        "ssh" => ssh(words),
        "git" => git(words),
        _ => return None,
    })
}

fn script(text: String, posix: bool) -> Part {
    Part::Script { text, posix }
}

fn wrapper(spec: &Spec, words: &[Word]) -> Inside {
    let options = options::skip(spec, words, 1);
    Inside { parts: vec![Part::Words(words[options.rest..].to_vec())], unknown: unsure(&options) }
}

fn unsure(options: &Options) -> Option<&'static str> {
    options.unsure.then_some(UNSURE)
}

fn env(words: &[Word]) -> Inside {
    let spec = Spec {
        values: "uCSa",
        flags: "i0v-",
        long_values: &["unset", "chdir", "split-string", "argv0"],
        long_flags: &["ignore-environment", "null", "debug"],
        assignments: true,
        ..PLAIN
    };
    let options = options::skip(&spec, words, 1);
    let rest = &words[options.rest..];
    let part = match options.value(&["S", "split-string"]) {
        Some(split) => script(format!("{} {}", split.text, joined(rest)), false),
        None => Part::Words(rest.to_vec()),
    };
    Inside { parts: vec![part], unknown: unsure(&options) }
}

fn command(words: &[Word]) -> Inside {
    let options = options::skip(&Spec { flags: "pvV", ..PLAIN }, words, 1);
    if options.has(&["v", "V"]) {
        return Inside::default();
    }
    Inside { parts: vec![Part::Words(words[options.rest..].to_vec())], unknown: unsure(&options) }
}

fn trap(words: &[Word]) -> Inside {
    let rest = if words.get(1).is_some_and(|word| word.text == "--") { &words[2..] } else { &words[1..] };
    match rest {
        [action, _, ..] if !matches!(action.text.as_str(), "-" | "-l" | "-p" | "") => {
            Inside { parts: vec![script(action.text.clone(), false)], unknown: None }
        }
        _ => Inside::default(),
    }
}

/// What an alias stands for is judged where it is defined.
fn alias(words: &[Word]) -> Inside {
    let value = |word: &Word| word.text.split_once('=').map(|(_, value)| script(value.to_owned(), false));
    let unknown = words[1..].iter().any(|word| word.text.starts_with('\0')).then_some(ELSEWHERE);
    Inside { parts: words[1..].iter().filter_map(value).collect(), unknown }
}

fn xargs(words: &[Word]) -> Inside {
    let spec = Spec {
        values: "IadEnLPs",
        flags: "0rtpxoile",
        long_values: &["arg-file", "delimiter", "max-args", "max-procs", "max-chars", "process-slot-var"],
        long_flags: &["null", "no-run-if-empty", "verbose", "interactive", "exit", "open-tty", "replace"],
        ..PLAIN
    };
    let options = options::skip(&spec, words, 1);
    let mut rest = words[options.rest..].to_vec();
    let replaces = options.has(&["I", "i", "replace"]);
    if replaces {
        let mark = options.value(&["I", "replace"]).map_or("{}", |mark| mark.text.as_str());
        if mark.is_empty() || mark.contains('\0') {
            return Inside { parts: vec![Part::Words(rest)], unknown: Some(UNSURE) };
        }
        rest = filled(&rest, &[mark]);
    } else if !rest.is_empty() {
        rest.push(anything());
    }
    Inside { parts: vec![Part::Words(rest)], unknown: unsure(&options) }
}

fn find(words: &[Word]) -> Inside {
    let mut inside = Inside::default();
    let mut rest = words[1..].iter();
    while let Some(word) = rest.next() {
        if !matches!(word.text.as_str(), "-exec" | "-execdir" | "-ok" | "-okdir") {
            continue;
        }
        let mut inner: Vec<Word> = Vec::new();
        for word in rest.by_ref() {
            let ends =
                word.text == ";" || (word.text == "+" && inner.last().is_some_and(|last| last.text == "{}"));
            if ends {
                break;
            }
            inner.push(word.clone());
        }
        inside.parts.push(Part::Words(filled(&inner, &["{}"])));
    }
    inside
}

/// Its words become one line for a shell.
fn parallel(words: &[Word]) -> Inside {
    const MARKS: [&str; 9] = ["{}", "{.}", "{/}", "{//}", "{/.}", "{#}", "{%}", "{1}", "{2}"];
    let spec = Spec {
        values: "aCdDEIjJLnNPsSU",
        flags: "0kmqrtvXx",
        long_values: &[
            "jobs", "arg-file", "colsep", "delay", "timeout", "retries", "joblog", "results", "max-args",
        ],
        long_flags: &[
            "null",
            "keep-order",
            "dry-run",
            "verbose",
            "bar",
            "eta",
            "progress",
            "no-notice",
            "line-buffer",
            "ungroup",
        ],
        ..PLAIN
    };
    let options = options::skip(&spec, words, 1);
    let is_source = |word: &&Word| !matches!(word.text.as_str(), ":::" | "::::" | ":::+" | "::::+");
    let inner: Vec<Word> = words[options.rest..].iter().take_while(is_source).cloned().collect();
    if inner.is_empty() {
        return Inside { parts: Vec::new(), unknown: Some(ELSEWHERE) };
    }
    let mut inner = filled(&inner, &MARKS);
    if inner.iter().all(Word::literal) {
        inner.push(anything());
    }
    let special = |word: &Word| {
        word.text.contains([' ', '\n', '\t', ';', '&', '|', '<', '>', '(', '$', '`', '\'', '"', '\\'])
    };
    let part = if inner.iter().any(special) { script(joined(&inner), true) } else { Part::Words(inner) };
    Inside { parts: vec![part], unknown: unsure(&options) }
}

fn watch(words: &[Word]) -> Inside {
    let spec = Spec {
        values: "nqs",
        flags: "bcdegtwxC",
        long_values: &["interval"],
        long_flags: &[
            "beep",
            "color",
            "differences",
            "errexit",
            "chgexit",
            "no-title",
            "no-wrap",
            "exec",
            "precise",
        ],
        ..PLAIN
    };
    let options = options::skip(&spec, words, 1);
    let rest = &words[options.rest..];
    let part =
        if options.has(&["x", "exec"]) { Part::Words(rest.to_vec()) } else { script(joined(rest), true) };
    Inside { parts: vec![part], unknown: unsure(&options) }
}

fn flock(words: &[Word]) -> Inside {
    let spec = Spec {
        values: "wE",
        flags: "sxenuFov",
        long_values: &["timeout", "wait", "conflict-exit-code"],
        long_flags: &["shared", "exclusive", "nonblock", "unlock", "no-fork", "close", "verbose"],
        operands: 1,
        ..PLAIN
    };
    let options = options::skip(&spec, words, 1);
    let rest = &words[options.rest..];
    let part = match rest {
        [option, text, ..] if matches!(option.text.as_str(), "-c" | "--command") => {
            script(text.text.clone(), true)
        }
        rest => Part::Words(rest.to_vec()),
    };
    Inside { parts: vec![part], unknown: unsure(&options) }
}

/// `su` and `script`: the command is the value of `-c`, wherever that stands. Else they start a shell.
fn with_command(words: &[Word], input: Option<&str>) -> Inside {
    let mut rest = words[1..].iter();
    while let Some(word) = rest.next() {
        let text = word.text.as_str();
        let long = text.strip_prefix("--command=").or_else(|| text.strip_prefix("--session-command="));
        let short = text.strip_prefix('-').filter(|letters| !letters.starts_with('-'));
        let found = if matches!(text, "--command" | "--session-command") {
            rest.next().map(|word| word.text.clone())
        } else if let Some((_, attached)) = short.and_then(|letters| letters.split_once('c')) {
            if attached.is_empty() {
                rest.next().map(|word| word.text.clone())
            } else {
                Some(attached.to_owned())
            }
        } else {
            long.map(ToOwned::to_owned)
        };
        if let Some(found) = found {
            return Inside { parts: vec![script(found, true)], unknown: None };
        }
    }
    match input {
        Some(input) => Inside { parts: vec![script(input.to_owned(), true)], unknown: None },
        None => Inside { parts: Vec::new(), unknown: Some(SHELL) },
    }
}

/// What is run there is judged as if it were run here, and what is run here to get there as well.
fn ssh(words: &[Word]) -> Inside {
    let spec =
        Spec { values: "BbcDEeFIiJLlmOoPpQRSWw", flags: "46AaCfGgKkMNnqsTtVvXxYy", operands: 1, ..PLAIN };
    let options = options::skip(&spec, words, 1);
    let behind = options::skip(&Spec { operands: 0, ..spec }, words, options.rest);
    let given = options.given.iter().chain(&behind.given);
    let local = given.filter_map(|(name, value)| {
        let value = value.as_ref().filter(|_| name == "o")?;
        let (key, command) = value.text.split_once(['=', ' '])?;
        let runs = ["proxycommand", "localcommand", "knownhostscommand"];
        runs.contains(&key.to_ascii_lowercase().as_str()).then(|| script(command.to_owned(), true))
    });
    let mut parts: Vec<Part> = local.collect();
    let rest = &words[behind.rest..];
    if !rest.is_empty() {
        parts.push(script(joined(rest), true));
    }
    Inside { parts, unknown: (options.unsure || behind.unsure).then_some(UNSURE) }
}

/// The few ways in which git runs other programs.
fn git(words: &[Word]) -> Inside {
    let at = git_subcommand(words);
    let mut inside = Inside::default();
    let rest = &words[at..];
    let name = |index: usize| rest.get(index).map_or("", |word| word.text.as_str());
    match (name(0), name(1)) {
        ("submodule", "foreach") => {
            let begin = rest[2..].iter().position(|word| !word.text.starts_with('-')).unwrap_or_default();
            inside.parts.push(script(joined(rest.get(2 + begin..).unwrap_or_default()), true));
        }
        ("bisect", "run") => inside.parts.push(Part::Words(rest[2..].to_vec())),
        ("rebase", _) => {
            for (index, word) in rest.iter().enumerate() {
                let value = match word.text.as_str() {
                    "-x" | "--exec" => rest.get(index + 1).map(|word| word.text.clone()),
                    text => text.strip_prefix("--exec=").map(ToOwned::to_owned),
                };
                inside.parts.extend(value.map(|text| script(text, true)));
            }
        }
        _ => {}
    }
    inside
}

/// What is set for git itself, and may name programs that it runs.
pub(in crate::shell) fn git_settings(words: &[Word]) -> Vec<Word> {
    const HARMLESS: [&str; 7] =
        ["user.", "color.", "advice.", "core.quotepath", "commit.gpgsign", "init.", "safe."];
    let harmless = |word: &Word| {
        let key = word.text.to_ascii_lowercase();
        HARMLESS.iter().any(|begin| key.starts_with(begin))
    };
    let pairs = words[..git_subcommand(words)].windows(2);
    let set = pairs.filter(|pair| {
        let attached = ["--config-env", "--exec-path="].iter().any(|begin| pair[1].text.starts_with(begin));
        attached || (pair[0].text == "-c" && !harmless(&pair[1]))
    });
    set.map(|pair| pair[1].clone()).collect()
}

/// Where the sub-command stands, behind options for git itself.
pub(in crate::shell) fn git_subcommand(words: &[Word]) -> usize {
    let mut at = 1;
    while let Some(word) = words.get(at).filter(|word| word.text.starts_with('-')) {
        let takes_next =
            matches!(word.text.as_str(), "-C" | "-c" | "--git-dir" | "--work-tree" | "--namespace");
        at += if takes_next { 2 } else { 1 };
    }
    at.min(words.len())
}
