//! `loadtest sandbox`: the cost of executing a trivial command, compared with the minimum on this machine.
//!
//! All executors alternate, command by command, so that a busy moment affects all of them. Ratios are of medians.

mod executors;
mod growth;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use remuda_testkit::BusyboxImage;
use serde_json::{Value, json};

use self::{
    executors::{BareProcess, DockerExecutor, EngineExec, LocalExecutor},
    growth::{Growth, Usage},
};
use crate::{
    load::Stage,
    observed_history::{Micros, now},
    prerequisites,
};

#[derive(Debug, clap::Args)]
pub(crate) struct SandboxArgs {
    /// Rounds in which every executor executes one command.
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// New sessions that start on a spare container.
    #[arg(long, default_value_t = 20)]
    sessions: u32,
    /// Calls after which no resource usage may have grown.
    #[arg(long, default_value_t = 5000)]
    calls: u32,
    /// The Docker engine [default: DOCKER_HOST].
    #[arg(long, value_name = "URL")]
    docker_host: Option<String>,
    /// Print the report as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The highest accepted time relative to the baseline.
const LOCAL_GOAL: f64 = 1.5;
const DOCKER_GOAL: f64 = 1.2;
const FIRST_GOAL: f64 = 1.5;

/// About as many as a Docker engine achieves.
const ROUNDS_PER_SECOND: u64 = 10;

pub(crate) async fn run(args: SandboxArgs) -> Result<ExitCode> {
    let report = measure_all(&args).await?;
    let good = report.violations.is_empty();
    report.print(args.json);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure_all(args: &SandboxArgs) -> Result<SandboxReport> {
    // A private engine is stopped last, after everything in it.
    let engine = match args.docker_host {
        Some(_) => None,
        None => Some(prerequisites::ensure_docker().await?),
    };
    let host = args.docker_host.as_ref().or(engine.as_ref().map(|engine| &engine.host));
    let host = host.context("no Docker engine")?.clone();
    let image = BusyboxImage::import(&host, &format!("load-{}", std::process::id()))?;
    let directory = tempfile::tempdir()?;
    let docker = DockerExecutor::start(&host, &image.name, directory.path()).await?;
    let report = measure(args, &host, &image, &docker, directory.path()).await;
    docker.stop().await;
    report
}

/// The results that `bench` reports: commands in a warm container, and the other executors.
pub(crate) struct CommandLatencies {
    /// In microseconds.
    pub(crate) latencies: Histogram<u64>,
    /// The end of each command.
    pub(crate) ends: Vec<Micros>,
    /// The time of a command with each executor.
    pub(crate) baselines: Vec<Stage>,
    /// Ratios and their goals.
    pub(crate) notes: Vec<String>,
    /// Resource usage that has grown.
    pub(crate) failures: Vec<String>,
}

/// Measures for about this many seconds.
pub(crate) async fn measure_commands(seconds: u64) -> Result<CommandLatencies> {
    let rounds = u32::try_from(seconds * ROUNDS_PER_SECOND).unwrap_or(u32::MAX);
    let args = SandboxArgs { rounds, sessions: 5, calls: rounds, docker_host: None, json: false };
    let report = measure_all(&args).await?;
    let baselines = [
        ("bare", &report.bare),
        ("local", &report.local),
        ("engine_exec", &report.raw),
        ("docker", &report.docker),
    ];
    let stage = |(name, times)| Stage::of_all_runs(name, millis(times, 0.5), millis(times, 0.99));
    let note = |(name, ratio, goal)| format!("{name} {ratio:.2} (goal: at most {goal})");
    Ok(CommandLatencies {
        baselines: baselines.map(stage).into(),
        notes: report.ratios().map(note).into(),
        failures: report.growth.as_ref().map(Growth::problems).unwrap_or_default(),
        latencies: report.docker,
        ends: report.ends,
    })
}

async fn measure(
    args: &SandboxArgs,
    host: &str,
    image: &BusyboxImage,
    docker: &DockerExecutor,
    directory: &std::path::Path,
) -> Result<SandboxReport> {
    let local = LocalExecutor::start(directory).await?;
    let raw = EngineExec::start(host, &image.name).await?;
    let warm = docker.session().await?;
    let mut report = SandboxReport::default();
    for round in 0..args.rounds + WARM_UP {
        let took = [
            BareProcess::run_once().await?,
            local.run_once().await?,
            raw.run_once().await?,
            docker.run_once(&warm).await?,
        ];
        if round >= WARM_UP {
            report.add(took)?;
            report.ends.push(now());
        }
    }
    raw.stop().await?;
    for _ in 0..args.sessions {
        let [first, later] = docker.first_and_later().await?;
        report.first.record(first)?;
        report.later.record(later)?;
    }
    let before = Usage::now(docker).await?;
    for call in 0..args.calls {
        // One call in ten runs in the container, which may be slow on other machines.
        if call % 10 == 0 {
            docker.run_once(&warm).await?
        } else {
            local.run_once().await?
        };
    }
    report.growth = Some(Growth::between(&before, &Usage::now(docker).await?, args.calls));
    report.check_goals();
    Ok(report)
}

const WARM_UP: u32 = 10;

struct SandboxReport {
    bare: Histogram<u64>,
    local: Histogram<u64>,
    raw: Histogram<u64>,
    docker: Histogram<u64>,
    first: Histogram<u64>,
    later: Histogram<u64>,
    /// The end of each round.
    ends: Vec<Micros>,
    growth: Option<Growth>,
    violations: Vec<String>,
}

impl Default for SandboxReport {
    fn default() -> Self {
        #[expect(clippy::unwrap_used, reason = "three digits are a valid precision")]
        let empty = || Histogram::new(3).unwrap();
        Self {
            bare: empty(),
            local: empty(),
            raw: empty(),
            docker: empty(),
            first: empty(),
            later: empty(),
            ends: Vec::new(),
            growth: None,
            violations: Vec::new(),
        }
    }
}

impl SandboxReport {
    /// Records the microseconds of each executor.
    fn add(&mut self, [bare, local, raw, docker]: [u64; 4]) -> Result<()> {
        let all = [
            (&mut self.bare, bare),
            (&mut self.local, local),
            (&mut self.raw, raw),
            (&mut self.docker, docker),
        ];
        for (histogram, took) in all {
            histogram.record(took).context("a command took too long to record")?;
        }
        Ok(())
    }

    fn ratios(&self) -> [(&'static str, f64, f64); 3] {
        [
            ("local_to_bare", ratio(&self.local, &self.bare), LOCAL_GOAL),
            ("docker_to_engine_exec", ratio(&self.docker, &self.raw), DOCKER_GOAL),
            ("first_to_warm", ratio(&self.first, &self.later), FIRST_GOAL),
        ]
    }

    fn check_goals(&mut self) {
        for (name, ratio, goal) in self.ratios() {
            if ratio > goal {
                self.violations.push(format!("{name} is {ratio:.2}, the goal is at most {goal}"));
            }
        }
        self.violations.extend(self.growth.as_ref().map(Growth::problems).unwrap_or_default());
    }

    #[expect(clippy::print_stdout, reason = "the report of a command-line tool")]
    fn print(&self, as_json: bool) {
        let baselines = [
            ("bare fork+exec", "bare_ms", &self.bare),
            ("local backend", "local_ms", &self.local),
            ("engine exec by API", "engine_exec_ms", &self.raw),
            ("docker backend, warm", "docker_ms", &self.docker),
            ("docker, first call on a spare", "first_ms", &self.first),
            ("docker, later call of the same", "later_ms", &self.later),
        ];
        if as_json {
            let mut line = json!({ "test": "sandbox", "violations": self.violations });
            for (_, key, histogram) in baselines {
                line[key] = summary(histogram);
            }
            for (name, ratio, _) in self.ratios() {
                line[name] = json!((ratio * 1000.0).round() / 1000.0);
            }
            line["growth"] = self.growth.as_ref().map_or(Value::Null, Growth::to_json);
            println!("{line}");
            return;
        }
        for (name, _, histogram) in baselines {
            let (p50, p99) = (millis(histogram, 0.5), millis(histogram, 0.99));
            println!("{name:32} p50 {p50:8.2} ms   p99 {p99:8.2} ms");
        }
        for (name, ratio, goal) in self.ratios() {
            println!("{name:32} {ratio:.2} (goal: at most {goal})");
        }
        if let Some(growth) = &self.growth {
            println!("{growth}");
        }
        for violation in &self.violations {
            println!("VIOLATION {violation}");
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of minutes at most")]
fn millis(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1000.0
}

fn ratio(one: &Histogram<u64>, other: &Histogram<u64>) -> f64 {
    if one.is_empty() || other.is_empty() { 0.0 } else { millis(one, 0.5) / millis(other, 0.5) }
}

fn summary(histogram: &Histogram<u64>) -> Value {
    json!({ "count": histogram.len(), "p50": millis(histogram, 0.5), "p99": millis(histogram, 0.99) })
}
