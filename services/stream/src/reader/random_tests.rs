//! Readers that connect and disconnect while live events are lost, duplicated and reordered: each sees every event
//! once and in order.

use std::time::Duration;

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use remuda_domain::{Appended, Cursor, EventBody};
use remuda_transport::Transport as _;
use tokio::time::{sleep, timeout};

use super::{
    Batch, ReadRequest, Reader,
    fixture::{Fixture, TEST_TIMEOUT},
};
use crate::hub::Hub;

/// Events per test run, besides the initial two.
const EVENTS: i64 = 300;
const READERS: u64 = 6;

/// Writes events and publishes them as unreliably as is allowed.
async fn write(fixture: &Fixture, random: &mut StdRng) {
    let mut late: Vec<Appended> = Vec::new();
    let (tenant, session) = (fixture.tenant, fixture.root.session);
    for _ in 0..EVENTS {
        let events = fixture.write(&fixture.root, EventBody::RunStopped).await;
        match random.random_range(0..10) {
            0 => {}
            1 => late.push(events),
            2 => {
                fixture.transport.publish_events(tenant, session, &events).await;
                fixture.transport.publish_events(tenant, session, &events).await;
            }
            3 => {
                fixture.transport.publish_events(tenant, session, &events).await;
                for events in late.drain(..) {
                    fixture.transport.publish_events(tenant, session, &events).await;
                }
            }
            _ => fixture.transport.publish_events(tenant, session, &events).await,
        }
    }
}

/// Reads everything, switching between processes, sometimes slowly.
async fn read(fixture: &Fixture, hubs: &[Hub], mut random: StdRng) -> Vec<Cursor> {
    let mut seen = Vec::new();
    while seen.len() < usize::try_from(EVENTS).unwrap() + 2 {
        let hub = &hubs[random.random_range(0..hubs.len())];
        let after = seen.last().copied().unwrap_or(0);
        let deltas = random.random_bool(0.5);
        let mut reader: Reader = fixture
            .open(hub, ReadRequest { after, ..fixture.request(None, deltas) })
            .await
            .expect("a reader");
        // Some disconnect immediately.
        for _ in 0..random.random_range(0..30) {
            if random.random_bool(0.1) {
                sleep(Duration::from_millis(random.random_range(0..200))).await;
            }
            let limit = Duration::from_millis(random.random_range(1..300));
            match timeout(limit, reader.next()).await {
                Ok(Some(Ok(Batch::Events(events)))) => seen.extend(events.iter().map(|event| event.cursor)),
                Ok(other) => panic!("{other:?}"),
                // Cancelled; this must not lose anything.
                Err(_) => {}
            }
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reader_sees_every_event_once_and_in_order() {
    for seed in 0..4 {
        let fixture = Fixture::new().await;
        let hubs = [fixture.hub(Duration::from_millis(100)), fixture.hub(Duration::from_millis(300))];
        let mut random = StdRng::seed_from_u64(seed);
        let readers =
            (1..=READERS).map(|reader| read(&fixture, &hubs, StdRng::seed_from_u64(seed * 100 + reader)));
        let run = async { tokio::join!(write(&fixture, &mut random), futures::future::join_all(readers)).1 };
        let seen = timeout(TEST_TIMEOUT * 3, run)
            .await
            .unwrap_or_else(|_| panic!("seed {seed}: not all events were seen"));
        for seen in seen {
            assert_eq!(seen, Vec::from_iter(1..=EVENTS + 2), "seed {seed}");
        }
    }
}
