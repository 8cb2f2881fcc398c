//! What every transport guarantees for notices to all processes.

use remuda_domain::logs::{Notice, Processes};
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    suite::transport_suite,
    support::{LONG, TransportPair},
};

transport_suite! {
    notices_reach_every_subscriber
    notices_arrive_in_order_and_are_not_stored
}

fn notice() -> Notice {
    Notice::AskLog { question: Uuid::now_v7(), from: "a process".to_owned(), only: Processes::All }
}

async fn notices_reach_every_subscriber(pair: TransportPair) {
    let mut here = pair.one.subscribe_notices().await.unwrap();
    let mut there = pair.other.subscribe_notices().await.unwrap();
    let mut also = pair.other.subscribe_notices().await.unwrap();
    let sent = notice();
    pair.one.broadcast(&sent).await.unwrap();
    for source in [&mut here, &mut there, &mut also] {
        assert_eq!(timeout(LONG, source.next()).await.unwrap(), Some(sent.clone()));
    }
}

async fn notices_arrive_in_order_and_are_not_stored(pair: TransportPair) {
    pair.one.broadcast(&notice()).await.unwrap();
    // The ping returns after everything sent before has arrived.
    pair.one.ping().await.unwrap();
    let mut source = pair.other.subscribe_notices().await.unwrap();
    let sent: Vec<Notice> = (0..20).map(|_| notice()).collect();
    for notice in &sent {
        pair.one.broadcast(notice).await.unwrap();
    }
    for notice in &sent {
        assert_eq!(timeout(LONG, source.next()).await.unwrap().as_ref(), Some(notice));
    }
}
