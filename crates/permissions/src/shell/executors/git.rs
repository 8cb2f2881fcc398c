//! What git executes besides itself: aliases, programs that settings name, and transports.

use crate::{
    shell::{
        Word,
        wrappers::{git_changes_settings, git_subcommand},
    },
    wildcard::ANY,
};

/// Sub-commands of git that run no program which the command line, an alias or a menu of tools chooses.
const KNOWN: &[&str] = &[
    "add",
    "am",
    "annotate",
    "apply",
    "archive",
    "bisect",
    "blame",
    "branch",
    "bundle",
    "cat-file",
    "check-attr",
    "check-ignore",
    "check-mailmap",
    "check-ref-format",
    "checkout",
    "checkout-index",
    "cherry",
    "cherry-pick",
    "clean",
    "clone",
    "column",
    "commit",
    "commit-graph",
    "commit-tree",
    "config",
    "count-objects",
    "describe",
    "diff",
    "diff-files",
    "diff-index",
    "diff-tree",
    "fast-export",
    "fast-import",
    "fetch",
    "fetch-pack",
    "fmt-merge-msg",
    "for-each-ref",
    "format-patch",
    "fsck",
    "gc",
    "get-tar-commit-id",
    "grep",
    "hash-object",
    "help",
    "index-pack",
    "init",
    "interpret-trailers",
    "log",
    "ls-files",
    "ls-remote",
    "ls-tree",
    "mailinfo",
    "mailsplit",
    "maintenance",
    "merge",
    "merge-base",
    "merge-file",
    "merge-tree",
    "mktag",
    "mktree",
    "mv",
    "name-rev",
    "notes",
    "pack-objects",
    "pack-refs",
    "prune",
    "prune-packed",
    "pull",
    "push",
    "range-diff",
    "read-tree",
    "rebase",
    "reflog",
    "remote",
    "repack",
    "replace",
    "request-pull",
    "rerere",
    "reset",
    "restore",
    "rev-list",
    "rev-parse",
    "revert",
    "rm",
    "send-pack",
    "shortlog",
    "show",
    "show-branch",
    "show-index",
    "show-ref",
    "sparse-checkout",
    "stage",
    "stash",
    "status",
    "stripspace",
    "submodule",
    "switch",
    "symbolic-ref",
    "tag",
    "unpack-objects",
    "update-index",
    "update-ref",
    "update-server-info",
    "var",
    "verify-commit",
    "verify-pack",
    "verify-tag",
    "version",
    "whatchanged",
    "worktree",
    "write-tree",
];

/// An unknown sub-command may be an alias, and an alias may run any program.
pub(super) fn alias(words: &[Word]) -> Option<usize> {
    let at = git_subcommand(words);
    let name = words.get(at)?;
    (!KNOWN.contains(&name.text.as_str())).then_some(at)
}

/// The last word of a command that changes settings which may name programs.
pub(super) fn settings(words: &[Word]) -> Option<usize> {
    git_changes_settings(words)
}

/// `ext::command` and other addresses that name the program which connects.
pub(super) fn transport(words: &[Word]) -> Option<usize> {
    let names = |word: &Word| {
        let begin = word.text.split_once("::").map(|(begin, _)| begin);
        // As a value, too: `-c remote.origin.url=ext::…`.
        let begin = begin.map(|begin| begin.rsplit_once('=').map_or(begin, |(_, begin)| begin));
        begin.is_some_and(|begin| {
            !begin.is_empty() && begin.chars().all(|next| next.is_ascii_alphanumeric() || "-_".contains(next))
        })
    };
    words.iter().rposition(names)
}

/// An expansion where an option of these sub-commands may name a program.
pub(super) fn expanded_option(words: &[Word]) -> Option<usize> {
    const NAME_PROGRAMS: [&str; 9] =
        ["clone", "fetch", "pull", "push", "ls-remote", "archive", "rebase", "grep", "config"];
    let at = git_subcommand(words);
    let is_one = words.get(at).is_some_and(|word| NAME_PROGRAMS.contains(&word.text.as_str()));
    let rest = words.get(at..).filter(|_| is_one)?;
    let options = rest.iter().position(|word| word.text == "--").unwrap_or(rest.len());
    rest[..options].iter().rposition(|word| word.text.starts_with(ANY)).map(|found| at + found)
}
