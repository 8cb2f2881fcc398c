//! The program itself; the library says what it is for.
//!
//! `supervise` runs one command: frames on its input and output, all on channel 0. `init` is the first process of a
//! container and runs many, one `supervise` each, told apart by their channel. Nobody types these: the worker does.

mod init;
mod kernel;
mod outbox;
mod processes;
mod supervise;

use std::process::ExitCode;

fn main() -> ExitCode {
    kernel::close_inherited();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["supervise"] => supervise::run(false),
        ["supervise", supervise::CONTAINED] => supervise::run(true),
        ["init"] => init::run(),
        _ => return ExitCode::from(2),
    };
    // There is nobody to tell why; whoever started it sees the stream end.
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
