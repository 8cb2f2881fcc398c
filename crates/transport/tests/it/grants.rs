//! What every transport guarantees for slot offers and grants.

use bytes::Bytes;
use remuda_domain::{ControlPlaneId, Pool, WorkerId, worker::SlotOffer};
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
    let offer = SlotOffer { worker, pool, slots: 3, stamp: 7, received: vec![(ControlPlaneId::new(), 12)] };
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
    for number in 0..20u8 {
        one.send_grants(worker, Bytes::from(vec![number])).await.unwrap();
    }
    one.send_grants(other_tenant, Bytes::from_static(b"other")).await.unwrap();
    for number in 0..20u8 {
        assert_eq!(timeout(LONG, batches.next()).await.unwrap(), Some(Bytes::from(vec![number])));
    }
    assert_eq!(timeout(LONG, strangers.next()).await.unwrap(), Some(Bytes::from_static(b"other")));
}
