//! The part `idle`: memory per reader of idle sessions, and whether these readers still get events.

use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    FanoutArgs,
    event_load::submit,
    reader_group::ReaderGroup,
    report::{Goal, PartReport, rounded},
};
use crate::{deployment::Deployment, os_stats::resident_kib, workload::CallError};

const GOAL_KIB: f64 = 20.0;
/// Pause before each memory measurement, so that the server has finished its background work.
const SETTLE_TIME: Duration = Duration::from_secs(3);
const CALLS_AT_ONCE: usize = 32;

pub(super) async fn run(args: &FanoutArgs, deployment: &mut Deployment) -> anyhow::Result<Vec<PartReport>> {
    let mut group = ReaderGroup::new(deployment, "idle", args.idle_sessions).await?;
    // Memory for first calls (pools, caches, lazily loaded code) does not count as a cost of readers.
    submit_to_all(&group, "first").await?;
    group.wait_until_idle().await?;
    sleep(SETTLE_TIME).await;
    let pid = deployment.stream_pid().context("no server")?;
    let before = resident_kib(pid)?;
    let began = Instant::now();
    group.start_many(args.idle_readers);
    group.wait_until_connected().await?;
    let opening = began.elapsed();
    sleep(SETTLE_TIME).await;
    let after = resident_kib(pid)?;
    // Readers that have been idle must still get every event.
    submit_to_all(&group, "second").await?;
    let results = group.finish().await?;

    let mut part = PartReport::new("idle", &results, deployment.problems());
    let (readers, sessions) = (args.idle_readers, args.idle_sessions);
    part.add("readers", json!(readers), "readers", format!("{readers} of {sessions} sessions"));
    let rate = rounded(readers as f64 / opening.as_secs_f64());
    part.add("connects_per_s", json!(rate), "connected", format!("{rate:.0}/s, all within {opening:.1?}"));
    part.add("before_kib", json!(before), "memory without readers", format!("{:.1} MiB", before / 1024.0));
    part.add("after_kib", json!(after), "memory with readers", format!("{:.1} MiB", after / 1024.0));
    let each = (after - before) / readers.max(1) as f64;
    part.add("kib_per_reader", json!(rounded(each)), "memory per reader", format!("{each:.1} KiB"));
    part.add_goal(Goal { name: "kib_per_reader", measured: each, below: GOAL_KIB, unit: " KiB" });
    Ok(vec![part])
}

/// Submits one run to every session.
async fn submit_to_all(group: &ReaderGroup, key: &str) -> anyhow::Result<()> {
    let submits = stream::iter(&group.sessions).map(|session| async move {
        let submitted = submit(&group.failover, session, format!("{key}-{session}")).await;
        submitted.map_err(CallError::into_error).context("cannot submit a run")
    });
    submits.buffer_unordered(CALLS_AT_ONCE).try_collect().await
}
