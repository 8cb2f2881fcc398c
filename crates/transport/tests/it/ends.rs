//! Ends of runs on their way to those who wait.

use remuda_domain::{
    PlaneId, RunId, Timestamp,
    run::{Completion, LastWords},
};
use tokio::time::timeout;

use crate::{
    suite::transport_suite,
    support::{Fleet, LONG},
};

transport_suite! {
    ends_reach_their_plane_in_order
}

fn words() -> LastWords {
    let at = Timestamp::UNIX_EPOCH;
    let completed = Completion { started_at: at, finished_at: at, outcomes: Vec::new() };
    LastWords { run: RunId::new(), completed: Some(completed) }
}

async fn ends_reach_their_plane_in_order(fleet: Fleet) {
    let (plane, other) = (PlaneId::new(), PlaneId::new());
    let mut own = fleet.other.subscribe_ends(plane).await.unwrap();
    let mut others = fleet.other.subscribe_ends(other).await.unwrap();
    let told: Vec<LastWords> = (0..500).map(|_| words()).collect();
    let last = LastWords { completed: None, ..words() };
    for words in &told {
        fleet.one.tell_end(plane, words.clone());
    }
    fleet.one.tell_end(other, last.clone());
    let mut heard = Vec::new();
    while heard.len() < told.len() {
        heard.extend(timeout(LONG, own.next()).await.unwrap().expect("the source should not have ended"));
    }
    assert_eq!(heard, told);
    assert_eq!(timeout(LONG, others.next()).await.unwrap(), Some(vec![last]));
}
