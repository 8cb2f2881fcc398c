//! What every transport must uphold for what is told to all processes.

use remuda_domain::logs::{Notice, Processes};
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    suite::transport_suite,
    support::{Fleet, LONG},
};

transport_suite! {
    notices_reach_everybody_who_listens
    notices_come_in_order_and_are_not_kept
}

fn notice() -> Notice {
    Notice::AskLog { question: Uuid::now_v7(), from: "a process".to_owned(), only: Processes::All }
}

async fn notices_reach_everybody_who_listens(fleet: Fleet) {
    let mut here = fleet.one.subscribe_notices().await.unwrap();
    let mut there = fleet.other.subscribe_notices().await.unwrap();
    let mut also = fleet.other.subscribe_notices().await.unwrap();
    let sent = notice();
    fleet.one.broadcast(&sent).await.unwrap();
    for source in [&mut here, &mut there, &mut also] {
        assert_eq!(timeout(LONG, source.next()).await.unwrap(), Some(sent.clone()));
    }
}

async fn notices_come_in_order_and_are_not_kept(fleet: Fleet) {
    fleet.one.broadcast(&notice()).await.unwrap();
    // What was sent has arrived, at nobody.
    fleet.one.ping().await.unwrap();
    let mut source = fleet.other.subscribe_notices().await.unwrap();
    let sent: Vec<Notice> = (0..20).map(|_| notice()).collect();
    for notice in &sent {
        fleet.one.broadcast(notice).await.unwrap();
    }
    for notice in &sent {
        assert_eq!(timeout(LONG, source.next()).await.unwrap().as_ref(), Some(notice));
    }
}
