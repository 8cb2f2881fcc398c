//! `loadtest ratios`: compares Remuda with the upper bounds of the machine.
//!
//! A slower machine lowers both, so a lower ratio means that Remuda itself became slower.

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use serde_json::json;

use crate::{
    deployment::{Deployment, DeploymentOptions, Mode},
    limits::Limits,
    load::{self, LoadModel, LoadTarget, Work},
};

const CLIENTS: usize = 256;
const SESSIONS: usize = 1000;
const WARM_UP: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
pub(crate) struct RatiosArgs {
    /// Duration of the measurement of each mode.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// The nats-server binary [default: the installed one].
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// Print the report as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// A rate of Remuda relative to an upper bound of the machine, with the lowest accepted ratio.
struct Ratio {
    name: &'static str,
    runs_per_second: f64,
    limit: f64,
    floor: f64,
}

impl Ratio {
    fn value(&self) -> f64 {
        self.runs_per_second / self.limit
    }

    fn holds(&self) -> bool {
        self.value() >= self.floor
    }
}

/// The floors are about two thirds of the values measured when they were set, so that only a real slowdown falls below.
fn ratios(limits: &Limits, split: f64, embedded: f64) -> [Ratio; 4] {
    let ratio = |name, runs_per_second, limit, floor| Ratio { name, runs_per_second, limit, floor };
    [
        ratio("split / JetStream tokens", split, limits.jetstream_tokens_per_s, 0.085),
        ratio("split / PostgreSQL rows", split, limits.postgres_rows_per_s, 0.02),
        ratio("embedded / SQLite rows", embedded, limits.sqlite_rows_per_s, 0.024),
        ratio("embedded / gRPC calls", embedded, limits.grpc_echo_per_s, 0.08),
    ]
}

#[expect(clippy::print_stdout, reason = "the report is what this program is for")]
pub(crate) async fn run(args: RatiosArgs) -> anyhow::Result<ExitCode> {
    let limits = Limits::measure(args.nats.clone(), Duration::from_secs(3)).await?;
    let split = rate(&args, Mode::Split).await?;
    let embedded = rate(&args, Mode::Embedded).await?;
    let ratios = ratios(&limits, split, embedded);
    if args.json {
        let ratio = |it: &Ratio| json!({ "name": it.name, "ratio": it.value(), "floor": it.floor });
        let ratios: Vec<_> = ratios.iter().map(ratio).collect();
        let rates = json!({ "split": split, "embedded": embedded });
        println!("{}", json!({ "limits": limits, "runs_per_s": rates, "ratios": ratios }));
    } else {
        for it in &ratios {
            let verdict = if it.holds() { "fine" } else { "SLOWER" };
            let (name, rate, limit) = (it.name, it.runs_per_second, it.limit);
            println!(
                "{name:<26} {rate:>7.0} / {limit:>7.0} = {:.4}, at least {}: {verdict}",
                it.value(),
                it.floor
            );
        }
    }
    Ok(if ratios.iter().all(Ratio::holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures the rate of small runs. Fails if a guarantee was violated.
async fn rate(args: &RatiosArgs, mode: Mode) -> anyhow::Result<f64> {
    let options =
        DeploymentOptions { slots: 256, nats: args.nats.clone(), ..DeploymentOptions::same_profile() };
    let deployment = Deployment::start(mode, &options).await?;
    let target = Arc::new(LoadTarget::new(deployment.addresses(), SESSIONS).await?);
    let model = LoadModel::Closed { clients: CLIENTS };
    load::drive(&target, &Work::Noop, model, WARM_UP).await?;
    let measured = load::drive(&target, &Work::Noop, model, Duration::from_secs(args.seconds)).await?;
    let verdict = load::verify(&target, &Work::Noop, &measured.runs).await?;
    anyhow::ensure!(verdict.total() == 0, "{}: {}", mode.name(), verdict.messages().join("; "));
    Ok(measured.runs_per_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_below_its_floor_fails() {
        let limits = Limits {
            jetstream_tokens_per_s: 30_000.0,
            postgres_rows_per_s: 150_000.0,
            sqlite_rows_per_s: 150_000.0,
            grpc_echo_per_s: 50_000.0,
        };
        assert!(ratios(&limits, 4000.0, 6000.0).iter().all(Ratio::holds));
        let slower = ratios(&limits, 1000.0, 6000.0);
        assert_eq!(slower.iter().map(Ratio::holds).collect::<Vec<_>>(), [false, false, true, true]);
    }
}
