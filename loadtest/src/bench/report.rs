//! What is said of a measurement.

use std::process::ExitCode;

use serde_json::json;

use super::BenchArgs;
use crate::{
    check::Verdict,
    load::{Measured, Stage},
};

pub(super) struct Report {
    pub(super) measured: Measured,
    pub(super) sessions: usize,
    pub(super) verdict: Verdict,
    /// Resident memory of the servers by name, in MiB.
    pub(super) memory: Vec<(String, f64)>,
    /// Where the time went, of so many runs.
    pub(super) stages: (usize, Vec<Stage>),
}

impl Report {
    #[expect(clippy::print_stdout, reason = "the report is what this program is for")]
    pub(super) fn print(&self, args: &BenchArgs, troubles: Vec<String>) -> ExitCode {
        let Self { measured, sessions, verdict, memory, stages } = self;
        let (runs, rate) = (measured.latencies.len(), measured.runs_per_second());
        let (p50, p99, p999) = (measured.millis(0.5), measured.millis(0.99), measured.millis(0.999));
        let violations = verdict.total();
        let sentences = [verdict.sentences(), troubles].concat();
        if args.json {
            let memory: serde_json::Map<_, _> =
                memory.iter().map(|(name, mib)| (name.clone(), json!(mib))).collect();
            let line = json!({
                "scenario": args.scenario.name(),
                "mode": args.mode.name(),
                "clients": args.rate.is_none().then_some(args.clients),
                "rate": args.rate,
                "sessions": sessions,
                "runs": runs,
                "runs_per_s": rate,
                "p50_ms": p50,
                "p99_ms": p99,
                "p999_ms": p999,
                "not_begun": measured.not_begun,
                "stages": stages_json(&stages.1),
                "staged_runs": stages.0,
                "memory_mib": memory,
                "violations": violations,
                "failures": sentences,
            });
            println!("{line}");
        } else {
            let pace = match args.rate {
                Some(rate) => format!("{rate} runs/s wanted"),
                None => format!("{} clients", args.clients),
            };
            println!(
                "{} {}: {runs} runs, {pace}, {sessions} sessions",
                args.mode.name(),
                args.scenario.name()
            );
            println!("{rate:.0} runs/s, submit to end: p50 {p50:.2} ms, p99 {p99:.2} ms, p99.9 {p999:.2} ms");
            for Stage { name, p50_ms, p99_ms } in &stages.1 {
                println!("  {name:<10} p50 {p50_ms:>7.2} ms, p99 {p99_ms:>7.2} ms after the stage before it");
            }
            for (name, mib) in memory {
                println!("  {name}: {mib:.0} MiB");
            }
            println!("violations: {violations}");
            sentences.iter().for_each(|sentence| println!("  {sentence}"));
        }
        if violations == 0 && sentences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn stages_json(stages: &[Stage]) -> serde_json::Value {
    let stage = |stage: &Stage| {
        let Stage { name, p50_ms, p99_ms } = *stage;
        (name.to_owned(), json!({ "p50_ms": p50_ms, "p99_ms": p99_ms }))
    };
    serde_json::Value::Object(stages.iter().map(stage).collect())
}
