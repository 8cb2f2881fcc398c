//! Commands that git runs.

use super::{CHANGES_OTHERS, NestedCommand, NestedCommands, UNSURE, join_words, options_with_values};
use crate::shell::Word;

/// Options of sub-commands whose value is a command: letters, and long names, which may be abbreviated.
const RUNS: &[(&[&str], &str, &[&str])] = &[
    (&["rebase"], "x", &["exec"]),
    (&["clone"], "u", &["upload-pack"]),
    (&["fetch", "pull", "ls-remote", "fetch-pack"], "", &["upload-pack", "exec"]),
    (&["push", "send-pack"], "", &["receive-pack", "exec"]),
    (&["archive"], "", &["exec"]),
    (&["grep"], "O", &["open-files-in-pager"]),
    (&["difftool"], "x", &["extcmd"]),
    (&["send-email"], "", &["sendmail-cmd", "to-cmd", "cc-cmd", "header-cmd"]),
    (
        &["filter-branch"],
        "",
        &[
            "setup",
            "subdirectory-filter",
            "env-filter",
            "tree-filter",
            "index-filter",
            "parent-filter",
            "msg-filter",
            "commit-filter",
            "tag-name-filter",
        ],
    ),
];

/// Prefixes of settings that name no program.
const HARMLESS: [&str; 18] = [
    "user.",
    "color.",
    "advice.",
    "core.quotepath",
    "core.autocrlf",
    "core.filemode",
    "core.longpaths",
    "core.ignorecase",
    "commit.gpgsign",
    "init.defaultbranch",
    "safe.",
    "push.",
    "pull.",
    "fetch.",
    "branch.",
    "protocol.version",
    "merge.conflictstyle",
    "diff.algorithm",
];

fn is_harmless(setting: &Word) -> bool {
    let key = setting.text.to_ascii_lowercase();
    HARMLESS.iter().any(|begin| key.starts_with(begin))
}

pub(super) fn nested_commands(words: &[Word]) -> NestedCommands {
    let at = git_subcommand(words);
    let mut nested = NestedCommands {
        unknown: (!is_sure(words.get(1..at).unwrap_or_default())).then_some(UNSURE),
        ..NestedCommands::default()
    };
    let rest = &words[at..];
    let name = |index: usize| rest.get(index).map_or("", |word| word.text.as_str());
    let script = |text: String| NestedCommand::Script { text, posix: true };
    match (name(0), name(1)) {
        ("submodule", "foreach") => {
            let begin = rest[2..].iter().position(|word| !word.text.starts_with('-')).unwrap_or_default();
            nested.commands.push(script(join_words(rest.get(2 + begin..).unwrap_or_default())));
        }
        ("bisect", "run") => nested.commands.push(NestedCommand::Words(rest[2..].to_vec())),
        _ if git_changes_settings(words).is_some() => nested.unknown = Some(CHANGES_OTHERS),
        _ => {}
    }
    for (_, letters, long) in RUNS.iter().filter(|(names, ..)| names.contains(&name(0))) {
        let values = options_with_values(&rest[1..], letters, long);
        nested.commands.extend(values.into_iter().map(|value| script(value.text)));
    }
    nested
}

/// The position of the last word of a sub-command that sets something which may name a program.
pub(in crate::shell) fn git_changes_settings(words: &[Word]) -> Option<usize> {
    let rest = words.get(git_subcommand(words)..)?;
    let (name, arguments) = rest.split_first()?;
    let changes = match name.text.as_str() {
        "config" => configures(arguments),
        "clone" | "init" => {
            let settings = options_with_values(arguments, "c", &["config"]);
            let hooks = options_with_values(arguments, "", &["template"]);
            !hooks.is_empty() || !settings.iter().all(is_harmless)
        }
        _ => false,
    };
    changes.then(|| words.len() - 1)
}

/// Whether all options before the sub-command are known, so that its position is certain.
fn is_sure(options: &[Word]) -> bool {
    const FLAGS: [&str; 16] = [
        "-p",
        "--paginate",
        "-P",
        "--no-pager",
        "--no-replace-objects",
        "--no-lazy-fetch",
        "--no-optional-locks",
        "--no-advice",
        "--bare",
        "--literal-pathspecs",
        "--glob-pathspecs",
        "--noglob-pathspecs",
        "--icase-pathspecs",
        "--version",
        "--help",
        "--exec-path",
    ];
    let mut rest = options.iter();
    while let Some(word) = rest.next() {
        let takes_next = TAKES_NEXT.contains(&word.text.as_str());
        let known = takes_next || FLAGS.contains(&word.text.as_str()) || word.text.contains('=');
        let value = if takes_next { rest.next() } else { None };
        if !known || !word.single() || value.is_some_and(|value| !value.single()) {
            return false;
        }
    }
    true
}

/// Whether `git config` sets something that may name a program.
fn configures(words: &[Word]) -> bool {
    let operands: Vec<&Word> = words.iter().filter(|word| !word.text.starts_with('-')).collect();
    let operands = match operands.split_first() {
        Some((first, rest)) if first.text == "set" => rest,
        _ => &operands,
    };
    let reads = ["--get", "--get-all", "--get-regexp", "--list", "-l", "--unset"];
    let only_reads =
        words.first().is_some_and(|word| reads.contains(&word.text.as_str()) || word.text == "get");
    !only_reads && operands.len() > 1 && !operands[..operands.len() - 1].iter().all(|word| is_harmless(word))
}

/// The settings on the command line that may name programs.
pub(in crate::shell) fn git_settings(words: &[Word]) -> Vec<Word> {
    let pairs = words[..git_subcommand(words)].windows(2);
    let set = pairs.filter(|pair| {
        let attached = ["--config-env", "--exec-path="].iter().any(|begin| pair[1].text.starts_with(begin));
        attached || (pair[0].text == "-c" && !is_harmless(&pair[1]))
    });
    set.map(|pair| pair[1].clone()).collect()
}

const TAKES_NEXT: [&str; 7] =
    ["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--attr-source", "--config-env"];

/// The index of the sub-command, after git's own options.
pub(in crate::shell) fn git_subcommand(words: &[Word]) -> usize {
    let mut at = 1;
    while let Some(word) = words.get(at).filter(|word| word.text.starts_with('-')) {
        at += if TAKES_NEXT.contains(&word.text.as_str()) { 2 } else { 1 };
    }
    at.min(words.len())
}
