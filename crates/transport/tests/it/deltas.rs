//! What every transport must uphold for the pieces of messages.

use std::time::Duration;

use remuda_domain::{SessionId, TenantId};
use tokio::time::timeout;

use crate::{
    suite::transport_suite,
    support::{Fleet, LONG, delta, event},
};

transport_suite! {
    deltas_reach_whoever_listens_to_their_session
    deltas_come_in_order_and_apart_from_events
    a_listener_that_lags_loses_its_own_deltas_only
}

async fn deltas_reach_whoever_listens_to_their_session(fleet: Fleet) {
    let (session, stranger) = (SessionId::new(), TenantId::new());
    // Nobody listens, and nothing is kept for later.
    fleet.one.publish_deltas(fleet.tenant, session, &[delta(1)]).await;
    fleet.one.publish_deltas(fleet.tenant, session, &[]).await;
    // What was sent has arrived.
    fleet.one.ping().await.unwrap();
    let mut own = fleet.other.subscribe_deltas(fleet.tenant, session).await.unwrap();
    let mut foreign = fleet.other.subscribe_deltas(stranger, session).await.unwrap();
    let mut elsewhere = fleet.other.subscribe_deltas(fleet.tenant, SessionId::new()).await.unwrap();
    let sent = [delta(2), delta(3)];
    fleet.one.publish_deltas(fleet.tenant, session, &sent).await;
    assert_eq!(timeout(LONG, own.next()).await.unwrap().unwrap(), sent);
    assert!(timeout(Duration::from_millis(100), foreign.next()).await.is_err());
    assert!(timeout(Duration::from_millis(100), elsewhere.next()).await.is_err());
}

async fn deltas_come_in_order_and_apart_from_events(fleet: Fleet) {
    let session = SessionId::new();
    let mut deltas = fleet.other.subscribe_deltas(fleet.tenant, session).await.unwrap();
    let mut events = fleet.other.subscribe_events(fleet.tenant, session).await.unwrap();
    for number in 1..=100 {
        fleet.one.publish_deltas(fleet.tenant, session, &[delta(number)]).await;
        if number % 10 == 0 {
            fleet.one.publish_events(fleet.tenant, session, &event(session, number / 10).into()).await;
        }
    }
    let mut offsets = Vec::new();
    while offsets.len() < 100 {
        let batch = timeout(LONG, deltas.next()).await.unwrap().expect("the source should not have ended");
        offsets.extend(batch.iter().map(|delta| delta.offset));
    }
    assert_eq!(offsets, (1..=100).collect::<Vec<_>>());
    let mut cursors = Vec::new();
    while cursors.len() < 10 {
        let batch = timeout(LONG, events.next()).await.unwrap().expect("the source should not have ended");
        cursors.extend(batch.iter().map(|event| event.cursor));
    }
    assert_eq!(cursors, (1..=10).collect::<Vec<_>>());
}

async fn a_listener_that_lags_loses_its_own_deltas_only(fleet: Fleet) {
    let session = SessionId::new();
    let mut slow = fleet.other.subscribe_deltas(fleet.tenant, session).await.unwrap();
    let mut quick = fleet.other.subscribe_deltas(fleet.tenant, session).await.unwrap();
    const BATCHES: i64 = 1000;
    for number in 1..=BATCHES {
        fleet.one.publish_deltas(fleet.tenant, session, &[delta(number)]).await;
        assert_eq!(timeout(LONG, quick.next()).await.unwrap().unwrap(), [delta(number)]);
    }
    let mut seen = 0;
    while let Some(deltas) = timeout(LONG, slow.next()).await.unwrap() {
        seen += deltas.len();
    }
    assert!(seen < 1000, "{seen} deltas were kept for someone who does not read");
    let mut anew = fleet.other.subscribe_deltas(fleet.tenant, session).await.unwrap();
    fleet.one.publish_deltas(fleet.tenant, session, &[delta(BATCHES + 1)]).await;
    assert_eq!(timeout(LONG, anew.next()).await.unwrap().unwrap(), [delta(BATCHES + 1)]);
}
