//! The `remuda` binary: all services, the client commands, the administration commands and the demo.

mod bus;
mod cli;
mod client;
mod config_command;
mod demo;
mod doctor;
mod gc;
mod keys;
mod metrics;
mod migrate;
mod models;
mod nats_auth;
mod output;
mod sandboxes;
mod serve;
mod tools;
mod top;
mod workspace;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use remuda_config::{Config, LoadOptions};
use remuda_domain::{Code, Error, error::Result};

use crate::{
    cli::{Cli, Command},
    output::Output,
};

/// Runs make many small allocations on several threads; mimalloc is built for that load.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // The guard must stay small and single-threaded: no runtime, no configuration.
    if matches!(cli.command, Command::Guard) {
        return remuda_sandbox::guard::run();
    }
    let output = Output::new(cli.json, cli.color);
    // Fails only if a provider is installed already, which is fine.
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let error = Error::internal("the async runtime cannot start").with_source(error);
            return client::report(&error, output);
        }
    };
    let outcome = runtime.block_on(execute(cli, output));
    // Do not wait for blocking threads on exit.
    runtime.shutdown_background();
    outcome.unwrap_or_else(|error| client::report(&error, output))
}

async fn execute(cli: Cli, output: Output) -> Result<ExitCode> {
    let load = cli.load_options();
    match cli.command {
        Command::Client(command) => client::execute(command, &cli.connection, || config(&load), output).await,
        Command::Dev(args) => serve::dev(&args, &load, output).await,
        Command::All(args) => serve::all(&args, &load, output).await,
        Command::ControlPlane(args) => serve::control_plane(&args, &load, output).await,
        Command::Worker(args) => serve::worker(&args, &load, output).await,
        Command::Stream(args) => serve::stream(&args, &load, output).await,
        Command::Migrate => migrate::execute(&config(&load)?, output).await,
        Command::Bus(command) => bus::execute(command, &config(&load)?, output).await,
        Command::NatsAuth(args) => nats_auth::execute(&args, &config(&load)?, output),
        Command::Keys(command) => keys::execute(command, &config(&load)?, output).await,
        Command::Gc(args) => gc::execute(&args, &config(&load)?, output).await,
        Command::Sandboxes(command) => {
            sandboxes::execute(command, &cli.connection, || config(&load), output).await
        }
        Command::Workspace(command) => {
            workspace::execute(command, &cli.connection, || config(&load), output).await
        }
        Command::Models(command) => models::execute(command, &config(&load)?, output).await,
        Command::Tools => tools::execute(&config(&load)?, output),
        Command::Config(command) => {
            config_command::execute(&command, &load, output.json).map_err(|error| invalid_argument(&error))
        }
        Command::Doctor { mode } => {
            let loaded = Config::load_with_origins(&load).map_err(|error| bad_config(&error))?;
            let mode = mode.unwrap_or_else(|| serve::inferred_mode(&loaded.config).into());
            doctor::run(&loaded, mode, output.json).await.map_err(|error| invalid_argument(&error))
        }
        Command::Demo(args) => demo::execute(args, output).await,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "remuda", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Command::Guard => Ok(remuda_sandbox::guard::run()),
    }
}

fn config(load: &LoadOptions) -> Result<Config> {
    Config::load(load).map_err(|error| bad_config(&error))
}

fn bad_config(error: &remuda_config::Error) -> Error {
    Error::new(Code::InvalidArgument, error.to_string())
}

fn invalid_argument(error: &anyhow::Error) -> Error {
    Error::new(Code::InvalidArgument, format!("{error:#}"))
}
