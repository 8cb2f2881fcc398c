//! Readers of sessions in which nothing happens: what they cost the server, and that they have not been forgotten.

use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    FanoutArgs,
    audience::Audience,
    load::submit,
    report::{Goal, Part, rounded},
};
use crate::{kernel::resident_kib, stage::Stage, workload::CallError};

const GOAL_KIB: f64 = 20.0;
/// Before each look at the memory, so that what the server does by itself after a call is done.
const CALM: Duration = Duration::from_secs(3);
const CALLS_AT_ONCE: usize = 32;

pub(super) async fn run(args: &FanoutArgs, stage: &mut Stage) -> anyhow::Result<Vec<Part>> {
    let mut audience = Audience::new(stage, "idle", args.idle_sessions).await?;
    // What a server keeps of its first callers (pools, caches, code that was never executed) is no cost of readers.
    wake(&audience, "first").await?;
    audience.settle().await?;
    sleep(CALM).await;
    let pid = stage.stream_pid().context("there is no server")?;
    let before = resident_kib(pid)?;
    let began = Instant::now();
    audience.seat_many(args.idle_readers);
    audience.all_in().await?;
    let opening = began.elapsed();
    sleep(CALM).await;
    let after = resident_kib(pid)?;
    // Whoever sits there for a long time still has to hear everything.
    wake(&audience, "second").await?;
    let findings = audience.finish().await?;

    let mut part = Part::new("idle", &findings, stage.troubles());
    let (readers, sessions) = (args.idle_readers, args.idle_sessions);
    part.tell("readers", json!(readers), "readers", format!("{readers} of {sessions} sessions"));
    let rate = rounded(readers as f64 / opening.as_secs_f64());
    part.tell("connects_per_s", json!(rate), "let in", format!("{rate:.0}/s, all within {opening:.1?}"));
    part.tell("before_kib", json!(before), "memory without them", format!("{:.1} MiB", before / 1024.0));
    part.tell("after_kib", json!(after), "memory with them", format!("{:.1} MiB", after / 1024.0));
    let each = (after - before) / readers.max(1) as f64;
    part.tell("kib_per_reader", json!(rounded(each)), "each", format!("{each:.1} KiB"));
    part.aim(Goal { name: "kib_per_reader", measured: each, below: GOAL_KIB, unit: " KiB" });
    Ok(vec![part])
}

/// A run in every session.
async fn wake(audience: &Audience, key: &str) -> anyhow::Result<()> {
    let submits = stream::iter(&audience.sessions).map(|session| async move {
        let submitted = submit(&audience.fleet, session, format!("{key}-{session}")).await;
        submitted.map_err(CallError::into_error).context("a run cannot be submitted")
    });
    submits.buffer_unordered(CALLS_AT_ONCE).try_collect().await
}
