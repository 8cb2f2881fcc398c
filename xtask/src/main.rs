//! Development tasks: `cargo xtask help`.
//!
//! `test` runs the whole test suite against real services, which it finds, installs where it may, starts, and stops again
//! whatever happens.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]

mod bench_check;
mod clients;
mod interrupt;
mod newer_nats;
mod report;
mod services;
mod test;

use std::{env, process::ExitCode};

use anyhow::{Result, bail};

use crate::interrupt::Interrupt;

const HELP: &str = "\
Development tasks of Remuda.

cargo xtask test [--filter NAME] [-- ARGS]
    Start PostgreSQL, find nats-server, a Docker engine and a browser, run the tests of the workspace, then those of the
    Python client.
    --filter NAME   only tests of the workspace whose name contains NAME
    ARGS            more arguments for `cargo test`, such as -p remuda-transport

cargo xtask clients
    Run the tests of the Python client against the server that was built last.

cargo xtask bench-check
    Measure Remuda beside what this machine can do at most, and fail if it has become slower. Takes some minutes, and an
    otherwise quiet machine.

cargo xtask services
    Start the same services, print the environment that tests need, and wait for Ctrl-C.

cargo xtask help
    Print this text.

What is missing is installed with apt-get when run as root. A second version of nats-server is kept in
${XDG_CACHE_HOME:-$HOME/.cache}/remuda/tools.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode> {
    let (task, rest) =
        arguments.split_first().map_or(("help", &[][..]), |(task, rest)| (task.as_str(), rest));
    match task {
        "test" => test::run(&test::Options::parse(rest)?, &Interrupt::install()?),
        "clients" if rest.is_empty() => clients::run(&Interrupt::install()?),
        "bench-check" if rest.is_empty() => bench_check::run(&Interrupt::install()?),
        "services" if rest.is_empty() => services::serve(&Interrupt::install()?),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        other => bail!("unknown task or arguments: {other} {}; see `cargo xtask help`", rest.join(" ")),
    }
}
