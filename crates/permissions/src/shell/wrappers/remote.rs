//! Programs that run something on other machines.

use super::{CHANGES_OTHERS, Inside, Part, SHELL, UNSURE, joined, options_with_values};
use crate::{
    shell::{
        Word,
        options::{self, PLAIN, Spec},
    },
    wildcard::ANY,
};

fn script(text: String) -> Part {
    Part::Script { text, posix: true }
}

/// What is run there is judged as if it were run here, and what is run here to get there as well.
pub(super) fn ssh(words: &[Word], input: Option<&str>) -> Inside {
    let spec =
        Spec { values: "BbcDEeFIiJLlmOoPpQRSWw", flags: "46AaCfGgKkMNnqsTtVvXxYy", operands: 1, ..PLAIN };
    let options = options::skip(&spec, words, 1);
    let behind = options::skip(&Spec { operands: 0, ..spec }, words, options.rest);
    let given = options.given.iter().chain(&behind.given);
    let set = given.filter_map(|(name, value)| value.as_ref().filter(|_| name == "o"));
    let mut inside = settings(set);
    let rest = &words[behind.rest..];
    let simple = |word: &Word| {
        word.text.chars().all(|next| next.is_ascii_alphanumeric() || "_-./:,+@%=".contains(next))
    };
    let no_shell = |given: &options::Options| given.has(&["N", "V", "Q", "G", "O", "W"]);
    match (rest, input) {
        // What it reads is for that command.
        (rest, _) if !rest.is_empty() && rest.iter().all(simple) => {
            inside.parts.push(Part::Words(rest.to_vec()))
        }
        (rest, _) if !rest.is_empty() => inside.parts.push(script(joined(rest))),
        (_, Some(input)) => inside.parts.push(script(input.to_owned())),
        _ if no_shell(&options) || no_shell(&behind) => {}
        _ => inside.unknown = Some(SHELL),
    }
    if options.unsure || behind.unsure {
        inside.unknown = Some(UNSURE);
    }
    inside
}

/// `scp`, `sftp` and `rsync`: the programs that they reach other machines by.
pub(super) fn copy(program: &str, words: &[Word]) -> Inside {
    let rest = &words[1..];
    if program == "rsync" {
        let shells = options_with_values(rest, "e", &["rsh"]).into_iter();
        let there = options_with_values(rest, "", &["rsync-path"]).into_iter();
        // It adds the host and a command.
        let shells = shells.map(|shell| script(format!("{} host true", shell.text)));
        return Inside { parts: shells.chain(there.map(|path| script(path.text))).collect(), unknown: None };
    }
    let mut inside = settings(options_with_values(rest, "o", &[]).iter());
    let others: Vec<Word> = rest.iter().filter(|word| !word.text.starts_with("-o")).cloned().collect();
    let programs = options_with_values(&others, "SD", &[]);
    inside.parts.extend(programs.into_iter().map(|program| script(program.text)));
    inside
}

/// The values of `-o`.
fn settings<'a>(set: impl Iterator<Item = &'a Word>) -> Inside {
    const RUN: [&str; 4] = ["proxycommand", "localcommand", "knownhostscommand", "remotecommand"];
    const LOAD: [&str; 4] = ["pkcs11provider", "securitykeyprovider", "xauthlocation", "include"];
    let mut inside = Inside::default();
    for value in set {
        let text = value.text.trim_start();
        let (key, command) = text.split_once(['=', ' ', '\t']).unwrap_or((text, ""));
        let key = key.to_ascii_lowercase();
        if RUN.contains(&key.as_str()) {
            inside.parts.push(script(command.trim_start_matches([' ', '\t', '=']).to_owned()));
        } else if LOAD.contains(&key.as_str()) || key.contains(ANY) {
            inside.unknown = Some(CHANGES_OTHERS);
        }
    }
    inside
}
