//! `loadtest bench`.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;

use crate::{
    check::Verdict,
    closed_loop::{ClosedLoop, Driven},
    stage::{Mode, Setting, Stage},
    workload::Addresses,
};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// A server that runs already. Without it one is started.
    #[arg(long, value_name = "URL", conflicts_with = "mode")]
    endpoint: Option<String>,
    #[arg(long, env = "REMUDA_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// What to start.
    #[arg(long, value_enum, default_value_t = Mode::Embedded)]
    mode: Mode,
    /// Clients that submit and wait at the same time.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    #[arg(long, default_value_t = 256)]
    sessions: usize,
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Slots of the worker.
    #[arg(long, default_value_t = 64)]
    slots: u32,
    /// The nats-server binary. The installed one if missing.
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// One line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    if let Some(endpoint) = &args.endpoint {
        let endpoints = vec![endpoint.clone()];
        let addresses = Addresses {
            control_planes: endpoints.clone(),
            streams: endpoints,
            api_key: args.api_key.clone(),
        };
        let (driven, verdict) = measure(&args, addresses).await?;
        return Ok(report(&args, &driven, &verdict, &[]));
    }
    let setting = Setting { slots: args.slots, nats: args.nats.clone(), ..Setting::same_profile() };
    let mut stage = Stage::start(args.mode, &setting).await?;
    let measured = measure(&args, stage.addresses()).await;
    let (driven, verdict) = measured.inspect_err(|_| stage.mark_failed())?;
    let code = report(&args, &driven, &verdict, &stage.troubles());
    if code != ExitCode::SUCCESS {
        stage.mark_failed();
    }
    Ok(code)
}

/// Drives the load. What is left of it here is what the report tells.
async fn measure(args: &BenchArgs, addresses: Addresses) -> anyhow::Result<(Figures, Verdict)> {
    let closed = ClosedLoop::new(addresses, args.sessions).await?;
    let driven = closed.drive(args.clients, Duration::from_secs(args.seconds)).await?;
    let figures = Figures::of(&driven);
    Ok((figures, closed.check(driven).await?))
}

struct Figures {
    runs: u64,
    elapsed: Duration,
    runs_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl Figures {
    fn of(driven: &Driven) -> Self {
        Self {
            runs: driven.latencies.len(),
            elapsed: driven.elapsed,
            runs_per_second: driven.runs_per_second(),
            p50_ms: driven.millis(0.5),
            p99_ms: driven.millis(0.99),
        }
    }
}

#[expect(clippy::print_stdout, reason = "the report is what this program is for")]
fn report(args: &BenchArgs, figures: &Figures, verdict: &Verdict, troubles: &[String]) -> ExitCode {
    let Figures { runs, elapsed, runs_per_second, p50_ms, p99_ms } = figures;
    let violations = verdict.total();
    if args.json {
        let line = serde_json::json!({
            "scenario": "noop",
            "runs": runs,
            "runs_per_s": runs_per_second,
            "p50_ms": p50_ms,
            "p99_ms": p99_ms,
            "violations": violations,
            "troubles": troubles,
        });
        println!("{line}");
    } else {
        println!("{runs} runs in {elapsed:.1?} by {} clients over {} sessions", args.clients, args.sessions);
        println!("{runs_per_second:.0} runs/s, submit to end: p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms");
        println!("violations: {violations}");
        verdict.sentences().iter().chain(troubles).for_each(|sentence| println!("  {sentence}"));
    }
    if violations == 0 && troubles.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
