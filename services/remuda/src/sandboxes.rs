//! `remuda sandboxes`: what exists outside of the worker processes, and the removal of what is left.

use std::{process::ExitCode, sync::Arc};

use clap::Subcommand;
use remuda_config::Config;
use remuda_domain::error::Result;
use remuda_sandbox::ExistingKind;
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
  remuda sandboxes reap          on the machine of the engine, with the configuration of its workers";

#[derive(Debug, Subcommand)]
pub(crate) enum SandboxesCommand {
    /// List what workers have made for which sessions. Asks the server.
    List,
    /// Remove what lost workers left on this machine's engine.
    ///
    /// Workers do this by themselves every few seconds; this is for an engine whose workers are gone for good. Works on the
    /// database and the engine directly. Containers of living workers, of other installations and of strangers are not
    /// touched.
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
        let what = match existing.what {
            ExistingKind::Container => "container",
            ExistingKind::Volume => "volume",
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
        output.note(&output.err.paint(Style::Good, "nothing was left behind"));
    }
    if reaped.forgotten > 0 {
        output.note(&format!("{} records of sandboxes that are gone were deleted", reaped.forgotten));
    }
    Ok(ExitCode::SUCCESS)
}
