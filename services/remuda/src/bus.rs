//! `remuda bus`: the keys with which services sign their messages to each other.

use std::{process::ExitCode, time::Duration};

use clap::Subcommand;
use remuda_config::Config;
use remuda_domain::{bus::BusSigner, error::Result};
use remuda_transport::new_bus_secret;
use serde_json::json;

use crate::{output::Output, serve::inferred_mode};

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda bus rotate-key                        new key; messages signed with the old one are accepted for an hour
  remuda bus rotate-key --keep 0s              after a leak: the old key is rejected as soon as services have read the new one";

#[derive(Debug, Subcommand)]
pub(crate) enum BusCommand {
    /// Add a key with which control planes and stream services sign, and retire the earlier ones.
    ///
    /// Services read the keys every 30 seconds and need no restart. Each worker has a key of its own, which is new with every
    /// start. Works on the database directly and needs no API key.
    ///
    /// If the old key is rejected before a service has read the new one, its messages are only hints: runs continue, later.
    RotateKey {
        /// How long messages signed with the earlier keys are accepted. At least a minute avoids delays.
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
        keep: Duration,
    },
    /// List the ids of the accepted keys, newest first. Secrets are never shown.
    Keys,
}

pub(crate) async fn execute(command: BusCommand, config: &Config, output: Output) -> Result<ExitCode> {
    let options = remuda_node::store_options(config, inferred_mode(config))?;
    let store = remuda_store::connect(&options).await?;
    match command {
        BusCommand::RotateKey { keep } => {
            let id = store.rotate_bus_key(&new_bus_secret(), keep).await?;
            if output.json {
                output.json_line(&json!({ "id": id, "keep_seconds": keep.as_secs_f64() }));
            } else {
                let keep = humantime::format_duration(keep);
                output.out.line(&format!("services sign with {id} now; the earlier keys retire in {keep}"));
            }
        }
        BusCommand::Keys => {
            for key in store.bus_keys().await? {
                let BusSigner::Installation(id) = key.signer else { continue };
                if output.json {
                    output.json_line(&json!({ "id": id }));
                } else {
                    output.out.line(&id.to_string());
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
