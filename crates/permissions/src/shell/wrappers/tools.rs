//! Developer tools that run other commands.

use super::{
    ELSEWHERE, NestedCommand, NestedCommands, UNSURE, fill_placeholders, join_words, unknown_arguments,
};
use crate::{
    shell::{
        Word,
        options::{self, OptionSpec, PLAIN},
    },
    wildcard::ANY,
};

const CONTAINER: OptionSpec = OptionSpec {
    values: "euwvph",
    flags: "ditq",
    long_values: &[
        "env", "user", "workdir", "env-file", "name", "network", "volume", "publish", "mount", "platform",
    ],
    long_flags: &["detach", "interactive", "tty", "privileged", "rm", "init"],
    operands: 1,
    ..PLAIN
};
const UV: OptionSpec = OptionSpec {
    values: "p",
    flags: "qv",
    long_values: &["with", "python", "extra", "group", "package", "directory", "project", "env-file"],
    long_flags: &[
        "frozen",
        "locked",
        "no-sync",
        "all-extras",
        "isolated",
        "active",
        "quiet",
        "no-project",
        "dev",
    ],
    ..PLAIN
};
const NPM: OptionSpec =
    OptionSpec { flags: "y", long_values: &["package"], long_flags: &["yes", "no", "silent"], ..PLAIN };

/// Programs with a sub-command that runs another command.
const SUBCOMMANDS: &[(&[&str], &[&str], OptionSpec)] = &[
    (&["npm"], &["exec", "x"], NPM),
    (&["pnpm", "yarn"], &["exec", "dlx"], NPM),
    (&["bun"], &["x"], NPM),
    (&["uv"], &["run"], UV),
    (&["poetry", "pipenv", "hatch", "pdm", "rye"], &["run"], PLAIN),
    (&["bundle"], &["exec"], PLAIN),
    (&["conda", "mamba"], &["run"], OptionSpec { values: "np", ..PLAIN }),
    (&["mise", "rtx", "asdf"], &["exec", "x"], PLAIN),
    (&["direnv"], &["exec"], OptionSpec { operands: 1, ..PLAIN }),
    (&["docker", "podman", "nerdctl"], &["exec", "run"], CONTAINER),
    (&["perf"], &["stat", "record", "trace"], PLAIN),
];

/// Finding their commands would need all their options.
const OPAQUE: [&str; 9] = [
    "run-parts",
    "start-stop-daemon",
    "capsh",
    "firejail",
    "bwrap",
    "cpulimit",
    "nix-shell",
    "debootstrap",
    "sem",
];

pub(super) fn nested_commands(program: &str, words: &[Word]) -> Option<NestedCommands> {
    let first = words.get(1).map_or("", |word| word.text.as_str());
    Some(match program {
        "hyperfine" => hyperfine(words),
        "nix" => {
            let runs = words.iter().position(|word| matches!(word.text.as_str(), "-c" | "--command"));
            opaque(words, runs.map(|at| at + 1)?)
        }
        "fd" | "fdfind" => fd(words),
        "kubectl" | "oc" if words.iter().any(|word| word.text == "exec") => kubectl(words),
        "tmux" => {
            const HARMLESS: [&str; 7] = [
                "ls",
                "list-sessions",
                "list-windows",
                "has-session",
                "kill-session",
                "kill-server",
                "capture-pane",
            ];
            elsewhere(!HARMLESS.contains(&first))
        }
        "screen" => elsewhere(!matches!(first, "-ls" | "-list" | "-v")),
        "crontab" => elsewhere(!matches!(first, "-l" | "-r")),
        program if OPAQUE.contains(&program) => opaque(words, 1),
        program if program.starts_with("ld-linux") || program == "ld.so" => opaque(words, 1),
        program => {
            let of_program = |(names, ..): &&(&[&str], _, _)| names.contains(&program);
            let (_, subcommands, spec) = SUBCOMMANDS.iter().find(of_program)?;
            subcommand(words, subcommands, spec)?
        }
    })
}

fn elsewhere(unknown: bool) -> NestedCommands {
    NestedCommands { commands: Vec::new(), unknown: unknown.then_some(ELSEWHERE) }
}

fn subcommand(words: &[Word], subcommands: &[&str], spec: &OptionSpec) -> Option<NestedCommands> {
    let is_one = |word: &Word| subcommands.contains(&word.text.as_str());
    let at = if words.get(1).is_some_and(|word| word.text == "compose" || word.text == "container") {
        2
    } else {
        1
    };
    let name = words.get(at)?;
    if is_one(name) {
        let options = options::parse(spec, words, at + 1);
        let rest = words[options.rest..].to_vec();
        return Some(NestedCommands {
            commands: vec![NestedCommand::Words(rest)],
            unknown: options.unsure.then_some(UNSURE),
        });
    }
    // The sub-command may come after options.
    let hidden = name.text.starts_with(['-', ANY]);
    let position = words.iter().position(is_one).filter(|_| hidden)?;
    Some(opaque(words, position + 1))
}

/// The command is somewhere after the options.
fn opaque(words: &[Word], from: usize) -> NestedCommands {
    let rest = words.get(from..).unwrap_or_default();
    let begin = rest.iter().position(|word| !word.text.starts_with('-')).unwrap_or(rest.len());
    NestedCommands { commands: vec![NestedCommand::Words(rest[begin..].to_vec())], unknown: Some(UNSURE) }
}

/// Each argument is a script.
fn hyperfine(words: &[Word]) -> NestedCommands {
    let value = |word: &Word| match word.text.split_once('=') {
        Some((name, value)) if name.starts_with('-') => Some(value.to_owned()),
        _ => Some(word.text.clone()).filter(|text| !text.starts_with('-')),
    };
    let script = |text| NestedCommand::Script { text, posix: true };
    NestedCommands { commands: words[1..].iter().filter_map(value).map(script).collect(), unknown: None }
}

fn fd(words: &[Word]) -> NestedCommands {
    let runs = |word: &Word| {
        let text = word.text.as_str();
        let short = text.starts_with('-') && !text.starts_with("--") && text.contains(['x', 'X']);
        short || text.starts_with("--exec")
    };
    let Some(at) = words.iter().position(runs) else { return NestedCommands::default() };
    let sure = matches!(words[at].text.as_str(), "-x" | "-X" | "--exec" | "--exec-batch");
    let inner = words[at + 1..].iter().take_while(|word| word.text != ";").cloned().collect::<Vec<_>>();
    let mut inner = fill_placeholders(&inner, &["{}", "{/}", "{//}", "{.}", "{/.}"]);
    inner.push(unknown_arguments());
    NestedCommands { commands: vec![NestedCommand::Words(inner)], unknown: (!sure).then_some(UNSURE) }
}

/// The command is after `--`.
fn kubectl(words: &[Word]) -> NestedCommands {
    match words.iter().position(|word| word.text == "--") {
        Some(at) => {
            NestedCommands { commands: vec![NestedCommand::Words(words[at + 1..].to_vec())], unknown: None }
        }
        None => NestedCommands {
            commands: vec![NestedCommand::Script { text: join_words(&words[1..]), posix: true }],
            unknown: Some(UNSURE),
        },
    }
}
