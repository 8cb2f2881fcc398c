//! What every transport guarantees for end notices.

use remuda_domain::{
    ControlPlaneId, RunId, Timestamp,
    run::{Completion, RunEndNotice},
};
use tokio::time::timeout;

use crate::{
    suite::transport_suite,
    support::{LONG, TransportPair},
};

transport_suite! {
    end_notices_reach_their_control_plane_in_order
}

fn end_notice() -> RunEndNotice {
    let at = Timestamp::UNIX_EPOCH;
    let completed = Completion { started_at: at, finished_at: at, outcomes: Vec::new() };
    RunEndNotice { run: RunId::new(), completed: Some(completed) }
}

async fn end_notices_reach_their_control_plane_in_order(pair: TransportPair) {
    let (plane, other) = (ControlPlaneId::new(), ControlPlaneId::new());
    let mut own = pair.other.subscribe_end_notices(plane).await.unwrap();
    let mut others = pair.other.subscribe_end_notices(other).await.unwrap();
    let sent: Vec<RunEndNotice> = (0..500).map(|_| end_notice()).collect();
    let last = RunEndNotice { completed: None, ..end_notice() };
    for notice in &sent {
        pair.one.notify_end(plane, notice.clone());
    }
    pair.one.notify_end(other, last.clone());
    let mut received = Vec::new();
    while received.len() < sent.len() {
        received.extend(timeout(LONG, own.next()).await.unwrap().expect("the source should not have ended"));
    }
    assert_eq!(received, sent);
    assert_eq!(timeout(LONG, others.next()).await.unwrap(), Some(vec![last]));
}
