//! `remuda run --dry-run`: what would happen, with nothing executed.
//!
//! Reads the workspace and the configuration of this machine as a worker here would. Of the server it only asks where a workspace
//! is and how a session was made; of the model it asks one tiny question.

mod look;
mod place;
mod question;
mod report;
mod tell;

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
    // What is wrong with the message itself is found as in a real run.
    let input = submit::input(&mut args)?;
    let place = place::find(&args, client, config).await?;
    let wanted = look::Wanted::of(args, &input, place)?;
    let report = look::look(&wanted, config, output).await?;
    let exit = if report.would_run() { Exit::Ok } else { Exit::RunFailed };
    tell::tell(&report, output);
    Ok(exit)
}
