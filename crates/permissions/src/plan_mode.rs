//! The permission mode `plan`, in which nothing may be changed.

use crate::{
    shell::{Command, ScriptAnalysis, Word},
    verdict::ProposedCall,
    wildcard::ANY,
};

/// The part of a call that the mode forbids, and the reason.
pub(crate) fn forbids(call: &ProposedCall<'_>, script: Option<&ScriptAnalysis>) -> Option<(String, String)> {
    if call.tool.changes_no_files() {
        return None;
    }
    let Some(script) = script else {
        return Some((
            "*".to_owned(),
            format!("the mode is plan, and {} may change something", call.tool.name),
        ));
    };
    let because = |text: &str| format!("the mode is plan, and it is not certain that {text}");
    if let Some(command) = script.commands.iter().find(|command| !only_reads(command)) {
        return Some((command.raw.clone(), because("this command only reads")));
    }
    let write = script.redirections.iter().find(|redirection| redirection.writes)?;
    Some((format!("> {}", write.target.raw), because("this redirection changes nothing")))
}

/// Programs that change nothing, whatever their arguments.
const READ_ONLY_PROGRAMS: [&str; 41] = [
    ":",
    "ls",
    "cat",
    "head",
    "tail",
    "wc",
    "grep",
    "egrep",
    "fgrep",
    "pwd",
    "echo",
    "printf",
    "true",
    "false",
    "test",
    "[",
    "stat",
    "du",
    "df",
    "which",
    "type",
    "basename",
    "dirname",
    "realpath",
    "readlink",
    "cut",
    "tr",
    "diff",
    "cmp",
    "comm",
    "nl",
    "whoami",
    "id",
    "uname",
    "jq",
    "sha256sum",
    "md5sum",
    "cd",
    "seq",
    "od",
    "tac",
];

/// Programs that change nothing themselves but run another command, which is judged as well.
const WRAPPER_PROGRAMS: [&str; 4] = ["xargs", "timeout", "nice", "command"];

/// Sub-commands of git that change nothing in a workspace.
const READ_ONLY_GIT_COMMANDS: [&str; 10] =
    ["status", "log", "diff", "show", "blame", "grep", "ls-files", "ls-tree", "rev-parse", "describe"];

fn only_reads(command: &Command) -> bool {
    let Some(program) = command.program() else { return false };
    // With a directory, it may be another program of that name.
    let named = command.words.first().is_some_and(|first| first.text == program);
    if !named || command.unknown.is_some() || command.assigned {
        return false;
    }
    let words = &command.words[1..];
    let options: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    // An unknown word may be an option.
    let vague = |word: &Word| word.text.contains(ANY) && word.text.starts_with([ANY, '-']);
    let certain = !words.iter().any(vague);
    match program {
        "time" => !options.first().is_some_and(|option| option.starts_with('-')),
        program if READ_ONLY_PROGRAMS.contains(&program) || WRAPPER_PROGRAMS.contains(&program) => true,
        "find" => {
            const CHANGES: [&str; 9] =
                ["-delete", "-exec", "-execdir", "-ok", "-okdir", "-fprint", "-fprint0", "-fprintf", "-fls"];
            certain && !options.iter().any(|option| CHANGES.contains(option))
        }
        "rg" => {
            certain
                && !options
                    .iter()
                    .any(|option| option.starts_with("--pre") || option.starts_with("--hostname-bin"))
        }
        "sort" => {
            let writes = |option: &&str| {
                option.starts_with("--o")
                    || option.starts_with("--c")
                    || option.starts_with("--T")
                    || (option.starts_with('-') && !option.starts_with("--") && option.contains(['o', 'T']))
            };
            certain && !options.iter().any(writes)
        }
        "uniq" => {
            // `uniq` writes to its second file.
            let files = options.iter().filter(|option| !option.starts_with('-')).count();
            certain && files <= 1 && !options.contains(&"-") && !options.contains(&"--")
        }
        "date" => certain && only_prints_date(&options),
        "file" => certain && !has_option(&options, 'C', "--c"),
        "tree" => certain && !has_option(&options, 'o', "--o") && !has_option(&options, 'R', "--o"),
        "git" => certain && git_reads(&options),
        _ => false,
    }
}

/// Whether an option is given by its letter or by a prefix of its long name.
fn has_option(options: &[&str], letter: char, long: &str) -> bool {
    options.iter().any(|option| {
        let short = option.starts_with('-') && !option.starts_with("--") && option.contains(letter);
        short || option.starts_with(long)
    })
}

/// `date` sets the clock if it has an operand that is not a format.
fn only_prints_date(options: &[&str]) -> bool {
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        match *option {
            "-u" | "-R" | "--utc" => {}
            "-d" => drop(rest.next()),
            option
                if ["+", "-I", "--date=", "--iso-8601", "--rfc-"]
                    .iter()
                    .any(|begin| option.starts_with(begin)) => {}
            _ => return false,
        }
    }
    true
}

fn git_reads(options: &[&str]) -> bool {
    let mut at = 0;
    while let Some(option) = options.get(at) {
        at += match *option {
            "--no-pager" => 1,
            "-C" => 2,
            _ => break,
        };
    }
    let Some((name, rest)) = options.get(at..).and_then(<[_]>::split_first) else { return false };
    let writes = |option: &&str| ["--ou", "--ext", "--textc"].iter().any(|begin| option.starts_with(begin));
    // `git grep -O` opens the matching files in a program.
    let opens = *name == "grep" && (has_option(rest, 'O', "--op") || rest.contains(&"--o"));
    READ_ONLY_GIT_COMMANDS.contains(name) && !opens && !rest.iter().any(writes)
}
