//! Collects the commands that a script runs, including those in nested scripts and behind wrappers.

use super::{
    Command, MAX_DEPTH, ParseResult, ScriptAnalysis, Unparsable, Word, assignment, executors,
    list::Terminator,
    parser::{Input, Parser, SimpleCommand},
    program, programs,
    variables::{self, VariableEffect},
    wrappers::{self, NestedCommand},
};
use crate::wildcard::ANY;

const NESTED: &str = "it is nested too deeply to be judged";
const UNREADABLE: &str = "it cannot be parsed";
pub(super) const PROGRAM: &str = "the program it runs is unknown";
pub(super) const CHANGES_OTHERS: &str = "it changes what other commands do";
pub(super) const VARIABLE: &str = "it runs the value of a variable";
pub(super) const PARTLY: &str = "a part of what it runs is unknown";

/// Limit of resumptions after a failure, per script.
const MAX_RESUMED: usize = 50;

/// Adds the commands of a script.
pub(super) fn scan(script: &str, depth: usize, posix: bool, analysis: &mut ScriptAnalysis) {
    if depth >= MAX_DEPTH {
        analysis.changes_directory = true;
        return analysis.push(Command::unknown_script(script, NESTED));
    }
    let (certain, mut rest) = scan_once(script, depth, posix, analysis);
    if !certain {
        analysis.changes_directory = true;
        analysis.push(Command::unknown_script(script, UNREADABLE));
    }
    // The script is unknown now, but a denied command in the rest must still be found.
    while let Some(further) = rest.filter(|_| analysis.resumed < MAX_RESUMED) {
        analysis.resumed += 1;
        (_, rest) = scan_once(&further, depth, posix, analysis);
    }
}

/// Parses as far as possible. Returns whether the result is certain and complete, and on failure the text after the next
/// separator.
fn scan_once(
    script: &str,
    depth: usize,
    posix: bool,
    analysis: &mut ScriptAnalysis,
) -> (bool, Option<String>) {
    let mut parser = Parser::new(script, depth, posix, analysis);
    let failed = parser.list(Terminator::Script).is_err();
    let certain = !failed && !parser.doubtful;
    let rest = if failed { parser.rest() } else { String::new() };
    finish(parser);
    (certain, rest.find(['\n', ';', '&', '|', '(']).map(|at| rest[at + 1..].to_owned()))
}

/// Adds the commands in the substitutions of a text, and returns the expanded text.
pub(super) fn expand(
    text: &str,
    depth: usize,
    posix: bool,
    analysis: &mut ScriptAnalysis,
) -> ParseResult<String> {
    let mut parser = Parser::new(text, depth, posix, analysis);
    let text = parser.body();
    let doubtful = parser.doubtful;
    finish(parser);
    if doubtful { Err(Unparsable) } else { text }
}

fn finish(parser: Parser<'_>) {
    let Parser { simple_commands, bodies, analysis, depth, posix, .. } = parser;
    for simple in simple_commands {
        add_simple_command(simple, &bodies, CommandContext { depth, posix }, analysis);
    }
}

/// The context of a command.
#[derive(Clone, Copy, Debug)]
struct CommandContext {
    depth: usize,
    /// The shell may not be bash.
    posix: bool,
}

fn add_simple_command(
    simple: SimpleCommand,
    bodies: &[String],
    context: CommandContext,
    analysis: &mut ScriptAnalysis,
) {
    let SimpleCommand { timed, assignments, words, input, .. } = simple;
    let input = input.and_then(|input| match input {
        Input::Body(index) => bodies.get(index).cloned(),
        Input::Text(text) => Some(text),
    });
    // `IFS` before `read` affects no other command.
    let reads = words.first().is_some_and(|word| word.text == "read");
    for word in assignments.iter().filter(|word| !(reads && word.raw.starts_with("IFS="))) {
        check_assignment(word, context.depth, analysis);
        analysis.has_runnable_text |= variables::substitutes(&word.text);
        // Some of the shell's own variables, such as `RANDOM`, are evaluated as numbers.
        let computed =
            |target: &str| target.contains('[') || !target.contains(|next: char| next.is_lowercase());
        analysis.evaluates_arithmetic |= word.raw.split('=').next().is_some_and(computed);
    }
    if words.is_empty() {
        return;
    }
    let before = analysis.commands.len();
    if timed {
        let time = Word { text: "time".to_owned(), raw: "time".to_owned() };
        analysis.push(Command::new([&[time], words.as_slice()].concat(), None));
    }
    add_command(words, input.as_deref(), context, analysis);
    if !assignments.is_empty() {
        analysis.commands[before..].iter_mut().for_each(|command| command.assigned = true);
    }
}

