//! `loadtest tracing`: what it costs to trace every run, and what a collector costs that is not there.

mod sink;

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use serde_json::json;

use self::sink::{Sink, nobody};
use crate::{
    collector::Collector,
    load::{self, Measured, Pace, Site, Work},
    stage::{Mode, Setting, Stage},
};

/// How much throughput may be lost, in percent.
const COLLECTED_GOAL: f64 = 10.0;
const UNREACHABLE_GOAL: f64 = 2.0;
/// The variants, by their places.
const PLAIN: usize = 0;
const COLLECTED: usize = 1;
const UNREACHABLE: usize = 2;
/// A turn that fills caches and pools and is not counted.
const WARM_UP: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
pub(crate) struct TracingArgs {
    #[arg(long, value_enum, default_value_t = Mode::Split)]
    mode: Mode,
    /// Turns of each server.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long a turn takes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    #[arg(long, default_value_t = 256)]
    clients: usize,
    #[arg(long, default_value_t = 1000)]
    sessions: usize,
    /// The nats-server binary. The installed one if missing.
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// One line of JSON.
    #[arg(long)]
    json: bool,
}

/// One way to be traced, with servers of its own.
struct Variant {
    name: &'static str,
    stage: Stage,
    site: Arc<Site>,
    /// All that was done, for the checker.
    measured: Measured,
}

impl Variant {
    async fn start(args: &TracingArgs, name: &'static str, endpoint: Option<&str>) -> anyhow::Result<Self> {
        let mut setting = Setting { nats: args.nats.clone(), ..Setting::same_profile() };
        if let Some(endpoint) = endpoint {
            setting = setting
                .with("REMUDA_TELEMETRY__OTLP_ENDPOINT", endpoint)
                // Traces are what is measured here.
                .with("REMUDA_TELEMETRY__OTLP_METRICS", "false");
        }
        let stage = Stage::start(args.mode, &setting).await?;
        let site = Arc::new(Site::new(stage.addresses(), args.sessions).await?);
        let measured =
            load::drive(&site, &Work::Noop, Pace::Closed { clients: args.clients }, WARM_UP).await?;
        Ok(Self { name, stage, site, measured })
    }

    /// Drives the load once, and tells how many runs per second that gave.
    async fn turn(&mut self, args: &TracingArgs) -> anyhow::Result<f64> {
        let (pace, time) = (Pace::Closed { clients: args.clients }, Duration::from_secs(args.seconds));
        let measured = load::drive(&self.site, &Work::Noop, pace, time).await?;
        let rate = measured.runs_per_second();
        self.measured.add(measured)?;
        Ok(rate)
    }

    /// What went wrong with it, in sentences.
    async fn failures(&mut self) -> anyhow::Result<Vec<String>> {
        let mut failures = self.stage.troubles();
        failures.extend(load::judge(&self.site, &Work::Noop, &self.measured.facts).await?.sentences());
        if !failures.is_empty() {
            self.stage.mark_failed();
        }
        Ok(failures.into_iter().map(|failure| format!("{}: {failure}", self.name)).collect())
    }
}

pub(crate) async fn run(args: TracingArgs) -> anyhow::Result<ExitCode> {
    let sink = Sink::default();
    let collector = Collector::start(sink.clone()).await?;
    let nobody = nobody()?;
    let mut variants = [
        Variant::start(&args, "not traced", None).await?,
        Variant::start(&args, "traced", Some(&collector.endpoint)).await?,
        Variant::start(&args, "unreachable", Some(&nobody)).await?,
    ];
    let mut turns = Vec::new();
    for _ in 0..args.rounds {
        for variant in [PLAIN, COLLECTED, PLAIN, UNREACHABLE] {
            turns.push((variant, variants[variant].turn(&args).await?));
        }
    }
    turns.push((PLAIN, variants[PLAIN].turn(&args).await?));

    let mut failures = Vec::new();
    for variant in &mut variants {
        failures.extend(variant.failures().await?);
    }
    if sink.requests() == 0 {
        failures.push("the collector got nothing".to_owned());
    }
    report(&args, &turns, &failures);
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Percent of the throughput that a variant lacks, in the median. Each turn is compared with those right before and after it, so that
/// a machine whose speed changes does no harm.
fn cost(turns: &[(usize, f64)], of: usize) -> f64 {
    let lacks = |window: &[(usize, f64)]| match *window {
        [(PLAIN, before), (variant, rate), (PLAIN, after)] if variant == of => {
            Some((1.0 - rate / f64::midpoint(before, after)) * 100.0)
        }
        _ => None,
    };
    median(turns.windows(3).filter_map(lacks).collect())
}

fn rate(turns: &[(usize, f64)], of: usize) -> f64 {
    median(turns.iter().filter(|(variant, _)| *variant == of).map(|(_, rate)| *rate).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.len() / 2, values.len() % 2) {
        (_, _) if values.is_empty() => 0.0,
        (middle, 1) => values[middle],
        (middle, _) => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[expect(clippy::print_stdout, reason = "the report is what this program is for")]
fn report(args: &TracingArgs, turns: &[(usize, f64)], failures: &[String]) {
    let [plain, collected, unreachable] = [PLAIN, COLLECTED, UNREACHABLE].map(|variant| rate(turns, variant));
    let costs = (cost(turns, COLLECTED), cost(turns, UNREACHABLE));
    if args.json {
        let line = json!({
            "scenario": "tracing",
            "mode": args.mode.name(),
            "runs_per_s": plain,
            "runs_per_s_traced": collected,
            "runs_per_s_unreachable": unreachable,
            "traced_cost_percent": costs.0,
            "unreachable_cost_percent": costs.1,
            "failures": failures,
        });
        println!("{line}");
        return;
    }
    println!("{} rounds of {} s, {} clients, {}", args.rounds, args.seconds, args.clients, args.mode.name());
    println!("not traced    {plain:>7.0} runs/s");
    let line = |name: &str, rate: f64, cost: f64, goal: f64| {
        let verdict = if cost <= goal { "reached" } else { "MISSED" };
        println!("{name:<13} {rate:>7.0} runs/s  costs {cost:>5.1} %  (goal {goal} %: {verdict})");
    };
    line("traced", collected, costs.0, COLLECTED_GOAL);
    line("unreachable", unreachable, costs.1, UNREACHABLE_GOAL);
    failures.iter().for_each(|failure| println!("  {failure}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_some_numbers() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]).to_bits(), 2.0_f64.to_bits());
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]).to_bits(), 2.5_f64.to_bits());
        assert_eq!(median(Vec::new()).to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn a_turn_is_compared_with_its_neighbours() {
        let turns = [(PLAIN, 90.0), (COLLECTED, 95.0), (PLAIN, 110.0), (UNREACHABLE, 104.5), (PLAIN, 110.0)];
        assert_eq!(cost(&turns, COLLECTED).round().to_bits(), 5.0_f64.to_bits());
        assert_eq!(cost(&turns, UNREACHABLE).round().to_bits(), 5.0_f64.to_bits());
        assert_eq!(rate(&turns, PLAIN).to_bits(), 110.0_f64.to_bits());
    }
}
