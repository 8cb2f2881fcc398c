//! From what stands in a script to what is run.

use super::{
    Command, Found, Lost, MAX_DEPTH, Script, Word, assignment,
    cursor::{Input, Reader, Simple},
    known,
    list::End,
    program,
    variables::{self, Setting},
    wrappers::{self, Part},
};
use crate::wildcard::ANY;

const NESTED: &str = "it is nested too deeply to be judged";
const UNREADABLE: &str = "it cannot be read";
pub(super) const PROGRAM: &str = "what it runs cannot be told";
pub(super) const CHANGES_OTHERS: &str = "it changes what other commands do";
pub(super) const VARIABLE: &str = "it runs what a variable holds";
pub(super) const PARTLY: &str = "a part of what it runs cannot be told";

/// How often the reader goes on after it was lost, in all of a script.
const MAX_RESUMED: usize = 50;

/// Adds the commands of a script.
pub(super) fn scan(script: &str, depth: usize, posix: bool, found: &mut Script) {
    if depth >= MAX_DEPTH {
        found.changes_directory = true;
        return found.push(Command::whole(script, NESTED));
    }
    let (certain, mut rest) = scan_once(script, depth, posix, found);
    if !certain {
        found.changes_directory = true;
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
    let Reader { simples, bodies, found, depth, posix, .. } = reader;
    for simple in simples {
        take(simple, &bodies, Place { depth, posix }, found);
    }
}

/// Where a command stands.
#[derive(Clone, Copy, Debug)]
struct Place {
    depth: usize,
    /// Read by a shell that may not be bash.
    posix: bool,
}

fn take(simple: Simple, bodies: &[String], place: Place, found: &mut Script) {
    let Simple { timed, assignments, words, input, .. } = simple;
    let input = input.and_then(|input| match input {
        Input::Body(index) => bodies.get(index).cloned(),
        Input::Text(text) => Some(text),
    });
    // What separates words matters to nobody else.
    let reads = words.first().is_some_and(|word| word.text == "read");
    for word in assignments.iter().filter(|word| !(reads && word.raw.starts_with("IFS="))) {
        set(word, place.depth, found);
        found.loaded |= variables::substitutes(&word.text);
        // Some of the shell's own variables, such as `RANDOM`, are numbers.
        let computed =
            |target: &str| target.contains('[') || !target.contains(|next: char| next.is_lowercase());
        found.computes |= word.raw.split('=').next().is_some_and(computed);
    }
    if words.is_empty() {
        return;
    }
    let before = found.commands.len();
    if timed {
        let time = Word { text: "time".to_owned(), raw: "time".to_owned() };
        found.push(Command::new([&[time], words.as_slice()].concat(), None));
    }
    run(words, input.as_deref(), place, found);
    if !assignments.is_empty() {
        found.commands[before..].iter_mut().for_each(|command| command.assigned = true);
    }
}

/// A variable that is set. Most are nobody's business.
fn set(word: &Word, depth: usize, found: &mut Script) {
    // An array's index ends what its text tells.
    let written = assignment(&word.raw).map(|(name, _)| name.to_owned());
    let name = written.or_else(|| {
        let (target, _) = word.text.split_once('=')?;
        let name = target.strip_suffix('+').unwrap_or(target);
        Some(name.split_once('[').map_or(name, |(name, _)| name).to_owned())
    });
    let unknown = || Command::new(vec![word.clone()], Some(CHANGES_OTHERS));
    let Some(name) = name else {
        if word.text.starts_with(ANY) {
            found.push(unknown());
        }
        return;
    };
    match variables::setting(&name) {
        _ if name.contains(ANY) => found.push(unknown()),
        Setting::Harmless => {}
        Setting::ChangesOthers => found.push(unknown()),
        Setting::Command => match assignment(&word.text) {
            Some((_, value)) if !value.contains(ANY) => scan(value, depth + 1, true, found),
            _ => found.push(unknown()),
        },
    }
}

/// Adds a command and what it runs in turn.
fn run(words: Vec<Word>, input: Option<&str>, place: Place, found: &mut Script) {
    if words.is_empty() {
        return;
    }
    let depth = place.depth;
    // A home is nothing to run, but without one the next word is.
    let Some(program) = program(&words).filter(|program| *program != "~") else {
        found.changes_directory = true;
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
    found.computes |= known::COMPUTES.contains(&program);
    let inside = wrappers::inside(program, &words, input, place.posix);
    let in_part = inside.parts.iter().any(|part| match part {
        Part::Script { text, .. } => text.contains(ANY),
        Part::Words(_) => false,
    });
    let sets = variables::sets_others(program, &words).then_some(CHANGES_OTHERS);
    let unknown = inside.unknown.or(in_part.then_some(PARTLY)).or(sets);
    // It may go anywhere.
    found.changes_directory |= unknown.is_some();
    found.push(Command::new(words, unknown));
    for part in inside.parts {
        match part {
            Part::Words(words) => run(words, input, Place { depth: depth + 1, ..place }, found),
            Part::Script { text, posix } => scan(&text, depth + 1, posix, found),
        }
    }
}
