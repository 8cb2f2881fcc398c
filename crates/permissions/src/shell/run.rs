//! From what stands in a script to what is run.

use super::{
    Command, Found, Lost, MAX_DEPTH, Script, Word, assignment,
    cursor::{Input, Reader, Simple},
    known::{self, Setting},
    list::End,
    program,
    wrappers::{self, Part},
};
use crate::wildcard::ANY;

const NESTED: &str = "it is nested too deeply to be judged";
const UNREADABLE: &str = "it cannot be read";
const PROGRAM: &str = "what it runs cannot be told";
const CHANGES_OTHERS: &str = "it changes what other commands do";
const PARTLY: &str = "a part of what it runs cannot be told";

/// How often the reader goes on after it was lost, in all of a script.
const MAX_RESUMED: usize = 50;

/// Adds the commands of a script.
pub(super) fn scan(script: &str, depth: usize, posix: bool, found: &mut Script) {
    if depth >= MAX_DEPTH {
        return found.push(Command::whole(script, NESTED));
    }
    let (certain, mut rest) = scan_once(script, depth, posix, found);
    if !certain {
        found.push(Command::whole(script, UNREADABLE));
    }
    // It is unknown now, but a denied command that stands further on is denied all the same.
    while let Some(further) = rest.filter(|_| found.resumed < MAX_RESUMED) {
        found.resumed += 1;
        (_, rest) = scan_once(&further, depth, posix, found);
    }
}

/// Reads as far as it can: whether that is certain and all, and else what comes after the next separator.
fn scan_once(script: &str, depth: usize, posix: bool, found: &mut Script) -> (bool, Option<String>) {
    let mut reader = Reader::new(script, depth, posix, found);
    let lost = reader.list(End::Script).is_err();
    let certain = !lost && !reader.doubtful;
    let rest = if lost { reader.rest() } else { String::new() };
    finish(reader);
    (certain, rest.find(['\n', ';', '&', '|', '(']).map(|at| rest[at + 1..].to_owned()))
}

/// Adds the commands that are run for a text, and tells what becomes of it.
pub(super) fn expand(text: &str, depth: usize, posix: bool, found: &mut Script) -> Found<String> {
    let mut reader = Reader::new(text, depth, posix, found);
    let text = reader.body();
    let doubtful = reader.doubtful;
    finish(reader);
    if doubtful { Err(Lost) } else { text }
}

fn finish(reader: Reader<'_>) {
    let Reader { simples, bodies, found, depth, .. } = reader;
    for simple in simples {
        take(simple, &bodies, depth, found);
    }
}

fn take(simple: Simple, bodies: &[String], depth: usize, found: &mut Script) {
    let Simple { timed, assignments, words, input, .. } = simple;
    let input = input.and_then(|input| match input {
        Input::Body(index) => bodies.get(index).cloned(),
        Input::Text(text) => Some(text),
    });
    for word in &assignments {
        set(word, depth, found);
    }
    if words.is_empty() {
        return;
    }
    let before = found.commands.len();
    if timed {
        let time = Word { text: "time".to_owned(), raw: "time".to_owned() };
        found.push(Command::new([&[time], words.as_slice()].concat(), None));
    }
    run(words, input.as_deref(), depth, found);
    if !assignments.is_empty() {
        found.commands[before..].iter_mut().for_each(|command| command.assigned = true);
    }
}

/// A variable that is set. Most are nobody's business.
fn set(word: &Word, depth: usize, found: &mut Script) {
    let Some((name, _)) = assignment(&word.raw) else { return };
    let unknown = || Command::new(vec![word.clone()], Some(CHANGES_OTHERS));
    match known::setting(name) {
        Setting::Harmless => {}
        Setting::ChangesOthers => found.push(unknown()),
        Setting::Command => match assignment(&word.text) {
            Some((_, value)) if !value.contains(ANY) => scan(value, depth + 1, true, found),
            _ => found.push(unknown()),
        },
    }
}

/// Adds a command and what it runs in turn.
fn run(words: Vec<Word>, input: Option<&str>, depth: usize, found: &mut Script) {
    if words.is_empty() {
        return;
    }
    let Some(program) = program(&words) else {
        return found.push(Command::new(words, Some(PROGRAM)));
    };
    if depth >= MAX_DEPTH {
        return found.push(Command::new(words, Some(NESTED)));
    }
    found.changes_directory |= matches!(program, "cd" | "pushd" | "popd");
    if known::DECLARES.contains(&program) || wrappers::sets_variables(program) {
        words[1..].iter().for_each(|word| set(word, depth, found));
    }
    if program == "git" {
        for word in wrappers::git_settings(&words) {
            found.push(Command::new(vec![word], Some(CHANGES_OTHERS)));
        }
    }
    let inside = wrappers::inside(program, &words, input);
    let in_part = inside.parts.iter().any(|part| match part {
        Part::Script { text, .. } => text.contains(ANY),
        Part::Words(_) => false,
    });
    let unknown = inside.unknown.or(in_part.then_some(PARTLY));
    found.push(Command::new(words, unknown));
    for part in inside.parts {
        match part {
            Part::Words(words) => run(words, input, depth + 1, found),
            Part::Script { text, posix } => scan(&text, depth + 1, posix, found),
        }
    }
}
