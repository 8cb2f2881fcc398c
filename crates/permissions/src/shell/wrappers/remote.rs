//! Programs that run commands on other machines.

use super::{CHANGES_OTHERS, NestedCommand, NestedCommands, SHELL, UNSURE, join_words, options_with_values};
use crate::{
    shell::{
        Word,
        options::{self, OptionSpec, PLAIN},
    },
    wildcard::ANY,
};

fn script(text: String) -> NestedCommand {
    NestedCommand::Script { text, posix: true }
}

/// Judges the remote command as if it ran locally, and the local commands that connect.
pub(super) fn ssh(words: &[Word], input: Option<&str>) -> NestedCommands {
    let spec = OptionSpec {
        values: "BbcDEeFIiJLlmOoPpQRSWw",
        flags: "46AaCfGgKkMNnqsTtVvXxYy",
        operands: 1,
        ..PLAIN
    };
    let options = options::parse(&spec, words, 1);
    let behind = options::parse(&OptionSpec { operands: 0, ..spec }, words, options.rest);
    let given = options.given.iter().chain(&behind.given);
    let set = given.filter_map(|(name, value)| value.as_ref().filter(|_| name == "o"));
    let mut nested = settings(set);
    let rest = &words[behind.rest..];
    let simple = |word: &Word| {
        word.text.chars().all(|next| next.is_ascii_alphanumeric() || "_-./:,+@%=".contains(next))
    };
    let no_shell = |given: &options::Options| given.has(&["N", "V", "Q", "G", "O", "W"]);
    match (rest, input) {
        // The input belongs to the remote command.
        (rest, _) if !rest.is_empty() && rest.iter().all(simple) => {
            nested.commands.push(NestedCommand::Words(rest.to_vec()))
        }
        (rest, _) if !rest.is_empty() => nested.commands.push(script(join_words(rest))),
        (_, Some(input)) => nested.commands.push(script(input.to_owned())),
        _ if no_shell(&options) || no_shell(&behind) => {}
        _ => nested.unknown = Some(SHELL),
    }
    if options.unsure || behind.unsure {
        nested.unknown = Some(UNSURE);
    }
    nested
}

/// `scp`, `sftp` and `rsync`: the programs that they use to connect.
pub(super) fn copy(program: &str, words: &[Word]) -> NestedCommands {
    let rest = &words[1..];
    if program == "rsync" {
        let shells = options_with_values(rest, "e", &["rsh"]).into_iter();
        let there = options_with_values(rest, "", &["rsync-path"]).into_iter();
        // rsync appends the host and a command.
        let shells = shells.map(|shell| script(format!("{} host true", shell.text)));
        return NestedCommands {
            commands: shells.chain(there.map(|path| script(path.text))).collect(),
            unknown: None,
        };
    }
    let mut nested = settings(options_with_values(rest, "o", &[]).iter());
    let others: Vec<Word> = rest.iter().filter(|word| !word.text.starts_with("-o")).cloned().collect();
    let programs = options_with_values(&others, "SD", &[]);
    nested.commands.extend(programs.into_iter().map(|program| script(program.text)));
    nested
}

/// Commands in the values of `-o`.
fn settings<'a>(set: impl Iterator<Item = &'a Word>) -> NestedCommands {
    const RUN: [&str; 4] = ["proxycommand", "localcommand", "knownhostscommand", "remotecommand"];
    const LOAD: [&str; 4] = ["pkcs11provider", "securitykeyprovider", "xauthlocation", "include"];
    let mut nested = NestedCommands::default();
    for value in set {
        let text = value.text.trim_start();
        let (key, command) = text.split_once(['=', ' ', '\t']).unwrap_or((text, ""));
        let key = key.to_ascii_lowercase();
        if RUN.contains(&key.as_str()) {
            nested.commands.push(script(command.trim_start_matches([' ', '\t', '=']).to_owned()));
        } else if LOAD.contains(&key.as_str()) || key.contains(ANY) {
            nested.unknown = Some(CHANGES_OTHERS);
        }
    }
    nested
}
