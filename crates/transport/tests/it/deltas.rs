//! What every transport guarantees for deltas.

use std::time::Duration;

use remuda_domain::{SessionId, TenantId};
use tokio::time::timeout;

use crate::{
    suite::transport_suite,
    support::{LONG, TransportPair, delta, event},
};

transport_suite! {
    deltas_reach_the_subscribers_of_their_session
    deltas_arrive_in_order_and_apart_from_events
    lagging_subscriber_loses_only_its_own_deltas
}

async fn deltas_reach_the_subscribers_of_their_session(pair: TransportPair) {
    let (session, other_tenant) = (SessionId::new(), TenantId::new());
    // Without subscribers, nothing is kept for later.
    pair.one.publish_deltas(pair.tenant, session, &[delta(1)]).await;
    pair.one.publish_deltas(pair.tenant, session, &[]).await;
    // The ping returns after everything sent before has arrived.
    pair.one.ping().await.unwrap();
    let mut own = pair.other.subscribe_deltas(pair.tenant, session).await.unwrap();
    let mut foreign = pair.other.subscribe_deltas(other_tenant, session).await.unwrap();
    let mut other_session = pair.other.subscribe_deltas(pair.tenant, SessionId::new()).await.unwrap();
    let sent = [delta(2), delta(3)];
    pair.one.publish_deltas(pair.tenant, session, &sent).await;
    assert_eq!(timeout(LONG, own.next()).await.unwrap().unwrap(), sent);
    assert!(timeout(Duration::from_millis(100), foreign.next()).await.is_err());
    assert!(timeout(Duration::from_millis(100), other_session.next()).await.is_err());
}

async fn deltas_arrive_in_order_and_apart_from_events(pair: TransportPair) {
    let session = SessionId::new();
    let mut deltas = pair.other.subscribe_deltas(pair.tenant, session).await.unwrap();
    let mut events = pair.other.subscribe_events(pair.tenant, session).await.unwrap();
    for number in 1..=100 {
        pair.one.publish_deltas(pair.tenant, session, &[delta(number)]).await;
        if number % 10 == 0 {
            pair.one.publish_events(pair.tenant, session, &event(session, number / 10).into()).await;
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

async fn lagging_subscriber_loses_only_its_own_deltas(pair: TransportPair) {
    let session = SessionId::new();
    let mut slow = pair.other.subscribe_deltas(pair.tenant, session).await.unwrap();
    let mut quick = pair.other.subscribe_deltas(pair.tenant, session).await.unwrap();
    const BATCHES: i64 = 1000;
    for number in 1..=BATCHES {
        pair.one.publish_deltas(pair.tenant, session, &[delta(number)]).await;
        assert_eq!(timeout(LONG, quick.next()).await.unwrap().unwrap(), [delta(number)]);
    }
    let mut seen = 0;
    while let Some(deltas) = timeout(LONG, slow.next()).await.unwrap() {
        seen += deltas.len();
    }
    assert!(seen < 1000, "{seen} deltas were buffered for a subscriber that does not read");
    let mut resubscribed = pair.other.subscribe_deltas(pair.tenant, session).await.unwrap();
    pair.one.publish_deltas(pair.tenant, session, &[delta(BATCHES + 1)]).await;
    assert_eq!(timeout(LONG, resubscribed.next()).await.unwrap().unwrap(), [delta(BATCHES + 1)]);
}
