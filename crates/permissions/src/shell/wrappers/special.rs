//! Wrapper programs and shell builtins with their own argument syntax.

use super::{
    CHANGES_OTHERS, ELSEWHERE, NestedCommand, NestedCommands, SHELL, UNSURE, fill_placeholders, git,
    join_words, remote, tools, unknown_arguments,
};
use crate::{
    shell::{
        Word,
        options::{self, OptionSpec, Options, PLAIN},
        variables,
    },
    wildcard::ANY,
};

pub(super) fn nested_commands(
    program: &str,
    words: &[Word],
    input: Option<&str>,
    posix: bool,
) -> Option<NestedCommands> {
    Some(match program {
        "env" => env(words),
        "command" => command(words),
        "eval" => {
            let marked = words.get(1).is_some_and(|word| word.text == "--");
            NestedCommands {
                commands: vec![script(join_words(&words[1 + usize::from(marked)..]), posix)],
                unknown: None,
            }
        }
        "trap" => trap(words, posix),
        "alias" => alias(words, posix),
        "hash" => NestedCommands {
            unknown: has_letter(words, 'p').then_some(CHANGES_OTHERS),
            ..NestedCommands::default()
        },
        "jobs" => jobs(words),
        "xargs" => xargs(words),
        "find" => find(words),
        "parallel" => parallel(words),
        "watch" => watch(words),
        "flock" => flock(words),
        "su" | "script" => with_command(program, words, input),
        "sg" => sg(words),
        "setarch" => setarch(words),
        "runuser" if words.get(1).is_some_and(|word| word.text == "-u") => {
            wrapper(&OptionSpec { values: "ugGw", flags: "lmpP", ..PLAIN }, words)
        }
        "runuser" => with_command(program, words, input),
        "ssh" => remote::ssh(words, input),
        "scp" | "sftp" | "rsync" => remote::copy(program, words),
        "git" => git::nested_commands(words),
        program => return tools::nested_commands(program, words),
    })
}

fn script(text: String, posix: bool) -> NestedCommand {
    NestedCommand::Script { text, posix }
}

fn wrapper(spec: &OptionSpec, words: &[Word]) -> NestedCommands {
    let options = options::parse(spec, words, 1);
    NestedCommands {
        commands: vec![NestedCommand::Words(words[options.rest..].to_vec())],
        unknown: unsure(&options),
    }
}

fn unsure(options: &Options) -> Option<&'static str> {
    options.unsure.then_some(UNSURE)
}

fn env(words: &[Word]) -> NestedCommands {
    let spec = OptionSpec {
        values: "uCSa",
        flags: "i0v-",
        long_values: &["unset", "chdir", "split-string", "argv0"],
        long_flags: &["ignore-environment", "null", "debug"],
        assignments: true,
        ..PLAIN
    };
    let options = options::parse(&spec, words, 1);
    let rest = &words[options.rest..];
    let unset = options.given.iter().filter(|(name, _)| matches!(name.as_str(), "u" | "unset"));
    let harmless = |value: &Option<Word>| {
        value
            .as_ref()
            .is_some_and(|name| variables::effect_of(&name.text) == variables::VariableEffect::Harmless)
    };
    let unknown = if unset.into_iter().all(|(_, value)| harmless(value)) {
        unsure(&options)
    } else {
        Some(CHANGES_OTHERS)
    };
    match options.value(&["S", "split-string"]) {
        Some(split) => {
            let nested = env_split(split, &options, rest);
            NestedCommands { unknown: unknown.or(nested.unknown), ..nested }
        }
        None => NestedCommands { commands: vec![NestedCommand::Words(rest.to_vec())], unknown },
    }
}

/// `env -S text`: env splits the text into arguments by its own rules.
fn env_split(split: &Word, options: &Options, rest: &[Word]) -> NestedCommands {
    let plain = |next: char| next.is_ascii_alphanumeric() || " \t_-./=:,+@%".contains(next);
    let is_last = options.given.last().is_some_and(|(name, _)| matches!(name.as_str(), "S" | "split-string"));
    let only =
        options.given.iter().filter(|(name, _)| matches!(name.as_str(), "S" | "split-string")).count() == 1;
    if !(is_last && only && split.text.chars().all(plain)) {
        return NestedCommands {
            commands: vec![script(format!("env {} {}", split.text, join_words(rest)), false)],
            unknown: Some(UNSURE),
        };
    }
    let word = |text: &str| Word { text: text.to_owned(), raw: text.to_owned() };
    let words = std::iter::once("env").chain(split.text.split_whitespace()).map(word);
    NestedCommands {
        commands: vec![NestedCommand::Words(words.chain(rest.iter().cloned()).collect())],
        unknown: None,
    }
}

