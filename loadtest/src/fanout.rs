//! `loadtest fanout`: what streams promise and cost, as seen by readers over HTTP.

mod audience;
mod connection;
mod flow;
mod follower;
mod idle;
mod load;
mod reconnect;
mod replicas;
mod report;
mod sse;
mod wire;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

pub(crate) use self::flow::Flow;
use self::report::Part;
use crate::stage::{Mode, Setting, Stage};

#[derive(Debug, Args)]
pub(crate) struct FanoutArgs {
    /// Only these, separated by commas. All if missing.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,…")]
    parts: Vec<PartName>,
    /// Readers of `latency` and `stall`.
    #[arg(long, default_value_t = 1000)]
    readers: usize,
    /// Sessions that they follow.
    #[arg(long, default_value_t = 100)]
    sessions: usize,
    /// Events per second in all sessions together. `reconnect` and `replicas` use at most 150 and 200.
    #[arg(long, default_value_t = 1000.0, value_name = "PER_SECOND", value_parser = rate)]
    rate: f64,
    /// How long `latency` and `stall` measure, each, in up to eight turns.
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
    /// How often a stream service of `replicas` is killed.
    #[arg(long, default_value_t = 8)]
    kills: u32,
    /// The same seed gives the same load, and the same moments of hanging up and killing.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure a stream service of its own, on PostgreSQL and NATS, instead of the embedded server.
    #[arg(long)]
    split: bool,
    /// The nats-server binary. The installed one if missing.
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// Build and test the release profile. REMUDA_BIN names another binary.
    #[arg(long)]
    release: bool,
    /// One line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PartName {
    /// From the commit of an event to all its readers.
    Latency,
    /// The same while one of them does not read, in turns with `latency`.
    Stall,
    /// Memory of readers of silent sessions.
    Idle,
    /// One that comes and goes all the time.
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
        let stage = args.stage().await?;
        parts.extend(on(stage, async |stage| flow::run(&args, stage, stall).await).await?);
    }
    if wants(PartName::Idle) {
        parts.extend(on(args.stage().await?, async |stage| idle::run(&args, stage).await).await?);
    }
    if wants(PartName::Reconnect) {
        parts.extend(on(args.stage().await?, async |stage| reconnect::run(&args, stage).await).await?);
    }
    if wants(PartName::Replicas) {
        let setting = Setting { streams: replicas::REPLICAS, ..args.setting() };
        let stage = Stage::start(Mode::Split, &setting).await?;
        parts.extend(on(stage, async |stage| replicas::run(&args, stage).await).await?);
    }
    Ok(report::report(args.seed, args.mode().name(), args.json, &parts))
}

/// What `bench` wants to know of.
pub(crate) struct Sizes {
    pub(crate) mode: Mode,
    pub(crate) nats: Option<PathBuf>,
    pub(crate) readers: usize,
    pub(crate) sessions: usize,
    pub(crate) events_per_second: f64,
    pub(crate) seconds: u64,
}

impl Sizes {
    /// The parts that are not looked at have no sizes.
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

/// The part `latency`, as `bench` shows it.
pub(crate) async fn flow(sizes: Sizes) -> anyhow::Result<Flow> {
    raise_open_files()?;
    let args = sizes.args();
    let mut stage = args.stage().await?;
    let flow = flow::flow(&args, &mut stage).await.inspect_err(|_| stage.mark_failed())?;
    if !flow.failures.is_empty() {
        stage.mark_failed();
    }
    Ok(flow)
}

/// Lets something happen on a stage, whose logs are kept if it comes to a bad end.
async fn on(
    mut stage: Stage,
    act: impl AsyncFnOnce(&mut Stage) -> anyhow::Result<Vec<Part>>,
) -> anyhow::Result<Vec<Part>> {
    let parts = act(&mut stage).await.inspect_err(|_| stage.mark_failed())?;
    if parts.iter().any(|part| !part.failures().is_empty()) {
        stage.mark_failed();
    }
    Ok(parts)
}

impl FanoutArgs {
    /// A server of its own for each part: what one part leaves in memory must not be counted by the next.
    async fn stage(&self) -> anyhow::Result<Stage> {
        Stage::start(self.mode(), &self.setting()).await
    }

    fn mode(&self) -> Mode {
        if self.split { Mode::Split } else { Mode::Embedded }
    }

    fn setting(&self) -> Setting {
        Setting { nats: self.nats.clone(), ..Setting::new(self.release) }
    }
}

/// Each reader is a file here and another one in the server, which inherits the limit.
fn raise_open_files() -> anyhow::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).context("the limit of open files is unknown")?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("the limit of open files cannot be raised")
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "expected a number")?;
    if (0.1..=1e6).contains(&rate) { Ok(rate) } else { Err("expected 0.1 to 1,000,000".to_owned()) }
}
