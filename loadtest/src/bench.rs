//! `loadtest bench`: how fast, and whether every promise is kept meanwhile.

mod backlog;
mod looped;
mod others;
mod picture;
mod plan;
mod report;
mod scenario;
mod team;

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

pub(crate) use self::{plan::Plan, report::Report, scenario::Scenario};
use crate::{load::Pace, stage::Mode, workload::Addresses};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[arg(long, value_enum, default_value_t = Scenario::Noop)]
    scenario: Scenario,
    /// What to start.
    #[arg(long, value_enum, default_value_t = Mode::Embedded)]
    mode: Mode,
    /// A server that runs already, instead of one that is started.
    #[arg(long, value_name = "URL", conflicts_with = "mode")]
    endpoint: Option<String>,
    #[arg(long, env = "REMUDA_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// Clients that each have one run at a time.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..))]
    clients: u64,
    /// An open loop instead: runs begin at this rate, whatever the server does, and latencies count from when they should begin.
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "clients")]
    rate: Option<f64>,
    /// Find the highest rate first, and then measure an open loop at half of it, beside what one client alone gets.
    #[arg(long, conflicts_with = "rate")]
    half: bool,
    /// Sessions that runs are spread over. The scenario's own number if missing; more than 10,000 are written into the database.
    #[arg(long)]
    sessions: Option<usize>,
    /// Runs that are queued before: those that `backlog` works off (1,000,000 if missing), or for others so many that wait in a pool
    /// without workers (none if missing).
    #[arg(long, value_name = "RUNS")]
    queued: Option<u64>,
    /// Sessions that waiting runs are spread over; `backlog` has `--sessions`.
    #[arg(long, value_name = "SESSIONS", default_value_t = 10_000)]
    queued_sessions: u64,
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Seconds of load before it is measured.
    #[arg(long, default_value_t = 3)]
    warm_up: u64,
    /// Slots of the worker.
    #[arg(long, default_value_t = 256)]
    slots: u32,
    /// The nats-server binary. The installed one if missing.
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// One line of JSON.
    #[arg(long)]
    json: bool,
    /// Draw the rate over time, the percentiles and the stages into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl BenchArgs {
    fn plan(&self) -> Plan {
        let usual = Plan::new(self.scenario, self.mode);
        Plan {
            pace: match self.rate {
                Some(per_second) => Pace::Open { per_second },
                None => Pace::Closed { clients: usize::try_from(self.clients).unwrap_or(usize::MAX) },
            },
            sessions: self.sessions.unwrap_or(usual.sessions).max(1),
            queued: self.queued.unwrap_or(usual.queued),
            queued_sessions: self.queued_sessions,
            seconds: self.seconds,
            warm_up: self.warm_up,
            slots: self.slots,
            nats: self.nats.clone(),
            ..usual
        }
    }
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan();
    anyhow::ensure!(
        !args.half || plan.scenario.is_looped(),
        "--half is for scenarios in which clients submit runs"
    );
    let report = match &args.endpoint {
        None if args.half => looped::measure(&plan, true).await?,
        None => measure(&plan).await?,
        Some(endpoint) => {
            anyhow::ensure!(plan.scenario.is_looped(), "{} starts what it needs", plan.scenario.name());
            let endpoints = vec![endpoint.clone()];
            let addresses = Addresses {
                control_planes: endpoints.clone(),
                streams: endpoints,
                api_key: args.api_key.clone(),
            };
            looped::measure_at(&plan, args.half, addresses).await?
        }
    };
    if let Some(file) = &args.svg {
        report.draw(file)?;
    }
    Ok(report.print(args.json))
}

/// Starts what a scenario needs, and measures it.
pub(crate) async fn measure(plan: &Plan) -> anyhow::Result<Report> {
    match plan.scenario {
        Scenario::Fanout => others::fanout(plan).await,
        Scenario::Sandbox => others::sandbox(plan).await,
        Scenario::Backlog => backlog::measure(plan).await,
        _ => looped::measure(plan, false).await,
    }
}
