//! Grants on their way to workers, and room that these have.

use bytes::Bytes;
use remuda_domain::{PlaneId, Pool, WorkerId, worker::Offer};
use tokio::time::timeout;

use crate::{
    suite::transport_suite,
    support::{Fleet, LONG},
};

transport_suite! {
    offers_reach_every_control_plane
    parcels_reach_their_worker_in_order
}

async fn offers_reach_every_control_plane(fleet: Fleet) {
    // Within one process the store asks the worker itself.
    let (Some(one), Some(other)) = (fleet.one.carrier(), fleet.other.carrier()) else { return };
    let mut sources = [one.subscribe_offers().await.unwrap(), other.subscribe_offers().await.unwrap()];
    let (worker, pool) = (WorkerId::new(), Pool::default());
    let offer = Offer { worker, pool, room: 3, stamp: 7, received: vec![(PlaneId::new(), 12)] };
    one.offer(&offer).await.unwrap();
    for source in &mut sources {
        assert_eq!(timeout(LONG, source.next()).await.unwrap(), Some(offer.clone()));
    }
}

async fn parcels_reach_their_worker_in_order(fleet: Fleet) {
    let (Some(one), Some(other)) = (fleet.one.carrier(), fleet.other.carrier()) else { return };
    assert!(one.max_parcel() > 10_000);
    let (worker, stranger) = (WorkerId::new(), WorkerId::new());
    let mut parcels = other.subscribe_parcels(worker).await.unwrap();
    let mut strangers = other.subscribe_parcels(stranger).await.unwrap();
    for number in 0..20u8 {
        one.send_parcel(worker, Bytes::from(vec![number])).await.unwrap();
    }
    one.send_parcel(stranger, Bytes::from_static(b"other")).await.unwrap();
    for number in 0..20u8 {
        assert_eq!(timeout(LONG, parcels.next()).await.unwrap(), Some(Bytes::from(vec![number])));
    }
    assert_eq!(timeout(LONG, strangers.next()).await.unwrap(), Some(Bytes::from_static(b"other")));
}
