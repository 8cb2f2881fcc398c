//! `remuda run --dry-run`: reports what a run would do, without executing it.
//!
//! Reads the workspace and the configuration of this machine, as a worker on it would. From the server it only requests workspaces and
//! sessions. The model gets one short test message.

mod inspect;
mod model_call_preview;
mod print;
mod report;
mod target;

use remuda_client::Client;
use remuda_config::Config;
use remuda_domain::error::Result;

use super::{RunArgs, submit};
use crate::{client::exit::Exit, output::Output};

pub(super) async fn dry_run(
    mut args: RunArgs,
    client: &Client,
    config: &Config,
    output: Output,
) -> Result<Exit> {
    // Validate the message as for a real run.
    let input = submit::input(&mut args)?;
    let target = target::resolve(&args, client, config).await?;
    let request = inspect::DryRunRequest::new(args, &input, target)?;
    let report = inspect::inspect(&request, config, output).await?;
    let exit = if report.would_run() { Exit::Ok } else { Exit::RunFailed };
    print::print(&report, output);
    Ok(exit)
}
