//! Drains a large backlog of queued runs.
//!
//! The servers start on a database in which all these runs are queued, and no client submits anything: the reconciler finds the
//! sessions without a token and wakes them. All runs are checked in the database. The runs of a sample of sessions are also
//! checked through the API and the event streams.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::json;
use tokio::time::sleep;

use super::{BenchPlan, report::Report};
use crate::{
    check::{Verdict, Violation},
    collector::Collector,
    database_seed::{self, Database, Seeded},
    deployment::Deployment,
    load::{self, LoadTarget, Stage, StageTimings},
    observed_history::{Micros, now},
    svg_chart::grouped,
};

/// Sessions whose runs are checked through the API and the event streams.
const SAMPLE: usize = 200;
/// Time between two counts of the remaining runs: short enough to see the end, long enough not to add load.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Without progress for this long, the remaining runs count as lost.
const STALL_TIMEOUT: Duration = Duration::from_secs(90);
/// The stored value of the state `completed`.
const COMPLETED: i64 = 10;

pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Report> {
    let collector = Collector::start(StageTimings::default()).await?;
    let mut deployment = Deployment::start(plan.mode, &plan.options(&collector)).await?;
    let measured = measure_on(plan, &mut deployment).await;
    let mut report = measured.inspect_err(|_| deployment.mark_failed())?;
    report.failures.extend(deployment.problems());
    if !report.passed() {
        deployment.mark_failed();
    }
    Ok(report)
}

async fn measure_on(plan: &BenchPlan, deployment: &mut Deployment) -> anyhow::Result<Report> {
    let seeds: Vec<_> = plan.session_seed().into_iter().collect();
    let seeded_sets = database_seed::seed_database(deployment, &seeds).await?;
    let [seeded] = &seeded_sets[..] else { anyhow::bail!("nothing was seeded") };
    let mut database = deployment.database().await?;
    let begun = now();
    deployment.resume().await?;
    let (ready, idle_memory) = (now(), deployment.memory());
    let left = drain(&mut database, seeded).await?;
    let memory = deployment.memory();
    let mut verdict = Verdict::default();
    if left > 0 {
        verdict.record(
            Violation::Lost,
            format!("{left} of {} runs are not finished and make no progress", seeded.runs()),
        );
    }
    check_completed(&mut database, seeded, &mut verdict).await?;
    let times = run_times(&mut database, seeded).await?;
    database.close().await?;
    let target = LoadTarget::with_existing_sessions(deployment.addresses(), seeded.sessions())?;
    let sampled = sample(&target).await?;
    let sampled = load::verify(&target, &plan.scenario.work(), &sampled).await?;
    let mut report = report(plan, seeded, begun..ready, &times)?;
    (report.idle_memory, report.memory) = (idle_memory, memory);
    report.add_verdict(&verdict);
    report.add_verdict(&sampled);
    Ok(report)
}

/// Waits until all runs are finished or make no progress, and returns the number of unfinished ones.
async fn drain(database: &mut Database, seeded: &Seeded) -> anyhow::Result<i64> {
    // Sums a few thousand session rows: counting the runs themselves would add load.
    let (first, last) = seeded.session_range();
    let sql = format!(
        "SELECT CAST(coalesce(sum(pending), 0) AS bigint) FROM sessions WHERE id BETWEEN {} AND {}",
        database.literal(first),
        database.literal(last)
    );
    let (mut left, mut progress) = (i64::MAX, Instant::now());
    loop {
        let current = database.number(&sql).await?;
        if current < left {
            (left, progress) = (current, Instant::now());
        }
        if left == 0 || progress.elapsed() > STALL_TIMEOUT {
            return Ok(left);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Checks that all runs completed, one after the other in queue order.
async fn check_completed(
    database: &mut Database,
    seeded: &Seeded,
    verdict: &mut Verdict,
) -> anyhow::Result<()> {
    let (first, last) = seeded.run_range();
    let range = format!("BETWEEN {} AND {}", database.literal(first), database.literal(last));
    let completed = database
        .number(&format!("SELECT count(*) FROM runs WHERE state = {COMPLETED} AND id {range}"))
        .await?;
    for _ in completed..i64::try_from(seeded.runs())? {
        verdict.record(Violation::Lost, "a queued run did not complete".to_owned());
    }
    let early = database
        .number(&format!(
            "SELECT count(*) FROM (SELECT started_at, lag(finished_at) OVER (PARTITION BY session_id ORDER BY seq) AS before \
             FROM runs WHERE id {range}) r WHERE started_at < before"
        ))
        .await?;
    for _ in 0..early {
        verdict.record(Violation::Overlap, "a run started before the previous one had ended".to_owned());
    }
    Ok(())
}

/// Returns the start and the end of each run.
async fn run_times(database: &mut Database, seeded: &Seeded) -> anyhow::Result<Vec<(Micros, Micros)>> {
    let (first, last) = seeded.run_range();
    let sql = format!(
        "SELECT {}, {} FROM runs WHERE id BETWEEN {} AND {} AND finished_at IS NOT NULL AND started_at IS NOT NULL",
        database.micros("started_at"),
        database.micros("finished_at"),
        database.literal(first),
        database.literal(last)
    );
    database.pairs(&sql).await
}

/// Reads the runs of a sample of sessions through the API.
async fn sample(target: &LoadTarget) -> anyhow::Result<Vec<load::ObservedRun>> {
    let mut runs = Vec::new();
    let count = target.sessions.len();
    for number in 0..SAMPLE.min(count) {
        let session = number * count / SAMPLE.min(count);
        for run in target.runs_of(&target.sessions.id(session)).await? {
            runs.push(target.observe(session, 0, &run)?);
        }
    }
    Ok(runs)
}

fn report(
    plan: &BenchPlan,
    seeded: &Seeded,
    start: std::ops::Range<Micros>,
    times: &[(Micros, Micros)],
) -> anyhow::Result<Report> {
    let (mut queued, mut took) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
    for (started, finished) in times {
        queued.record(u64::try_from(started - start.end).unwrap_or_default())?;
        took.record(u64::try_from(finished - started).unwrap_or_default())?;
    }
    let last = times.iter().map(|(_, finished)| *finished).max().unwrap_or(start.end);
    let window = start.end..last.max(start.end + 1);
    let seconds = (window.end - window.start) as f64 / 1e6;
    let stage = |name, times: &Histogram<u64>| {
        let millis = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
        Stage::of_all_runs(name, millis(0.5), millis(0.99))
    };
    let stages = (times.len(), vec![stage("queued", &queued), stage("in_hand", &took)]);
    let load = format!(
        "{} queued runs of {} sessions",
        grouped(seeded.runs() as f64),
        grouped(plan.sessions as f64)
    );
    let mut report = Report::new(plan, took).with_load(load);
    report.latency_label = "start to end";
    report.per_second = times.len() as f64 / seconds;
    report.ends = times.iter().map(|(_, finished)| *finished).collect();
    report.window = window;
    report.stages = stages;
    for (name, value) in [
        ("seeding_s", seeded.took.as_secs_f64()),
        ("start_s", (start.end - start.start) as f64 / 1e6),
        ("drain_s", seconds),
    ] {
        report.extra.insert(name.to_owned(), json!(value));
    }
    report.notes.push(format!("seeded in {:.0} s, drained in {seconds:.1} s", seeded.took.as_secs_f64()));
    Ok(report)
}
