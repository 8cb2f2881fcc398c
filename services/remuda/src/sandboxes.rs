//! `remuda sandboxes`: lists sandboxes and removes leftover ones.

use std::{process::ExitCode, sync::Arc};

use clap::Subcommand;
use remuda_config::Config;
use remuda_domain::error::Result;
use remuda_sandbox::EngineResourceKind;
use remuda_worker::Reaper;
use serde_json::json;

use crate::{
    client::{self, Connection},
    output::{Output, Style},
    serve::inferred_mode,
};

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda sandboxes list
  remuda sandboxes list --json | jq 'select(.worker_alive | not)'
  remuda sandboxes reap          run on the machine of the Docker engine, with its workers' configuration";

#[derive(Debug, Subcommand)]
pub(crate) enum SandboxesCommand {
    /// List the sandboxes that workers created, with their sessions. Asks the server.
    List,
    /// Remove containers and volumes that lost workers left on this machine's Docker engine.
    ///
    /// Workers do this automatically every few seconds. Use this command for an engine whose workers are gone for good. It works
    /// on the database and the engine directly. It does not touch containers of live workers, of other installations, or of
    /// other programs.
    Reap,
}

pub(crate) async fn execute(
    command: SandboxesCommand,
    connection: &Connection,
    config: impl FnOnce() -> Result<Config>,
    output: Output,
) -> Result<ExitCode> {
    match command {
        SandboxesCommand::List => client::list_sandboxes(connection, output).await,
        SandboxesCommand::Reap => reap(&config()?, output).await,
    }
}

async fn reap(config: &Config, output: Output) -> Result<ExitCode> {
    let options = remuda_node::store_options(config, inferred_mode(config))?;
    let store = remuda_store::connect(&options).await?;
    let policies = remuda_node::policies(config)?;
    let backends = remuda_node::backends(config, &store, &policies, None).await?;
    let reaped = Reaper::new(Arc::clone(&store), backends).round().await?;
    for existing in &reaped.removed {
        let what = match existing.kind {
            EngineResourceKind::Container => "container",
            EngineResourceKind::Volume => "volume",
        };
        if output.json {
            output.json_line(&json!({
                "removed": what,
                "handle": existing.handle,
                "sandbox_id": existing.sandbox,
                "worker_id": existing.worker,
            }));
        } else {
            output.out.line(&format!("removed {what} {} of {}", existing.handle, existing.worker));
        }
    }
    if reaped.removed.is_empty() {
        output.note(&output.err.paint(Style::Good, "there are no leftover sandboxes"));
    }
    if reaped.forgotten > 0 {
        output.note(&format!("{} records of sandboxes that no longer exist were deleted", reaped.forgotten));
    }
    Ok(ExitCode::SUCCESS)
}
