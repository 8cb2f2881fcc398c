//! Drives load over real gRPC and checks the promises while doing so.
//!
//! `loadtest bench` runs a closed loop: each client submits a run, waits for its end and goes on. It reports rates and
//! latencies, and it fails when a session's runs overlapped, ran out of order or were lost: speed without the promises
//! counts for nothing.

mod bench;
mod check;
mod target;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "loadtest", version, about = "Load generator and invariant checker for Remuda")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Closed-loop load: submit, wait for the end, repeat.
    #[command(
        after_help = "Examples:\n  cargo run --release -p loadtest -- bench --clients 256 --sessions 1000 --seconds 10\n  \
                            cargo run --release -p loadtest -- bench --endpoint http://127.0.0.1:7777 --json"
    )]
    Bench(bench::BenchArgs),
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    // Fails only if a provider is installed already, which is as good.
    drop(rustls::crypto::ring::default_provider().install_default());
    match Cli::parse().command {
        Command::Bench(args) => bench::run(args).await,
    }
}
