//! The fault `clock-jump`: a worker whose wall clock jumps.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use nix::sys::signal::Signal;
use rand::{Rng, seq::SliceRandom as _};
use serde_json::Value;
use tokio::time::sleep;

use super::{Outcome, millis, target};
use crate::{
    clock::{FakeClock, library},
    cluster::Cluster,
    member::Member,
    wait::wait_until,
};

const HOUR: i64 = 3600;
/// How far the time of a log line may be from the expected time.
const TOLERANCE: TimeDelta = TimeDelta::minutes(5);
const LOG_TIMEOUT: Duration = Duration::from_secs(20);
const END_MARGIN: Duration = Duration::from_secs(10);

/// Drains a worker, restarts it under libfaketime, lets its clock jump while it works, and restarts it with the real time.
/// The timestamps of the worker's log prove that the jumps took effect.
pub(super) async fn jump(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    let library = library()?;
    let worker = target::any(cluster.workers(), rng).await?;
    let began = Utc::now();
    let mut offsets = [HOUR, -HOUR, 24 * HOUR, -24 * HOUR];
    offsets.shuffle(rng);
    let clock = FakeClock::create(library, cluster.clock_file(&worker)?)?;
    let mut problems = Vec::new();

    clock.set(offsets[0])?;
    drain(cluster, &worker, &mut problems).await?;
    let start = LogPosition::end_of(&worker);
    worker.start_with(&clock.variables()).await?;
    let pid = worker.pid();
    start.expect(&worker, offsets[0]).await?;
    for offset in &offsets[1..] {
        sleep(millis(rng, 800..=1500)).await;
        clock.set(*offset)?;
    }
    sleep(millis(rng, 800..=1500)).await;
    // The worker logs its shutdown with the faked time.
    let end = LogPosition::end_of(&worker);
    drain(cluster, &worker, &mut problems).await?;
    if let Some(pid) = pid {
        FakeClock::remove_shared_memory(pid);
    }
    end.expect(&worker, offsets[offsets.len() - 1]).await?;
    worker.start().await?;

    let jumps: Vec<String> = offsets.iter().map(|offset| format!("{:+} h", offset / HOUR)).collect();
    Ok(Outcome {
        problems,
        ..Outcome::new(worker.name(), began, format!("wall clock at {}", jumps.join(", ")))
    })
}

async fn drain(cluster: &Cluster, worker: &Member, problems: &mut Vec<String>) -> Result<()> {
    let status = worker.end(Signal::SIGTERM, cluster.options().drain_deadline + END_MARGIN).await?;
    if !status.is_some_and(|status| status.success()) {
        problems.push(format!("{} did not end gracefully: {status:?}", worker.name()));
        worker.kill().await?;
    }
    Ok(())
}

/// A position in a worker's log.
struct LogPosition(usize);

impl LogPosition {
    fn end_of(worker: &Member) -> Self {
        Self(worker.log().len())
    }

    /// Fails unless a later line was written with a clock at this offset: otherwise the clock was not faked, and the fault would
    /// prove nothing.
    async fn expect(&self, worker: &Member, offset: i64) -> Result<()> {
        let seen = wait_until(LOG_TIMEOUT, || {
            let log = worker.log();
            let expected = Utc::now() + TimeDelta::seconds(offset);
            let lines = log.get(self.0..).unwrap_or_default().lines();
            lines.filter_map(timestamp).any(|time| (time - expected).abs() < TOLERANCE).then_some(())
        });
        ensure!(seen.await.is_some(), "the log of {} shows no jump of {offset} s", worker.name());
        Ok(())
    }
}

/// The timestamp of a log line.
fn timestamp(line: &str) -> Option<DateTime<Utc>> {
    let line: Value = serde_json::from_str(line).ok()?;
    line["timestamp"].as_str()?.parse().context("no time").ok()
}