fn command(words: &[Word]) -> NestedCommands {
    let options = options::parse(&OptionSpec { flags: "pvV", ..PLAIN }, words, 1);
    if options.has(&["v", "V"]) {
        return NestedCommands::default();
    }
    NestedCommands {
        commands: vec![NestedCommand::Words(words[options.rest..].to_vec())],
        unknown: unsure(&options),
    }
}

fn trap(words: &[Word], posix: bool) -> NestedCommands {
    let rest = if words.get(1).is_some_and(|word| word.text == "--") { &words[2..] } else { &words[1..] };
    match rest {
        [action, _, ..] if !matches!(action.text.as_str(), "-" | "-l" | "-p" | "") => {
            NestedCommands { commands: vec![script(action.text.clone(), posix)], unknown: None }
        }
        _ => NestedCommands::default(),
    }
}

/// The value of an alias is judged where it is defined. The alias may also change how the rest is parsed.
fn alias(words: &[Word], posix: bool) -> NestedCommands {
    let value = |word: &Word| word.text.split_once('=').map(|(_, value)| script(value.to_owned(), posix));
    let defines = |word: &Word| word.text.contains('=') || !word.literal();
    let unknown = words[1..].iter().any(defines).then_some(CHANGES_OTHERS);
    NestedCommands { commands: words[1..].iter().filter_map(value).collect(), unknown }
}

/// `jobs -x command`
fn jobs(words: &[Word]) -> NestedCommands {
    if !has_letter(words, 'x') {
        return NestedCommands::default();
    }
    let begin =
        words.iter().skip(1).position(|word| !word.text.starts_with('-')).map_or(words.len(), |at| at + 1);
    NestedCommands { commands: vec![NestedCommand::Words(words[begin..].to_vec())], unknown: Some(UNSURE) }
}

/// Whether an option may be among the arguments.
pub(super) fn has_letter(words: &[Word], letter: char) -> bool {
    let is = |word: &Word| word.text.starts_with('-') && word.text.contains([letter, ANY]);
    words.iter().skip(1).any(|word| is(word) || word.text.starts_with(ANY))
}

fn xargs(words: &[Word]) -> NestedCommands {
    let spec = OptionSpec {
        values: "IadEnLPs",
        flags: "0rtpxoile",
        long_values: &["arg-file", "delimiter", "max-args", "max-procs", "max-chars", "process-slot-var"],
        long_flags: &["null", "no-run-if-empty", "verbose", "interactive", "exit", "open-tty", "replace"],
        ..PLAIN
    };
    let options = options::parse(&spec, words, 1);
    let mut rest = words[options.rest..].to_vec();
    let replaces = options.has(&["I", "i", "replace"]);
    if replaces {
        let mark = options.value(&["I", "replace"]).map_or("{}", |mark| mark.text.as_str());
        if mark.is_empty() || mark.contains('\0') {
            return NestedCommands { commands: vec![NestedCommand::Words(rest)], unknown: Some(UNSURE) };
        }
        rest = fill_placeholders(&rest, &[mark]);
    } else if !rest.is_empty() {
        rest.push(unknown_arguments());
    }
    NestedCommands { commands: vec![NestedCommand::Words(rest)], unknown: unsure(&options) }
}

fn find(words: &[Word]) -> NestedCommands {
    let mut nested = NestedCommands::default();
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
        nested.commands.push(NestedCommand::Words(fill_placeholders(&inner, &["{}"])));
    }
    nested
}

