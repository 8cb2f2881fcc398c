//! A reader that hangs up and comes back, a thousand times, at any moment and in every way.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use anyhow::{Context as _, ensure};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;
use tokio::time::timeout;

use super::{
    FanoutArgs,
    audience::Audience,
    follower::Follower,
    load::{Load, Plan},
    report::Part,
};
use crate::stage::Stage;

/// Events per second in the session that is read.
const EVENTS: f64 = 150.0;
/// The longest that the reader stays, from the very first packet on.
const LONGEST_STAY: Duration = Duration::from_millis(40);
/// Steps after which a hasty reader leaves: while it connects, when it has asked, after the head, in the middle of an event.
const HASTY_STEPS: std::ops::RangeInclusive<u32> = 1..=6;
/// Tries for each connection that the server answers. On a machine so slow that hardly anybody is let in within
/// [`LONGEST_STAY`] the test gives up.
const TRIES: u64 = 20;
const RESTLESS: &str = "the restless reader";

pub(super) async fn run(args: &FanoutArgs, stage: &mut Stage) -> anyhow::Result<Vec<Part>> {
    let mut audience = Audience::new(stage, "reconnect", 1).await?;
    let mut restless = audience.follower(0).named(RESTLESS);
    // One that stays, to compare.
    audience.seat_many(1);
    audience.all_in().await?;
    let plan = Plan {
        fleet: audience.fleet.clone(),
        sessions: audience.sessions.clone(),
        events: EVENTS.min(args.rate),
        first_share: 1.0,
        seed: args.seed,
    };
    let load = Load::start(plan).await?;
    let tries = come_and_go(&mut restless, args).await?;
    let counts = load.stop().await?;
    let connections = restless.connections();
    audience.seat(restless);
    let findings = audience.finish().await?;

    let mut part = Part::new("reconnect", &findings, stage.troubles());
    let reconnects = connections.saturating_sub(1);
    let text = format!("{reconnects}, and {} times it left before there was an answer", tries - connections);
    part.tell("reconnects", json!(reconnects), "reconnects", text);
    part.tell("tries", json!(tries), "tries", tries.to_string());
    part.tell("runs", json!(counts.accepted()), "runs meanwhile", counts.accepted().to_string());
    let restless = findings.history.readings.iter().find(|reading| reading.reader == RESTLESS);
    let events = restless.map_or(0, |reading| reading.seen.len());
    part.tell("events", json!(events), "events it got", events.to_string());
    Ok(vec![part])
}

/// Gives the number of tries.
async fn come_and_go(reader: &mut Follower, args: &FanoutArgs) -> anyhow::Result<u64> {
    let mut rng = StdRng::seed_from_u64(args.seed);
    let mut tries = 0;
    while reader.connections() <= args.reconnects {
        ensure!(tries < (args.reconnects + 1) * TRIES, "the server answers too slowly to reconnect to it");
        tries += 1;
        let stay = rng.random_range(Duration::ZERO..LONGEST_STAY);
        let steps = if rng.random_bool(0.5) { rng.random_range(HASTY_STEPS) } else { u32::MAX };
        // However it ends: the next one begins after the last event that was read.
        drop(timeout(stay, for_steps(steps, reader.once())).await);
        let Some(connection) = reader.take_connection() else { continue };
        if rng.random_bool(0.5) {
            connection.abort().context("a connection cannot be reset")?;
        } else {
            // The server may have been quicker.
            drop(connection.close().await);
        }
    }
    Ok(tries)
}

/// Lets a future take so many steps from one wait to the next, if it does not end before.
async fn for_steps(steps: u32, future: impl Future<Output = ()>) {
    let (mut future, mut left) = (pin!(future), steps);
    poll_fn(|context| {
        left -= 1;
        let ended = future.as_mut().poll(context);
        if left == 0 { Poll::Ready(()) } else { ended }
    })
    .await;
}
