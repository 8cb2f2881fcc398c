//! `loadtest fanout`: checks and measures event streams with many readers over HTTP.

mod connection;
mod event_load;
mod follower;
mod http_response;
mod idle;
mod latency;
mod reader_group;
mod reconnect;
mod replicas;
mod report;
mod sse;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

pub(crate) use self::latency::FanoutMeasurement;
use self::report::PartReport;
use crate::deployment::{Deployment, DeploymentOptions, Mode};

#[derive(Debug, Args)]
pub(crate) struct FanoutArgs {
    /// Run only these parts, separated by commas [default: all].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,…")]
    parts: Vec<PartName>,
    /// Readers in `latency` and `stall`.
    #[arg(long, default_value_t = 1000)]
    readers: usize,
    /// Sessions that these readers follow.
    #[arg(long, default_value_t = 100)]
    sessions: usize,
    /// Events per second over all sessions. `reconnect` uses at most 150, `replicas` at most 200.
    #[arg(long, default_value_t = 1000.0, value_name = "PER_SECOND", value_parser = rate)]
    rate: f64,
    /// Duration of `latency` and of `stall`, each split into up to eight alternating intervals.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    #[arg(long, default_value_t = 10_000)]
    idle_readers: usize,
    #[arg(long, default_value_t = 1000)]
    idle_sessions: usize,
    #[arg(long, default_value_t = 1000)]
    reconnects: u64,
    #[arg(long, default_value_t = 200)]
    replica_readers: usize,
    #[arg(long, default_value_t = 50)]
    replica_sessions: usize,
    /// Kills of stream services in `replicas`.
    #[arg(long, default_value_t = 8)]
    kills: u32,
    /// Seed of the load and of the times of disconnects and kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure a separate stream service on PostgreSQL and NATS instead of the embedded server.
    #[arg(long)]
    split: bool,
    /// The nats-server binary [default: the installed one].
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// Build and use an optimised server, in the profile of this program. REMUDA_BIN names another binary.
    #[arg(long)]
    release: bool,
    /// Print the report as one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PartName {
    /// Latency from the commit of an event to all its readers.
    Latency,
    /// The same while one reader does not read, alternating with `latency`.
    Stall,
    /// Memory per reader of an idle session.
    Idle,
    /// A reader that disconnects and reconnects repeatedly.
    Reconnect,
    /// Two stream services, killed in turn.
    Replicas,
}

pub(crate) async fn run(args: FanoutArgs) -> anyhow::Result<ExitCode> {
    raise_open_files()?;
    let wants = |part: PartName| args.parts.is_empty() || args.parts.contains(&part);
    let mut parts = Vec::new();
    let stall = wants(PartName::Stall);
    if stall || wants(PartName::Latency) {
        let deployment = args.deployment().await?;
        parts.extend(
            run_on(deployment, async |deployment| latency::run(&args, deployment, stall).await).await?,
        );
    }
    if wants(PartName::Idle) {
        parts.extend(
            run_on(args.deployment().await?, async |deployment| idle::run(&args, deployment).await).await?,
        );
    }
    if wants(PartName::Reconnect) {
        parts.extend(
            run_on(args.deployment().await?, async |deployment| reconnect::run(&args, deployment).await)
                .await?,
        );
    }
    if wants(PartName::Replicas) {
        let options = DeploymentOptions { streams: replicas::REPLICAS, ..args.options() };
        let deployment = Deployment::start(Mode::Split, &options).await?;
        parts.extend(run_on(deployment, async |deployment| replicas::run(&args, deployment).await).await?);
    }
    Ok(report::report(args.seed, args.mode().name(), args.json, &parts))
}

/// The sizes that `bench` chooses.
pub(crate) struct FanoutSizes {
    pub(crate) mode: Mode,
    pub(crate) nats: Option<PathBuf>,
    pub(crate) readers: usize,
    pub(crate) sessions: usize,
    pub(crate) events_per_second: f64,
    pub(crate) seconds: u64,
}

impl FanoutSizes {
    /// Only the part `latency` runs, so the sizes of the others are zero.
    fn args(self) -> FanoutArgs {
        FanoutArgs {
            parts: vec![PartName::Latency],
            readers: self.readers,
            sessions: self.sessions,
            rate: self.events_per_second,
            seconds: self.seconds.max(1),
            idle_readers: 0,
            idle_sessions: 0,
            reconnects: 0,
            replica_readers: 0,
            replica_sessions: 0,
            kills: 0,
            seed: 1,
            split: self.mode == Mode::Split,
            nats: self.nats,
            release: !cfg!(debug_assertions),
            json: false,
        }
    }
}

/// Runs the part `latency` for `bench`.
pub(crate) async fn measure(sizes: FanoutSizes) -> anyhow::Result<FanoutMeasurement> {
    raise_open_files()?;
    let args = sizes.args();
    let mut deployment = args.deployment().await?;
    let measured =
        latency::measure(&args, &mut deployment).await.inspect_err(|_| deployment.mark_failed())?;
    if !measured.failures.is_empty() {
        deployment.mark_failed();
    }
    Ok(measured)
}

/// Runs parts on a deployment and keeps its logs if they fail.
async fn run_on(
    mut deployment: Deployment,
    run: impl AsyncFnOnce(&mut Deployment) -> anyhow::Result<Vec<PartReport>>,
) -> anyhow::Result<Vec<PartReport>> {
    let parts = run(&mut deployment).await.inspect_err(|_| deployment.mark_failed())?;
    if parts.iter().any(|part| !part.failures().is_empty()) {
        deployment.mark_failed();
    }
    Ok(parts)
}

impl FanoutArgs {
    /// Each part has its own server, so that memory left by one part is not measured in the next.
    async fn deployment(&self) -> anyhow::Result<Deployment> {
        Deployment::start(self.mode(), &self.options()).await
    }

    fn mode(&self) -> Mode {
        if self.split { Mode::Split } else { Mode::Embedded }
    }

    fn options(&self) -> DeploymentOptions {
        DeploymentOptions { nats: self.nats.clone(), ..DeploymentOptions::new(self.release) }
    }
}

/// Each reader needs a file descriptor here and one in the server, which inherits the limit.
fn raise_open_files() -> anyhow::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read the limit of open files")?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("cannot raise the limit of open files")
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "expected a number")?;
    if (0.1..=1e6).contains(&rate) { Ok(rate) } else { Err("expected 0.1 to 1,000,000".to_owned()) }
}
