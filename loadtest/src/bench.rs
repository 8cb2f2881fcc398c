//! `loadtest bench`: measures rate and latency of a scenario and checks the guarantees meanwhile.

mod agent_workspace;
mod backlog;
mod chart;
mod client_loop;
mod fanout_and_sandbox;
mod plan;
mod report;
mod scenario;

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

pub(crate) use self::{plan::BenchPlan, report::Report, scenario::Scenario};
use crate::{
    deployment::Mode,
    load::LoadModel,
    workload::{Addresses, OperatorAccess},
};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[arg(long, value_enum, default_value_t = Scenario::Noop)]
    scenario: Scenario,
    /// The deployment to start.
    #[arg(long, value_enum, default_value_t = Mode::Embedded)]
    mode: Mode,
    /// Use a running server at this URL instead of starting one.
    #[arg(long, value_name = "URL", conflicts_with = "mode")]
    endpoint: Option<String>,
    #[arg(long, env = "REMUDA_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// A key with the scope operator, with which the scenario `agent` registers its workspace.
    #[arg(
        long,
        env = "REMUDA_OPERATOR_KEY",
        hide_env_values = true,
        value_name = "KEY",
        requires = "endpoint"
    )]
    operator_key: Option<String>,
    /// The tenant of the API key, for the scenario `agent`.
    #[arg(long, default_value = "default", value_name = "NAME")]
    tenant: String,
    /// Clients of the closed loop; each has one run at a time.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..))]
    clients: u64,
    /// Use an open loop: start runs at this fixed rate. Latencies count from the time at which a run should have started.
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "clients")]
    rate: Option<f64>,
    /// Find the highest rate first, then measure an open loop at half of it and compare with the latency of a single client.
    #[arg(long, conflicts_with = "rate")]
    half: bool,
    /// Sessions that runs are spread over [default: depends on the scenario]. More than 10,000 are written directly into the
    /// database.
    #[arg(long)]
    sessions: Option<usize>,
    /// Runs that are queued before the measurement. `backlog` executes them [default: 1,000,000]; for other scenarios they wait in
    /// a pool without workers [default: none].
    #[arg(long, value_name = "RUNS")]
    queued: Option<u64>,
    /// Sessions that the queued runs are spread over; `backlog` uses `--sessions`.
    #[arg(long, value_name = "SESSIONS", default_value_t = 10_000)]
    queued_sessions: u64,
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Seconds of load before the measurement.
    #[arg(long, default_value_t = 3)]
    warm_up: u64,
    /// Slots of the worker.
    #[arg(long, default_value_t = 256)]
    slots: u32,
    /// The nats-server binary [default: the installed one].
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// Print the report as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Draw the rate over time, the latency percentiles and the stages as SVG into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl BenchArgs {
    fn plan(&self) -> BenchPlan {
        let defaults = BenchPlan::new(self.scenario, self.mode);
        BenchPlan {
            model: match self.rate {
                Some(per_second) => LoadModel::Open { per_second },
                None => LoadModel::Closed { clients: usize::try_from(self.clients).unwrap_or(usize::MAX) },
            },
            sessions: self.sessions.unwrap_or(defaults.sessions).max(1),
            queued: self.queued.unwrap_or(defaults.queued),
            queued_sessions: self.queued_sessions,
            seconds: self.seconds,
            warm_up: self.warm_up,
            slots: self.slots,
            nats: self.nats.clone(),
            ..defaults
        }
    }
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan();
    anyhow::ensure!(
        !args.half || plan.scenario.uses_client_loop(),
        "--half needs a scenario in which clients submit runs"
    );
    let report = match &args.endpoint {
        None if args.half => client_loop::measure(&plan, true).await?,
        None => measure(&plan).await?,
        Some(endpoint) => {
            anyhow::ensure!(
                plan.scenario.uses_client_loop(),
                "scenario {} starts its own servers: omit --endpoint",
                plan.scenario.name()
            );
            let endpoints = vec![endpoint.clone()];
            let addresses = Addresses {
                control_planes: endpoints.clone(),
                streams: endpoints,
                api_key: args.api_key.clone(),
                operator: args
                    .operator_key
                    .clone()
                    .map(|key| OperatorAccess { key, tenant: args.tenant.clone() }),
            };
            client_loop::measure_at(&plan, args.half, addresses).await?
        }
    };
    if let Some(file) = &args.svg {
        report.draw(file)?;
    }
    Ok(report.print(args.json))
}

/// Starts the servers that a scenario needs and measures it.
pub(crate) async fn measure(plan: &BenchPlan) -> anyhow::Result<Report> {
    match plan.scenario {
        Scenario::Fanout => fanout_and_sandbox::fanout(plan).await,
        Scenario::Sandbox => fanout_and_sandbox::sandbox(plan).await,
        Scenario::Backlog => backlog::measure(plan).await,
        _ => client_loop::measure(plan, false).await,
    }
}
