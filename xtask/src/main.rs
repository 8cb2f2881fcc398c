//! Development tasks; `cargo xtask help` lists them.
//!
//! `test` runs the whole test suite against real services. It finds them, installs missing ones if it is root, starts them,
//! and stops them in any case.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool")]

mod bench_check;
mod clients;
mod dist;
mod interrupt;
mod lint;
mod report;
mod run_cargo;
mod services;
mod test;
mod wheel;

use std::{env, process::ExitCode};

use anyhow::{Result, bail};

use crate::interrupt::Interrupt;

const HELP: &str = "\
Development tasks of Remuda.

cargo xtask test [--filter NAME] [-- ARGS]
    Start PostgreSQL, find nats-server, a Docker engine and a browser, run the tests of the workspace, then those of the
    Python client.
    --filter NAME   run only tests of the workspace whose name contains NAME
    ARGS            more arguments for `cargo test`, such as -p remuda-transport

cargo xtask clients
    Run the tests of the Python client against the server that was built last.

cargo xtask bench-check
    Compare Remuda with the upper bounds of this machine, and fail if it has become slower. Takes some minutes and needs an
    otherwise idle machine.

cargo xtask dist
    Build the binary to deploy: profile dist, stripped, with its symbols in a file beside it.

cargo xtask lint
    Check dependencies (unused, duplicate versions, licences), links in Markdown and spelling. Needs no services.

cargo xtask services
    Start the same services, print the environment that tests need, and wait for Ctrl-C.

cargo xtask help
    Print this text.

Missing programs are installed with apt-get if run as root. A second version of nats-server is cached in
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
        "dist" if rest.is_empty() => dist::run(&Interrupt::install()?),
        "lint" if rest.is_empty() => lint::run(),
        "services" if rest.is_empty() => services::serve(&Interrupt::install()?),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        other => bail!("unknown task or arguments: {other} {}; see `cargo xtask help`", rest.join(" ")),
    }
}
