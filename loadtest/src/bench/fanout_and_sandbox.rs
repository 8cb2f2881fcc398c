//! The scenarios `fanout` and `sandbox`: smaller versions of the commands of the same name.

use serde_json::json;

use super::{BenchPlan, report::Report};
use crate::{
    fanout::{self, FanoutMeasurement},
    load::Stage,
    sandbox::{self, CommandLatencies},
};

/// Readers, each of one session.
const READERS: usize = 1000;
const EVENTS_PER_SECOND: f64 = 1000.0;

/// Measures the time from the commit of an event to the readers of its session over HTTP.
pub(super) async fn fanout(plan: &BenchPlan) -> anyhow::Result<Report> {
    let sizes = fanout::FanoutSizes {
        mode: plan.mode,
        nats: plan.nats.clone(),
        readers: READERS,
        sessions: plan.sessions,
        events_per_second: EVENTS_PER_SECOND,
        seconds: plan.seconds,
    };
    let FanoutMeasurement {
        latencies,
        received,
        window,
        runs,
        runs_per_second,
        memory,
        violations,
        failures,
    } = fanout::measure(sizes).await?;
    let deliveries = received.len() as f64 / ((window.end - window.start).max(1) as f64 / 1e6);
    let load = format!("{READERS} readers, {} sessions, {EVENTS_PER_SECOND:.0} events/s", plan.sessions);
    let mut report = Report::new(plan, latencies).with_load(load);
    report.latency_label = "commit to reader";
    report.unit = "deliveries";
    report.unit_rate = Some(deliveries);
    report.count = received.len() as u64;
    report.per_second = runs_per_second;
    (report.ends, report.window) = (received, window);
    let at_reader = Stage::of_all_runs("at_reader", report.millis(0.5), report.millis(0.99));
    report.stages = (usize::try_from(report.count)?, vec![at_reader]);
    (report.memory, report.violations, report.failures) = (memory, violations, failures);
    report.extra.insert("readers".to_owned(), json!(READERS));
    report.extra.insert("runs".to_owned(), json!(runs));
    report.extra.insert("deliveries_per_s".to_owned(), json!(deliveries));
    Ok(report)
}

/// Measures commands in a warm container, one after the other.
pub(super) async fn sandbox(plan: &BenchPlan) -> anyhow::Result<Report> {
    let CommandLatencies { latencies, ends, baselines, notes, failures } =
        sandbox::measure_commands(plan.seconds).await?;
    let window = ends.first().copied().unwrap_or_default()..ends.last().map_or(1, |last| last + 1);
    // The executors alternate, so the time between two ends is not the time of one command.
    let busy = latencies.mean() * latencies.len() as f64 / 1e6;
    let mut report = Report::new(plan, latencies).with_load("one command at a time".to_owned());
    report.latency_label = "docker backend, warm";
    report.unit = "commands";
    report.per_second = if busy > 0.0 { report.count as f64 / busy } else { 0.0 };
    (report.ends, report.window) = (ends, window);
    let docker = Stage::of_all_runs("docker", report.millis(0.5), report.millis(0.99));
    report.stages = (usize::try_from(report.count)?, vec![docker]);
    for Stage { name, p50_ms, p99_ms, .. } in baselines {
        report.extra.insert(format!("{name}_ms"), json!({ "p50": p50_ms, "p99": p99_ms }));
        report.notes.push(format!("  {name:<12} p50 {p50_ms:>7.2} ms, p99 {p99_ms:>7.2} ms"));
    }
    report.notes.extend(notes);
    (report.violations, report.failures) = (failures.len() as u64, failures);
    Ok(report)
}
