//! Faults that kill, stall or drain a worker.

use std::time::Duration;

use anyhow::{Context as _, Result};
use chrono::Utc;
use nix::sys::signal::Signal;
use rand::Rng;
use remuda_testkit::{Process, still_alive};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Outcome, absence, millis, target};
use crate::{cluster::Cluster, wait::wait_until};

/// How much longer than its drain deadline a worker may take: to kill its tools, sign off and close connections.
const DRAIN_MARGIN: Duration = Duration::from_secs(10);

pub(super) async fn kill(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    let worker = target::busy_worker(cluster, rng).await?;
    let began = Utc::now();
    // Stop it first, so that it starts no more tools. List its tools now: a dead process has no descendants.
    worker.signal(Signal::SIGSTOP)?;
    let tools = worker.tools();
    worker.kill().await?;
    let ended = wait_until(cluster.options().lease, || still_alive(&tools).is_empty().then_some(())).await;
    let survivors = if ended.is_some() { Vec::new() } else { still_alive(&tools) };
    let away = absence(rng);
    sleep(away).await;
    worker.start().await?;
    let note = format!("killed with {} tool processes, away for {away:?}", tools.len());
    Ok(Outcome::new(worker.name(), began, note).with_survivors(&survivors, tools.len()))
}

pub(super) async fn stall(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    let worker = target::busy_worker(cluster, rng).await?;
    let began = Utc::now();
    let lease = cluster.options().lease;
    worker.signal(Signal::SIGSTOP)?;
    let stopped = Instant::now();
    let tools = worker.tools();
    // The last renewal was before the stop, so the lease has expired by then.
    sleep_until(stopped + lease).await;
    let survivors = living(&tools, worker.tools());
    let longer = millis(rng, 0..=u64::try_from(lease.as_millis()).context("the lease is too long")?);
    sleep(longer).await;
    worker.signal(Signal::SIGCONT)?;
    let note = format!("stopped for {:?} with {} tool processes", lease + longer, tools.len());
    Ok(Outcome::new(worker.name(), began, note).with_survivors(&survivors, tools.len()))
}

/// The earlier processes that are still alive, and those started since.
fn living(before: &[Process], now: Vec<Process>) -> Vec<Process> {
    let mut all = still_alive(before);
    all.extend(now.into_iter().filter(|process| !before.contains(process)));
    all
}

pub(super) async fn drain(cluster: &Cluster, rng: &mut impl Rng) -> Result<Outcome> {
    let worker = target::busy_worker(cluster, rng).await?;
    let began = Utc::now();
    let timeout = cluster.options().drain_deadline + DRAIN_MARGIN;
    let asked = Instant::now();
    let status = worker.end(Signal::SIGTERM, timeout).await?;
    let took = asked.elapsed();
    let mut outcome = Outcome::new(worker.name(), began, format!("drained in {took:.1?}"));
    match status {
        Some(status) if status.success() => {}
        Some(status) => outcome.problems.push(format!("{} ended with {status} after SIGTERM", worker.name())),
        None => {
            outcome.problems.push(format!("{} still ran {timeout:?} after SIGTERM", worker.name()));
            worker.kill().await?;
        }
    }
    sleep(absence(rng)).await;
    worker.start().await?;
    Ok(outcome)
}
