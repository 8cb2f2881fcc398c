//! `remuda-fuzz`: fuzzes one target for as long as told.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a tool for the terminal")]

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use remuda_fuzz::{Finding, Limit, TARGETS, corpus, drive};

/// Fuzz a parser.
#[derive(Debug, Parser)]
struct Arguments {
    /// The target; without it, all targets are listed.
    target: Option<String>,
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The same seed gives the same inputs. By default, a random one.
    #[arg(long)]
    seed: Option<u64>,
    /// Where to write the input that breaks the target.
    #[arg(long, default_value = "finding")]
    output: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Some(target) = TARGETS.iter().find(|target| Some(target.name) == arguments.target.as_deref()) else {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        return if arguments.target.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    };
    let seed = arguments.seed.unwrap_or_else(rand::random);
    println!("{}: {} minutes, --seed {seed}", target.name, arguments.minutes);
    let inputs = match corpus(target) {
        Ok(inputs) => inputs.into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>(),
        Err(error) => {
            eprintln!("the corpus of {}: {error}", target.name);
            return ExitCode::FAILURE;
        }
    };
    match drive(target, &inputs, seed, Limit::Time(Duration::from_secs(60 * arguments.minutes))) {
        Ok(report) => {
            println!("{} inputs, {} kinds of behaviour, nothing found", report.inputs, report.kinds);
            ExitCode::SUCCESS
        }
        Err(Finding { input, message }) => {
            let written = fs::write(&arguments.output, &input);
            eprintln!(
                "{message}\n{:?}\n{}: {written:?}",
                String::from_utf8_lossy(&input),
                arguments.output.display()
            );
            ExitCode::FAILURE
        }
    }
}
