//! `remuda log-filter`: shows the log filters of processes and changes them for a limited time.

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
  remuda log-filter set 'info,[run{run=run_01k9…}]=debug'      details of one run, if set before it starts
  remuda log-filter reset                                      back to telemetry.log immediately
  remuda log-filter get --json | jq 'select(.until)'           processes with a changed filter";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum LogFilterCommand {
    /// Show the log filters (also without a subcommand).
    Get(ProcessFilter),
    /// Change the log filters for a limited time.
    Set {
        /// error, warn, info, debug, trace or off, or levels per module: info,remuda_worker=debug.
        #[arg(value_name = "FILTER", value_parser = clap::builder::NonEmptyStringValueParser::new())]
        filter: String,
        /// How long the change lasts, up to 24h.
        #[arg(long = "for", value_name = "TIME", default_value = "15m", value_parser = humantime::parse_duration)]
        lasts: Duration,
        #[command(flatten)]
        target: ProcessFilter,
    },
    /// Restore the filters that the processes started with.
    Reset(ProcessFilter),
}

#[derive(Debug, Default, clap::Args)]
pub(crate) struct ProcessFilter {
    /// Only these processes.
    #[arg(long, value_enum, value_name = "WHICH")]
    only: Option<ProcessKind>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ProcessKind {
    Worker,
    Stream,
    ControlPlane,
    /// Only the control plane that receives this request.
    #[value(name = "self")]
    ThisControlPlane,
}

impl ProcessFilter {
    fn only(&self) -> String {
        match self.only {
            None => "",
            Some(ProcessKind::Worker) => "worker",
            Some(ProcessKind::Stream) => "stream",
            Some(ProcessKind::ControlPlane) => "control-plane",
            Some(ProcessKind::ThisControlPlane) => "self",
        }
        .to_owned()
    }
}

pub(super) async fn execute(
    command: Option<LogFilterCommand>,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    let processes = match command.unwrap_or_else(|| LogFilterCommand::Get(ProcessFilter::default())) {
        LogFilterCommand::Get(target) => {
            client.get_log_filter(v1::GetLogFilterRequest { only: target.only() }).await?.processes
        }
        LogFilterCommand::Set { filter, lasts, target } => {
            set(client, v1::SetLogFilterRequest { filter, lasts: lasts.try_into().ok(), only: target.only() })
                .await?
        }
        LogFilterCommand::Reset(target) => {
            set(client, v1::SetLogFilterRequest { only: target.only(), ..Default::default() }).await?
        }
    };
    if output.json {
        processes.iter().for_each(|process| output.json_line(&json::log_filter(process)));
        return Ok(Exit::Ok);
    }
    if processes.is_empty() {
        output.note("no matching process answered");
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
