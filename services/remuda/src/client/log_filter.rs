//! `remuda log-filter`: what processes log, and changing it for a while.

use std::time::Duration;

use remuda_client::Client;
use remuda_domain::error::Result;
use remuda_proto::{convert, v1};

use super::{exit::Exit, json};
use crate::output::{Output, Style, Table, elapsed};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda log-filter get
  remuda log-filter set debug --for 5m --only worker
  remuda log-filter set info,remuda_worker=debug,remuda_engine=trace
  remuda log-filter set 'info,[run{run=run_01k9…}]=debug'      everything about one run that has not begun yet
  remuda log-filter reset                                      back to telemetry.log at once
  remuda log-filter get --json | jq 'select(.until)'           those that are changed";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum LogFilterCommand {
    /// Show what processes log (also without a subcommand).
    Get(Meant),
    /// Change what processes log, for a while.
    Set {
        /// error, warn, info, debug, trace or off, or one per module: info,remuda_worker=debug.
        #[arg(value_name = "FILTER", value_parser = clap::builder::NonEmptyStringValueParser::new())]
        filter: String,
        /// After this it goes back by itself: up to 24h.
        #[arg(long = "for", value_name = "TIME", default_value = "15m", value_parser = humantime::parse_duration)]
        lasts: Duration,
        #[command(flatten)]
        meant: Meant,
    },
    /// Go back to what the processes started with.
    Reset(Meant),
}

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Meant {
    /// Only some of the processes.
    #[arg(long, value_enum, value_name = "WHICH")]
    only: Option<Which>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Which {
    Worker,
    Stream,
    ControlPlane,
    /// The control plane that answers.
    #[value(name = "self")]
    Answering,
}

impl Meant {
    fn only(&self) -> String {
        match self.only {
            None => "",
            Some(Which::Worker) => "worker",
            Some(Which::Stream) => "stream",
            Some(Which::ControlPlane) => "control-plane",
            Some(Which::Answering) => "self",
        }
        .to_owned()
    }
}

pub(super) async fn execute(
    command: Option<LogFilterCommand>,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    let processes = match command.unwrap_or_else(|| LogFilterCommand::Get(Meant::default())) {
        LogFilterCommand::Get(meant) => {
            client.get_log_filter(v1::GetLogFilterRequest { only: meant.only() }).await?.processes
        }
        LogFilterCommand::Set { filter, lasts, meant } => {
            set(client, v1::SetLogFilterRequest { filter, lasts: lasts.try_into().ok(), only: meant.only() })
                .await?
        }
        LogFilterCommand::Reset(meant) => {
            set(client, v1::SetLogFilterRequest { only: meant.only(), ..Default::default() }).await?
        }
    };
    if output.json {
        processes.iter().for_each(|process| output.json_line(&json::log_filter(process)));
        return Ok(Exit::Ok);
    }
    if processes.is_empty() {
        output.note("no such process answered");
        return Ok(Exit::Ok);
    }
    let now = chrono::Utc::now();
    let mut table = Table::new(output.out, &["PROCESS", "HOST", "ROLES", "FILTER", "FOR", "STARTED WITH"]);
    for process in processes {
        let until = process.until.as_ref().and_then(convert::from_timestamp);
        let left = until.map(|until| (until - now).to_std().unwrap_or_default());
        table.row([
            (process.process, Some(Style::Dim)),
            (process.host, Some(Style::Bold)),
            (process.roles.join(" "), None),
            (process.filter, left.map(|_| Style::Warn)),
            (left.map(elapsed).unwrap_or_default(), None),
            (process.start_filter, None),
        ]);
    }
    table.print();
    Ok(Exit::Ok)
}

async fn set(client: &Client, request: v1::SetLogFilterRequest) -> Result<Vec<v1::LogFilter>> {
    Ok(client.set_log_filter(request).await?.processes)
}
