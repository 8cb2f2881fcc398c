//! The part `reconnect`: a reader that disconnects at random times and reconnects, 1,000 times by default.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use anyhow::{Context as _, ensure};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;
use tokio::time::timeout;

use super::{
    FanoutArgs,
    event_load::{EventLoad, EventLoadPlan},
    follower::Follower,
    reader_group::ReaderGroup,
    report::PartReport,
};
use crate::deployment::Deployment;

/// Events per second in the session that is read.
const EVENTS: f64 = 150.0;
/// The longest duration of a connection, including the connect.
const MAX_STAY: Duration = Duration::from_millis(40);
/// Polls after which an early disconnect happens: during the connect, after the request, after the head, within an event.
const EARLY_STEPS: std::ops::RangeInclusive<u32> = 1..=6;
/// The limit of tries per accepted connection. The test fails on a machine so slow that few connections are accepted within
/// [`MAX_STAY`].
const MAX_TRIES_PER_CONNECTION: u64 = 20;
const RECONNECTING: &str = "the reconnecting reader";

pub(super) async fn run(args: &FanoutArgs, deployment: &mut Deployment) -> anyhow::Result<Vec<PartReport>> {
    let mut group = ReaderGroup::new(deployment, "reconnect", 1).await?;
    let mut reconnecting = group.follower(0).named(RECONNECTING);
    // A reader that stays connected, for comparison.
    group.start_many(1);
    group.wait_until_connected().await?;
    let plan = EventLoadPlan {
        failover: group.failover.clone(),
        sessions: group.sessions.clone(),
        events: EVENTS.min(args.rate),
        first_share: 1.0,
        seed: args.seed,
    };
    let load = EventLoad::start(plan).await?;
    let tries = reconnect_repeatedly(&mut reconnecting, args).await?;
    let counts = load.stop().await?;
    let connections = reconnecting.connections();
    group.start(reconnecting);
    let results = group.finish().await?;

    let mut part = PartReport::new("reconnect", &results, deployment.problems());
    let reconnects = connections.saturating_sub(1);
    let text = format!("{reconnects}, and {} times disconnected before an answer", tries - connections);
    part.add("reconnects", json!(reconnects), "reconnects", text);
    part.add("tries", json!(tries), "tries", tries.to_string());
    part.add("runs", json!(counts.accepted()), "runs", counts.accepted().to_string());
    let reconnecting = results.history.reader_logs.iter().find(|log| log.reader == RECONNECTING);
    let events = reconnecting.map_or(0, |log| log.events.len());
    part.add("events", json!(events), "events received", events.to_string());
    Ok(vec![part])
}

/// Returns the number of tries.
async fn reconnect_repeatedly(reader: &mut Follower, args: &FanoutArgs) -> anyhow::Result<u64> {
    let mut rng = StdRng::seed_from_u64(args.seed);
    let mut tries = 0;
    while reader.connections() <= args.reconnects {
        ensure!(
            tries < (args.reconnects + 1) * MAX_TRIES_PER_CONNECTION,
            "the server answers too slowly for this part"
        );
        tries += 1;
        let stay = rng.random_range(Duration::ZERO..MAX_STAY);
        let steps = if rng.random_bool(0.5) { rng.random_range(EARLY_STEPS) } else { u32::MAX };
        // The result does not matter: the next connection resumes after the last event.
        drop(timeout(stay, poll_times(steps, reader.once())).await);
        let Some(connection) = reader.take_connection() else { continue };
        if rng.random_bool(0.5) {
            connection.abort().context("cannot reset a connection")?;
        } else {
            // The server may have closed it already.
            drop(connection.close().await);
        }
    }
    Ok(tries)
}

/// Polls a future at most this many times.
async fn poll_times(steps: u32, future: impl Future<Output = ()>) {
    let (mut future, mut left) = (pin!(future), steps);
    poll_fn(|context| {
        left -= 1;
        let ended = future.as_mut().poll(context);
        if left == 0 { Poll::Ready(()) } else { ended }
    })
    .await;
}