/// Checks an assignment. Most variables are harmless.
fn check_assignment(word: &Word, depth: usize, analysis: &mut ScriptAnalysis) {
    // The source text also has the name before an array index.
    let written = assignment(&word.raw).map(|(name, _)| name.to_owned());
    let name = written.or_else(|| {
        let (target, _) = word.text.split_once('=')?;
        let name = target.strip_suffix('+').unwrap_or(target);
        Some(name.split_once('[').map_or(name, |(name, _)| name).to_owned())
    });
    let unknown = || Command::new(vec![word.clone()], Some(CHANGES_OTHERS));
    let Some(name) = name else {
        if word.text.starts_with(ANY) {
            analysis.push(unknown());
        }
        return;
    };
    match variables::effect_of(&name) {
        _ if name.contains(ANY) => analysis.push(unknown()),
        VariableEffect::Harmless => {}
        VariableEffect::ChangesOthers => analysis.push(unknown()),
        VariableEffect::Command => match assignment(&word.text) {
            Some((_, value)) if !value.contains(ANY) => scan(value, depth + 1, true, analysis),
            _ => analysis.push(unknown()),
        },
    }
}

/// Adds a command and the commands nested in it.
fn add_command(
    words: Vec<Word>,
    input: Option<&str>,
    context: CommandContext,
    analysis: &mut ScriptAnalysis,
) {
    if words.is_empty() {
        return;
    }
    let depth = context.depth;
    // A home directory cannot run, but if `HOME` is empty, the next word runs.
    let Some(program) = program(&words).filter(|program| *program != "~") else {
        analysis.changes_directory = true;
        return analysis.push(Command::new(words, Some(PROGRAM)));
    };
    if depth >= MAX_DEPTH {
        return analysis.push(Command::new(words, Some(NESTED)));
    }
    analysis.changes_directory |= matches!(program, "cd" | "pushd" | "popd");
    if programs::DECLARES.contains(&program) || wrappers::sets_variables(program) {
        words[1..].iter().for_each(|word| check_assignment(word, depth, analysis));
    }
    if program == "git" {
        for word in wrappers::git_settings(&words) {
            analysis.push(Command::new(vec![word], Some(CHANGES_OTHERS)));
        }
    }
    analysis.evaluates_arithmetic |= programs::COMPUTES.contains(&program);
    let nested = wrappers::nested_commands(program, &words, input, context.posix);
    let in_nested = nested.commands.iter().any(|command| match command {
        NestedCommand::Script { text, .. } => text.contains(ANY),
        NestedCommand::Words(_) => false,
    });
    let sets = variables::sets_sensitive_variable(program, &words).then_some(CHANGES_OTHERS);
    let unknown = nested.unknown.or(in_nested.then_some(PARTLY)).or(sets);
    // It may change the directory.
    analysis.changes_directory |= unknown.is_some();
    let executes = executors::find(program, &words);
    let behind_options = executors::option_commands(program, &words);
    analysis.push(Command { executes, ..Command::new(words, unknown) });
    for command in nested.commands.into_iter().chain(behind_options) {
        match command {
            NestedCommand::Words(words) => {
                add_command(words, input, CommandContext { depth: depth + 1, ..context }, analysis)
            }
            NestedCommand::Script { text, posix } => scan(&text, depth + 1, posix, analysis),
        }
    }
}
