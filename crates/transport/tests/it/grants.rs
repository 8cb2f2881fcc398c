//! What every transport guarantees for slot offers and grants.

use remuda_domain::{ControlPlaneId, Pool, WorkerId, worker::SlotOffer};
use remuda_transport::{GRANT_VERSION, GrantBatch};
use tokio::time::timeout;

use crate::{
    suite::transport_suite,
    support::{LONG, TransportPair},
};

transport_suite! {
    offers_reach_every_control_plane
    grant_batches_reach_their_worker_in_order
}

async fn offers_reach_every_control_plane(pair: TransportPair) {
    // Within one process the store asks the worker directly.
    let (Some(one), Some(other)) = (pair.one.grant_transport(), pair.other.grant_transport()) else {
        return;
    };
    let mut sources = [one.subscribe_offers().await.unwrap(), other.subscribe_offers().await.unwrap()];
    let (worker, pool) = (WorkerId::new(), Pool::default());
    let received = vec![(ControlPlaneId::new(), 12)];
    let offer = SlotOffer { worker, pool, slots: 3, stamp: 7, received, grant_version: GRANT_VERSION };
    one.offer(&offer).await.unwrap();
    for source in &mut sources {
        assert_eq!(timeout(LONG, source.next()).await.unwrap(), Some(offer.clone()));
    }
}

async fn grant_batches_reach_their_worker_in_order(pair: TransportPair) {
    let (Some(one), Some(other)) = (pair.one.grant_transport(), pair.other.grant_transport()) else {
        return;
    };
    assert!(one.max_grant_bytes() > 10_000);
    let (worker, other_tenant) = (WorkerId::new(), WorkerId::new());
    let mut batches = other.subscribe_grants(worker).await.unwrap();
    let mut strangers = other.subscribe_grants(other_tenant).await.unwrap();
    let from = ControlPlaneId::new();
    let batch = |sent| GrantBatch { from, stamp: 7, sent, grants: Vec::new() };
    for number in 0..20 {
        one.send_grants(worker, &batch(number)).await.unwrap();
    }
    one.send_grants(other_tenant, &batch(99)).await.unwrap();
    for number in 0..20 {
        assert_eq!(timeout(LONG, batches.next()).await.unwrap(), Some(batch(number)));
    }
    assert_eq!(timeout(LONG, strangers.next()).await.unwrap(), Some(batch(99)));
}
