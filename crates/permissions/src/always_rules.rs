//! The rules that an approval offers for the decision `always`.

use remuda_domain::permission::{PermissionAction, PermissionRule};

use crate::{shell::Command, wildcard::ANY};

/// A longer pattern is not offered, since a person could not review it.
const MAX_PATTERN_BYTES: usize = 512;

/// The number of words that identify what a command does. Other programs are identified by their first word.
const ARITY: [(&[&str], usize); 20] = [
    (&["git"], 2),
    (&["git", "remote"], 3),
    (&["git", "stash"], 3),
    (&["git", "submodule"], 3),
    (&["cargo"], 2),
    (&["go"], 2),
    (&["npm"], 2),
    (&["npm", "run"], 3),
    (&["pnpm"], 2),
    (&["pnpm", "run"], 3),
    (&["yarn"], 2),
    (&["bun"], 2),
    (&["bun", "run"], 3),
    (&["docker"], 2),
    (&["docker", "compose"], 3),
    (&["kubectl"], 2),
    (&["pip"], 2),
    (&["uv"], 2),
    (&["make"], 2),
    (&["systemctl"], 2),
];

/// Programs whose name says nothing about the effect of the command, so no pattern is derived from it.
const UNINFORMATIVE_PROGRAMS: [&str; 63] = [
    "sudo",
    "doas",
    "su",
    "env",
    "bash",
    "sh",
    "dash",
    "zsh",
    "ksh",
    "eval",
    "exec",
    "xargs",
    "find",
    "ssh",
    "python",
    "python3",
    "perl",
    "ruby",
    "node",
    "nohup",
    "nice",
    "timeout",
    "time",
    "watch",
    "parallel",
    "command",
    "busybox",
    "chroot",
    "flock",
    "strace",
    "script",
    "trap",
    "alias",
    "setsid",
    "npx",
    "bunx",
    "pnpx",
    "uvx",
    "fakeroot",
    "unshare",
    "nsenter",
    "setarch",
    "linux32",
    "linux64",
    "prlimit",
    "choom",
    "sg",
    "systemd-run",
    "chronic",
    "unbuffer",
    "hyperfine",
    "tmux",
    "screen",
    "fish",
    "csh",
    "tcsh",
    "yash",
    "pwsh",
    "ionice",
    "taskset",
    "stdbuf",
    "builtin",
    "hash",
];

/// A rule that allows the command with any arguments.
pub(crate) fn similar(permission: &str, command: &Command) -> Option<PermissionRule> {
    let words: Vec<&str> = command.words.iter().map(|word| word.text.as_str()).collect();
    let program = command.program()?;
    if command.unknown.is_some() || UNINFORMATIVE_PROGRAMS.contains(&program) {
        return None;
    }
    let of_program = |names: &[&str]| words.iter().zip(names).all(|(word, name)| word == name);
    let known = ARITY.iter().rev().filter(|(names, _)| words.len() >= names.len() && of_program(names));
    let arity = known.map(|(_, arity)| *arity).max().unwrap_or(1);
    let prefix = words.get(..arity.min(words.len()))?;
    let vague = |word: &&str| word.is_empty() || word.starts_with('-') || word.contains([ANY, '*', '?', ' ']);
    if prefix.iter().any(vague) {
        return None;
    }
    rule(permission, format!("{} *", prefix.join(" ")))
}

/// A rule that allows exactly this text; `None` if it contains wildcards, since patterns have no escape.
pub(crate) fn exact(permission: &str, text: &str) -> Option<PermissionRule> {
    rule(permission, text.to_owned()).filter(|_| !text.contains(['*', '?']))
}

/// A rule that allows all pages of the site.
pub(crate) fn site(permission: &str, url: &str) -> Option<PermissionRule> {
    let (scheme, rest) = url.split_once("://")?;
    let (host, _) = rest.split_once('/')?;
    rule(permission, format!("{scheme}://{host}/*")).filter(|_| !host.contains(['*', '?', '@']))
}

fn rule(permission: &str, pattern: String) -> Option<PermissionRule> {
    let usable = !pattern.is_empty() && pattern.len() <= MAX_PATTERN_BYTES && !pattern.contains(ANY);
    usable.then(|| PermissionRule::new(permission, pattern, PermissionAction::Allow))
}
