//! Scenarios that have commands of their own, in sizes that take as long as the others.

use serde_json::json;

use super::{Plan, report::Report};
use crate::{
    fanout::{self, Flow},
    load::Stage as Part,
    sandbox::{self, Commands},
};

/// Readers of a session each.
const READERS: usize = 1000;
const EVENTS_PER_SECOND: f64 = 1000.0;

/// From the commit of an event to those who follow its session over HTTP.
pub(super) async fn fanout(plan: &Plan) -> anyhow::Result<Report> {
    let sizes = fanout::Sizes {
        mode: plan.mode,
        nats: plan.nats.clone(),
        readers: READERS,
        sessions: plan.sessions,
        events_per_second: EVENTS_PER_SECOND,
        seconds: plan.seconds,
    };
    let Flow { latencies, received, window, runs, runs_per_second, memory, violations, failures } =
        fanout::flow(sizes).await?;
    let deliveries = received.len() as f64 / ((window.end - window.start).max(1) as f64 / 1e6);
    let load = format!("{READERS} readers, {} sessions, {EVENTS_PER_SECOND:.0} events/s", plan.sessions);
    let mut report = Report::new(plan, latencies).under(load);
    report.from_to = "commit to reader";
    report.what = "deliveries";
    report.rate_of = Some(deliveries);
    report.count = received.len() as u64;
    report.per_second = runs_per_second;
    (report.ends, report.window) = (received, window);
    let at_reader = Part::of_all("at_reader", report.millis(0.5), report.millis(0.99));
    report.stages = (usize::try_from(report.count)?, vec![at_reader]);
    (report.memory, report.violations, report.failures) = (memory, violations, failures);
    report.more.insert("readers".to_owned(), json!(READERS));
    report.more.insert("runs".to_owned(), json!(runs));
    report.more.insert("deliveries_per_s".to_owned(), json!(deliveries));
    Ok(report)
}

/// One command after the other in a container that is warm.
pub(super) async fn sandbox(plan: &Plan) -> anyhow::Result<Report> {
    let Commands { latencies, ends, ways, notes, failures } = sandbox::commands(plan.seconds).await?;
    let window = ends.first().copied().unwrap_or_default()..ends.last().map_or(1, |last| last + 1);
    // The ways take turns, so the time between two ends is not that of one command.
    let busy = latencies.mean() * latencies.len() as f64 / 1e6;
    let mut report = Report::new(plan, latencies).under("one command at a time".to_owned());
    report.from_to = "docker backend, warm";
    report.what = "commands";
    report.per_second = if busy > 0.0 { report.count as f64 / busy } else { 0.0 };
    (report.ends, report.window) = (ends, window);
    let docker = Part::of_all("docker", report.millis(0.5), report.millis(0.99));
    report.stages = (usize::try_from(report.count)?, vec![docker]);
    for Part { name, p50_ms, p99_ms, .. } in ways {
        report.more.insert(format!("{name}_ms"), json!({ "p50": p50_ms, "p99": p99_ms }));
        report.notes.push(format!("  {name:<12} p50 {p50_ms:>7.2} ms, p99 {p99_ms:>7.2} ms"));
    }
    report.notes.extend(notes);
    (report.violations, report.failures) = (failures.len() as u64, failures);
    Ok(report)
}
