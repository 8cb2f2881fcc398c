//! `loadtest growth`: measures whether existing sessions and queued runs slow down new runs.
//!
//! The same small runs are measured over a growing number of sessions, and beside a growing number of runs queued in another
//! pool. Each size has its own servers, which start on a seeded database.

mod chart;
mod table;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use self::table::{Point, Series};
use crate::{
    bench::{self, BenchPlan, Report, Scenario},
    deployment::Mode,
    load::LoadModel,
};

/// Sessions of the load while other runs are queued.
const SESSIONS_BESIDE_QUEUED: u64 = 1000;

#[derive(Debug, Args)]
pub(crate) struct GrowthArgs {
    /// Numbers of sessions to measure, smallest first.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "1000,10000,100000,1000000")]
    sessions: Vec<u64>,
    /// Numbers of runs queued in a pool without workers, smallest first.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "0,100000,1000000")]
    queued: Vec<u64>,
    /// Sessions that the queued runs are spread over.
    #[arg(long, value_name = "SESSIONS", default_value_t = 10_000)]
    queued_sessions: u64,
    #[arg(long, value_enum, default_value_t = Mode::Split)]
    mode: Mode,
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..))]
    clients: u64,
    /// Duration of each measurement.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Seconds of load before the measurement.
    #[arg(long, default_value_t = 5)]
    warm_up: u64,
    /// How often every size is measured, in alternation; the report uses the median.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The nats-server binary [default: the installed one].
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// Print the report as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Draw rates and memory as SVG into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl GrowthArgs {
    fn plan(&self, sessions: u64, queued: u64) -> BenchPlan {
        BenchPlan {
            model: LoadModel::Closed { clients: usize::try_from(self.clients).unwrap_or(usize::MAX) },
            sessions: usize::try_from(sessions).unwrap_or(usize::MAX),
            // Small numbers are seeded as well: only servers that started the same way are comparable.
            seeded: true,
            queued,
            queued_sessions: self.queued_sessions,
            seconds: self.seconds,
            warm_up: self.warm_up,
            nats: self.nats.clone(),
            ..BenchPlan::new(Scenario::Noop, self.mode)
        }
    }
}

pub(crate) async fn run(args: GrowthArgs) -> anyhow::Result<ExitCode> {
    let mut sessions = Series::new("sessions", &args.sessions);
    let mut queued = Series::new("queued runs", &args.queued);
    let mut failures = Vec::new();
    for _ in 0..args.rounds {
        for (series, is_queued) in [(&mut sessions, false), (&mut queued, true)] {
            for index in 0..series.points.len() {
                let size = series.points[index].size;
                let plan = match is_queued {
                    true => args.plan(SESSIONS_BESIDE_QUEUED, size),
                    false => args.plan(size, 0),
                };
                let report = bench::measure(&plan).await?;
                print_progress(&format!("{size} {}: {:.0} runs/s", series.name, report.per_second));
                failures.extend(
                    report.failures.iter().map(|failure| format!("{size} {}: {failure}", series.name)),
                );
                series.points[index].samples.push(sample(&report));
            }
        }
    }
    let series = [sessions, queued];
    if let Some(file) = &args.svg {
        let title = format!("growth, {}, {} clients", args.mode.name(), args.clients);
        fs::write(file, chart::svg(&title, &series))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    print(&args, &series, &failures);
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn sample(report: &Report) -> table::Sample {
    table::Sample {
        per_second: report.per_second,
        p50_ms: report.millis(0.5),
        p99_ms: report.millis(0.99),
        idle_memory: report.idle_memory.clone(),
        memory: report.memory.clone(),
        violations: report.violations,
    }
}

#[expect(clippy::print_stdout, reason = "the report is what this program is for")]
fn print(args: &GrowthArgs, series: &[Series], failures: &[String]) {
    let violations: u64 = series.iter().flat_map(|it| &it.points).map(Point::violations).sum();
    if args.json {
        let mut line = json!({ "test": "growth", "mode": args.mode.name(), "clients": args.clients });
        for it in series {
            line[it.name.replace(' ', "_")] = it.json();
        }
        line["violations"] = json!(violations);
        line["failures"] = json!(failures);
        println!("{line}");
        return;
    }
    println!("loadtest growth, {}, {} clients", args.mode.name(), args.clients);
    for it in series {
        it.lines().iter().for_each(|line| println!("{line}"));
    }
    println!("violations: {violations}");
    failures.iter().for_each(|failure| println!("  {failure}"));
}

#[expect(clippy::print_stderr, reason = "progress: each size takes about a minute")]
fn print_progress(line: &str) {
    eprintln!("{line}");
}
