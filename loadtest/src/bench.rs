//! `loadtest bench`: how fast, and whether every promise is kept meanwhile.

mod report;
mod scenario;
mod team;

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;

use self::{report::Report, scenario::Scenario, team::Team};
use crate::{
    collector::Collector,
    load::{self, Measured, Pace, Site, Stages},
    stage::{Mode, Setting, Stage},
    workload::Addresses,
};

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
    /// Sessions that runs are spread over. The scenario's own number if missing.
    #[arg(long)]
    sessions: Option<usize>,
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
}

impl BenchArgs {
    fn pace(&self) -> Pace {
        match self.rate {
            Some(per_second) => Pace::Open { per_second },
            None => Pace::Closed { clients: usize::try_from(self.clients).unwrap_or(usize::MAX) },
        }
    }
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    if let Some(endpoint) = &args.endpoint {
        let endpoints = vec![endpoint.clone()];
        let addresses = Addresses {
            control_planes: endpoints.clone(),
            streams: endpoints,
            api_key: args.api_key.clone(),
        };
        return Ok(measure(&args, addresses, None).await?.print(&args, Vec::new()));
    }
    let stages = Stages::default();
    let collector = Collector::start(stages.clone()).await?;
    let setting = Setting { slots: args.slots, nats: args.nats.clone(), ..Setting::same_profile() }
        .with("REMUDA_TELEMETRY__OTLP_ENDPOINT", collector.endpoint.as_str())
        .with("REMUDA_TELEMETRY__OTLP_METRICS", "false")
        // Only those runs are traced whose clients ask for it.
        .with("REMUDA_TELEMETRY__SAMPLE_RATIO", "0");
    let mut stage = Stage::start(args.mode, &setting).await?;
    let measured = measure(&args, stage.addresses(), Some(stages.clone())).await;
    let report = measured.inspect_err(|_| stage.mark_failed())?;
    let memory = stage.memory();
    let code = Report { memory, stages: stages.summary()?, ..report }.print(&args, stage.troubles());
    if code != ExitCode::SUCCESS {
        stage.mark_failed();
    }
    Ok(code)
}

/// Warms up, measures, and judges both.
async fn measure(args: &BenchArgs, addresses: Addresses, stages: Option<Stages>) -> anyhow::Result<Report> {
    let sessions = args.sessions.unwrap_or(args.scenario.sessions());
    // Gone when all is over.
    let team = match args.scenario {
        Scenario::Agent => Some(Team::gather(&addresses).await?),
        _ => None,
    };
    let like = team.as_ref().map(|_| Team::session()).unwrap_or_default();
    let site = Arc::new(Site::prepared(addresses, sessions, like).await?.staged(stages));
    let work = args.scenario.work();
    let warm = load::drive(&site, &work, args.pace(), Duration::from_secs(args.warm_up)).await?;
    let measured = load::drive(&site, &work, args.pace(), Duration::from_secs(args.seconds)).await?;
    let facts = [warm.facts, measured.facts.clone()].concat();
    let verdict = load::judge(&site, &work, &facts).await?;
    Ok(Report {
        measured: Measured { facts: Vec::new(), ..measured },
        sessions,
        verdict,
        memory: Vec::new(),
        stages: (0, Vec::new()),
    })
}
