//! `loadtest tracing`: the cost of tracing every run, and of an unreachable collector.

mod sink;

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use serde_json::json;

use self::sink::{Sink, unused_endpoint};
use crate::{
    collector::Collector,
    deployment::{Deployment, DeploymentOptions, Mode},
    load::{self, LoadModel, LoadTarget, Measurement, Work},
};

/// The accepted loss of throughput, in percent.
const COLLECTED_GOAL: f64 = 10.0;
const UNREACHABLE_GOAL: f64 = 2.0;
/// The indexes of the variants.
const UNTRACED: usize = 0;
const COLLECTED: usize = 1;
const UNREACHABLE: usize = 2;
/// Load that fills caches and pools and is not counted.
const WARM_UP: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
pub(crate) struct TracingArgs {
    #[arg(long, value_enum, default_value_t = Mode::Split)]
    mode: Mode,
    /// Number of measurements of each variant.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Duration of one measurement.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    #[arg(long, default_value_t = 256)]
    clients: usize,
    #[arg(long, default_value_t = 1000)]
    sessions: usize,
    /// The nats-server binary [default: the installed one].
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// Print the report as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// One tracing configuration with its own servers.
struct Variant {
    name: &'static str,
    deployment: Deployment,
    target: Arc<LoadTarget>,
    /// All runs, for the check.
    measured: Measurement,
}

impl Variant {
    async fn start(args: &TracingArgs, name: &'static str, endpoint: Option<&str>) -> anyhow::Result<Self> {
        let mut options = DeploymentOptions { nats: args.nats.clone(), ..DeploymentOptions::same_profile() };
        if let Some(endpoint) = endpoint {
            options = options
                .with("REMUDA_TELEMETRY__OTLP_ENDPOINT", endpoint)
                // Only traces are measured here.
                .with("REMUDA_TELEMETRY__OTLP_METRICS", "false");
        }
        let deployment = Deployment::start(args.mode, &options).await?;
        let target = Arc::new(LoadTarget::new(deployment.addresses(), args.sessions).await?);
        let measured =
            load::drive(&target, &Work::Noop, LoadModel::Closed { clients: args.clients }, WARM_UP).await?;
        Ok(Self { name, deployment, target, measured })
    }

    /// Runs the load once and returns the runs per second.
    async fn sample(&mut self, args: &TracingArgs) -> anyhow::Result<f64> {
        let (model, time) = (LoadModel::Closed { clients: args.clients }, Duration::from_secs(args.seconds));
        let measured = load::drive(&self.target, &Work::Noop, model, time).await?;
        let rate = measured.runs_per_second();
        self.measured.add(measured)?;
        Ok(rate)
    }

    /// Problems and violations of this variant.
    async fn failures(&mut self) -> anyhow::Result<Vec<String>> {
        let mut failures = self.deployment.problems();
        failures.extend(load::verify(&self.target, &Work::Noop, &self.measured.runs).await?.messages());
        if !failures.is_empty() {
            self.deployment.mark_failed();
        }
        Ok(failures.into_iter().map(|failure| format!("{}: {failure}", self.name)).collect())
    }
}

pub(crate) async fn run(args: TracingArgs) -> anyhow::Result<ExitCode> {
    let sink = Sink::default();
    let collector = Collector::start(sink.clone()).await?;
    let unused = unused_endpoint()?;
    let mut variants = [
        Variant::start(&args, "not traced", None).await?,
        Variant::start(&args, "traced", Some(&collector.endpoint)).await?,
        Variant::start(&args, "unreachable", Some(&unused)).await?,
    ];
    let mut samples = Vec::new();
    for _ in 0..args.rounds {
        for variant in [UNTRACED, COLLECTED, UNTRACED, UNREACHABLE] {
            samples.push((variant, variants[variant].sample(&args).await?));
        }
    }
    samples.push((UNTRACED, variants[UNTRACED].sample(&args).await?));

    let mut failures = Vec::new();
    for variant in &mut variants {
        failures.extend(variant.failures().await?);
    }
    if sink.requests() == 0 {
        failures.push("the collector received nothing".to_owned());
    }
    report(&args, &samples, &failures);
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The median loss of throughput of a variant, in percent. Each sample is compared with the untraced ones right before and
/// after it, so that changes in the machine's speed do not matter.
fn cost(samples: &[(usize, f64)], of: usize) -> f64 {
    let lacks = |window: &[(usize, f64)]| match *window {
        [(UNTRACED, before), (variant, rate), (UNTRACED, after)] if variant == of => {
            Some((1.0 - rate / f64::midpoint(before, after)) * 100.0)
        }
        _ => None,
    };
    median(samples.windows(3).filter_map(lacks).collect())
}

fn rate(samples: &[(usize, f64)], of: usize) -> f64 {
    median(samples.iter().filter(|(variant, _)| *variant == of).map(|(_, rate)| *rate).collect())
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
fn report(args: &TracingArgs, samples: &[(usize, f64)], failures: &[String]) {
    let [plain, collected, unreachable] =
        [UNTRACED, COLLECTED, UNREACHABLE].map(|variant| rate(samples, variant));
    let costs = (cost(samples, COLLECTED), cost(samples, UNREACHABLE));
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
    fn median_of_odd_even_and_empty_lists() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]).to_bits(), 2.0_f64.to_bits());
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]).to_bits(), 2.5_f64.to_bits());
        assert_eq!(median(Vec::new()).to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn sample_is_compared_with_its_neighbours() {
        let samples =
            [(UNTRACED, 90.0), (COLLECTED, 95.0), (UNTRACED, 110.0), (UNREACHABLE, 104.5), (UNTRACED, 110.0)];
        assert_eq!(cost(&samples, COLLECTED).round().to_bits(), 5.0_f64.to_bits());
        assert_eq!(cost(&samples, UNREACHABLE).round().to_bits(), 5.0_f64.to_bits());
        assert_eq!(rate(&samples, UNTRACED).to_bits(), 110.0_f64.to_bits());
    }
}
