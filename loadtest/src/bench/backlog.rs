//! Many queued runs that are worked off.
//!
//! The servers start on a database in which all these runs wait, and nobody submits anything: what wakes the sessions is the control
//! plane's own look at what has no token. All runs are judged by what the database says in the end, and those of some sessions by what
//! the API and the streams say.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::json;
use tokio::time::sleep;

use super::{Plan, report::Report};
use crate::{
    check::{Verdict, Violation},
    collector::Collector,
    draw::grouped,
    history::{Micros, now},
    load::{self, Site, Stage as Part, Stages},
    seed::{self, Database, Seeded},
    stage::Stage,
};

/// Sessions whose runs are looked at through the API, and whose streams are read back.
const SAMPLE: usize = 200;
/// Between two looks at how many are left: often enough to see the end, seldom enough not to be felt.
const LOOK: Duration = Duration::from_millis(500);
/// Without any progress for so long, the rest is lost.
const PATIENCE: Duration = Duration::from_secs(90);
/// How runs that completed are stored.
const COMPLETED: i64 = 10;

pub(super) async fn measure(plan: &Plan) -> anyhow::Result<Report> {
    let collector = Collector::start(Stages::default()).await?;
    let mut stage = Stage::start(plan.mode, &plan.setting(&collector)).await?;
    let measured = on_stage(plan, &mut stage).await;
    let mut report = measured.inspect_err(|_| stage.mark_failed())?;
    report.failures.extend(stage.troubles());
    if !report.is_good() {
        stage.mark_failed();
    }
    Ok(report)
}

async fn on_stage(plan: &Plan, stage: &mut Stage) -> anyhow::Result<Report> {
    let seeds: Vec<_> = plan.session_seed().into_iter().collect();
    let planted = seed::plant(stage, &seeds).await?;
    let [seeded] = &planted[..] else { anyhow::bail!("nothing was seeded") };
    let mut database = stage.database().await?;
    let begun = now();
    stage.resume().await?;
    let (ready, idle_memory) = (now(), stage.memory());
    let left = drain(&mut database, seeded).await?;
    let memory = stage.memory();
    let mut verdict = Verdict::default();
    if left > 0 {
        verdict.found(
            Violation::Lost,
            format!("{left} of {} runs are not finished, and nothing happens any more", seeded.runs()),
        );
    }
    count(&mut database, seeded, &mut verdict).await?;
    let times = times(&mut database, seeded).await?;
    database.close().await?;
    let site = Site::existing(stage.addresses(), seeded.sessions())?;
    let sampled = sample(&site).await?;
    let sampled = load::judge(&site, &plan.scenario.work(), &sampled).await?;
    let mut report = report(plan, seeded, begun..ready, &times)?;
    (report.idle_memory, report.memory) = (idle_memory, memory);
    report.judged(&verdict);
    report.judged(&sampled);
    Ok(report)
}

/// Waits until all are finished, and returns how many are not when nothing happens any more.
async fn drain(database: &mut Database, seeded: &Seeded) -> anyhow::Result<i64> {
    // Of a few thousand rows: counting the runs themselves would be felt.
    let (first, last) = seeded.session_range();
    let sql = format!(
        "SELECT CAST(coalesce(sum(pending), 0) AS bigint) FROM sessions WHERE id BETWEEN {} AND {}",
        database.literal(first),
        database.literal(last)
    );
    let (mut left, mut progress) = (i64::MAX, Instant::now());
    loop {
        let now_left = database.number(&sql).await?;
        if now_left < left {
            (left, progress) = (now_left, Instant::now());
        }
        if left == 0 || progress.elapsed() > PATIENCE {
            return Ok(left);
        }
        sleep(LOOK).await;
    }
}

/// All completed, and one after the other in their order.
async fn count(database: &mut Database, seeded: &Seeded, verdict: &mut Verdict) -> anyhow::Result<()> {
    let (first, last) = seeded.run_range();
    let range = format!("BETWEEN {} AND {}", database.literal(first), database.literal(last));
    let completed = database
        .number(&format!("SELECT count(*) FROM runs WHERE state = {COMPLETED} AND id {range}"))
        .await?;
    for _ in completed..i64::try_from(seeded.runs())? {
        verdict.found(Violation::Lost, "a queued run did not complete".to_owned());
    }
    let early = database
        .number(&format!(
            "SELECT count(*) FROM (SELECT started_at, lag(finished_at) OVER (PARTITION BY session_id ORDER BY seq) AS before \
             FROM runs WHERE id {range}) r WHERE started_at < before"
        ))
        .await?;
    for _ in 0..early {
        verdict.found(Violation::Overlap, "a run started before the one in front of it had ended".to_owned());
    }
    Ok(())
}

/// When each run started and ended.
async fn times(database: &mut Database, seeded: &Seeded) -> anyhow::Result<Vec<(Micros, Micros)>> {
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

/// What the API says of the runs of some sessions.
async fn sample(site: &Site) -> anyhow::Result<Vec<load::RunFact>> {
    let mut facts = Vec::new();
    let count = site.sessions.len();
    for number in 0..SAMPLE.min(count) {
        let session = number * count / SAMPLE.min(count);
        for run in site.runs_of(&site.sessions.id(session)).await? {
            facts.push(site.fact(session, 0, &run)?);
        }
    }
    Ok(facts)
}

fn report(
    plan: &Plan,
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
    let part = |name, times: &Histogram<u64>| {
        let millis = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
        Part::of_all(name, millis(0.5), millis(0.99))
    };
    let stages = (times.len(), vec![part("queued", &queued), part("in_hand", &took)]);
    let load = format!(
        "{} queued runs of {} sessions",
        grouped(seeded.runs() as f64),
        grouped(plan.sessions as f64)
    );
    let mut report = Report::new(plan, took).under(load);
    report.from_to = "start to end";
    report.per_second = times.len() as f64 / seconds;
    report.ends = times.iter().map(|(_, finished)| *finished).collect();
    report.window = window;
    report.stages = stages;
    for (name, value) in [
        ("seeding_s", seeded.took.as_secs_f64()),
        ("start_s", (start.end - start.start) as f64 / 1e6),
        ("drain_s", seconds),
    ] {
        report.more.insert(name.to_owned(), json!(value));
    }
    report.notes.push(format!("seeded in {:.0} s, worked off in {seconds:.1} s", seeded.took.as_secs_f64()));
    Ok(report)
}
