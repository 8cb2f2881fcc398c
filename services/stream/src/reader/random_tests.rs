//! Readers that come and go while what they are told gets lost, doubled and mixed up: each sees every event once and in order.

use std::time::Duration;

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use remuda_domain::{Appended, Cursor, EventBody};
use remuda_transport::Transport as _;
use tokio::time::{sleep, timeout};

use super::{
    Reader, Said, Wish,
    lab::{Lab, PATIENCE},
};
use crate::hub::Hub;

/// Events of one story, besides the two that there are at the beginning.
const EVENTS: i64 = 300;
const READERS: u64 = 6;

/// Writes events one after the other and tells of them as badly as is allowed.
async fn write(lab: &Lab, random: &mut StdRng) {
    let mut late: Vec<Appended> = Vec::new();
    let (tenant, session) = (lab.tenant, lab.root.session);
    for _ in 0..EVENTS {
        let events = lab.write(&lab.root, EventBody::RunStopped).await;
        match random.random_range(0..10) {
            0 => {}
            1 => late.push(events),
            2 => {
                lab.transport.publish_events(tenant, session, &events).await;
                lab.transport.publish_events(tenant, session, &events).await;
            }
            3 => {
                lab.transport.publish_events(tenant, session, &events).await;
                for events in late.drain(..) {
                    lab.transport.publish_events(tenant, session, &events).await;
                }
            }
            _ => lab.transport.publish_events(tenant, session, &events).await,
        }
    }
}

/// Reads everything, at one process and then at another, now and then slowly.
async fn read(lab: &Lab, hubs: &[Hub], mut random: StdRng) -> Vec<Cursor> {
    let mut seen = Vec::new();
    while seen.len() < usize::try_from(EVENTS).unwrap() + 2 {
        let hub = &hubs[random.random_range(0..hubs.len())];
        let after = seen.last().copied().unwrap_or(0);
        let deltas = random.random_bool(0.5);
        let mut reader: Reader =
            lab.open(hub, Wish { after, ..lab.wish(None, deltas) }).await.expect("a reader");
        // Some hang up at once.
        for _ in 0..random.random_range(0..30) {
            if random.random_bool(0.1) {
                sleep(Duration::from_millis(random.random_range(0..200))).await;
            }
            let patience = Duration::from_millis(random.random_range(1..300));
            match timeout(patience, reader.next()).await {
                Ok(Some(Ok(Said::Events(events)))) => seen.extend(events.iter().map(|event| event.cursor)),
                Ok(other) => panic!("{other:?}"),
                // Cut short; nothing may be lost by that.
                Err(_) => {}
            }
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reader_sees_every_event_once_and_in_order() {
    for seed in 0..4 {
        let lab = Lab::new().await;
        let hubs = [lab.hub(Duration::from_millis(100)), lab.hub(Duration::from_millis(300))];
        let mut random = StdRng::seed_from_u64(seed);
        let readers =
            (1..=READERS).map(|reader| read(&lab, &hubs, StdRng::seed_from_u64(seed * 100 + reader)));
        let story = async { tokio::join!(write(&lab, &mut random), futures::future::join_all(readers)).1 };
        let seen =
            timeout(PATIENCE * 3, story).await.unwrap_or_else(|_| panic!("seed {seed}: not all was seen"));
        for seen in seen {
            assert_eq!(seen, Vec::from_iter(1..=EVENTS + 2), "seed {seed}");
        }
    }
}