/// Its arguments become one line for a shell.
fn parallel(words: &[Word]) -> NestedCommands {
    const MARKS: [&str; 9] = ["{}", "{.}", "{/}", "{//}", "{/.}", "{#}", "{%}", "{1}", "{2}"];
    let spec = OptionSpec {
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
    let options = options::parse(&spec, words, 1);
    let is_source = |word: &&Word| !matches!(word.text.as_str(), ":::" | "::::" | ":::+" | "::::+");
    let inner: Vec<Word> = words[options.rest..].iter().take_while(is_source).cloned().collect();
    if inner.is_empty() {
        return NestedCommands { commands: Vec::new(), unknown: Some(ELSEWHERE) };
    }
    let mut inner = fill_placeholders(&inner, &MARKS);
    if inner.iter().all(Word::literal) {
        inner.push(unknown_arguments());
    }
    let special = |word: &Word| {
        word.text.contains([' ', '\n', '\t', ';', '&', '|', '<', '>', '(', '$', '`', '\'', '"', '\\'])
    };
    let command = if inner.iter().any(special) {
        script(join_words(&inner), true)
    } else {
        NestedCommand::Words(inner)
    };
    NestedCommands { commands: vec![command], unknown: unsure(&options) }
}

fn watch(words: &[Word]) -> NestedCommands {
    let spec = OptionSpec {
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
    let options = options::parse(&spec, words, 1);
    let rest = &words[options.rest..];
    let command = if options.has(&["x", "exec"]) {
        NestedCommand::Words(rest.to_vec())
    } else {
        script(join_words(rest), true)
    };
    NestedCommands { commands: vec![command], unknown: unsure(&options) }
}

fn flock(words: &[Word]) -> NestedCommands {
    let spec = OptionSpec {
        values: "wE",
        flags: "sxenuFov",
        long_values: &["timeout", "wait", "conflict-exit-code"],
        long_flags: &["shared", "exclusive", "nonblock", "unlock", "no-fork", "close", "verbose"],
        operands: 1,
        ..PLAIN
    };
    let options = options::parse(&spec, words, 1);
    let rest = &words[options.rest..];
    let command = match rest {
        [option, text, ..] if matches!(option.text.as_str(), "-c" | "--command") => {
            script(text.text.clone(), true)
        }
        rest => NestedCommand::Words(rest.to_vec()),
    };
    NestedCommands { commands: vec![command], unknown: unsure(&options) }
}

/// `su` and `script`: the command is the value of `-c` at any position. Without it, they start a shell.
fn with_command(program: &str, words: &[Word], input: Option<&str>) -> NestedCommands {
    // Letters with a value, which may look like another option.
    let values = if program == "script" { "BEIOTomt" } else { "gGsw" };
    let mut nested = NestedCommands::default();
    let mut rest = words[1..].iter();
    while let Some(word) = rest.next() {
        let text = word.text.as_str();
        if text == "--" && program == "script" {
            nested.commands.push(NestedCommand::Words(rest.by_ref().cloned().collect()));
            nested.unknown = Some(UNSURE);
            break;
        }
        // The shell option may name any program.
        if text.starts_with("--sh") || text.starts_with('\0') || !word.single() {
            nested.unknown = Some(UNSURE);
        }
        let found = if let Some(long) = text.strip_prefix("--") {
            let (name, attached) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let is_command =
                !name.is_empty() && ["command", "session-command"].iter().any(|of| of.starts_with(name));
            let next = if is_command && attached.is_none() { rest.next() } else { None };
            attached
                .filter(|_| is_command)
                .map(ToOwned::to_owned)
                .or_else(|| next.map(|word| word.text.clone()))
        } else {
            let letters = text.strip_prefix('-').unwrap_or_default();
            let at = letters.find(|letter| letter == 'c' || values.contains(letter));
            let letter = at.and_then(|at| letters[at..].chars().next());
            if letter == Some('s') {
                nested.unknown = Some(UNSURE);
            }
            let value = at.map(|at| &letters[at + 1..]).map(|attached| {
                // The value of `-t` is always attached.
                if attached.is_empty() && letter != Some('t') {
                    rest.next().map_or("", |word| word.text.as_str())
                } else {
                    attached
                }
            });
            value.filter(|_| letter == Some('c')).map(ToOwned::to_owned)
        };
        // The shell takes this text as an option, and the next word as the command.
        if found.as_ref().is_some_and(|found| found.starts_with(['-', '+'])) {
            nested.unknown = Some(UNSURE);
        }
        nested.commands.extend(found.map(|found| script(found, true)));
    }
    match input {
        _ if !nested.commands.is_empty() => {}
        Some(input) => nested.commands.push(script(input.to_owned(), true)),
        None => nested.unknown = Some(SHELL),
    }
    nested
}

/// `sg group command`: its arguments become one line for a shell.
fn sg(words: &[Word]) -> NestedCommands {
    let rest: Vec<Word> =
        words[1..].iter().filter(|word| !matches!(word.text.as_str(), "-" | "-c")).cloned().collect();
    match rest.get(1..) {
        Some(rest) if !rest.is_empty() => {
            NestedCommands { commands: vec![script(join_words(rest), true)], unknown: None }
        }
        _ => NestedCommands { commands: Vec::new(), unknown: Some(SHELL) },
    }
}

/// `setarch [architecture] [options] command`
fn setarch(words: &[Word]) -> NestedCommands {
    let spec =
        OptionSpec { flags: "BFILRSTXZv3", long_flags: &["addr-no-randomize", "verbose", "32bit"], ..PLAIN };
    let named = words.get(1).is_some_and(|word| !word.text.starts_with('-'));
    let options = options::parse(&spec, words, if named { 2 } else { 1 });
    let rest = &words[options.rest..];
    let unknown = unsure(&options).or(rest.is_empty().then_some(SHELL));
    NestedCommands { commands: vec![NestedCommand::Words(rest.to_vec())], unknown }
}
