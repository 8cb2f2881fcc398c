//! Takes sessions back from workers whose lease ended, so that their runs go on elsewhere, or end.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;
use remuda_telemetry::metrics::{self, Counter, registry::SESSIONS_TAKEN_BACK};

use super::task::{BackgroundTask, Round};
use crate::waker::Waker;

/// Sessions per transaction: each is locked for as long as it takes.
const BATCH: u32 = 200;
/// A lease that ends at this moment by one clock may have a moment left by another.
const MARGIN: Duration = Duration::from_millis(20);

pub(super) struct TakeBack {
    store: Arc<dyn Store>,
    waker: Waker,
    pace: Duration,
    taken: Counter<u64>,
}

impl TakeBack {
    pub(super) fn new(store: Arc<dyn Store>, waker: Waker, pace: Duration) -> Self {
        let taken = metrics::counter(&SESSIONS_TAKEN_BACK);
        // So that the metric is there before the first worker dies.
        taken.add(0, &[]);
        Self { store, waker, pace, taken }
    }
}

#[async_trait]
impl BackgroundTask for TakeBack {
    fn name(&self) -> &'static str {
        "take_back"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let (mut sessions, mut ended) = (0, 0);
        loop {
            let batch = self.store.take_back(BATCH).await?;
            let taken = batch.changes.len() as u64;
            self.taken.add(taken, &[]);
            sessions += taken;
            ended += batch.ended;
            for change in batch.changes {
                self.waker.announce_change(change);
            }
            if !batch.more {
                break;
            }
        }
        // A worker that renews its lease moves this moment on; one that died does not.
        let next_end = self.store.next_lease_end().await?;
        let again_in = next_end.map(|left| left.saturating_add(MARGIN));
        Ok(Round { again_in, ..Round::of([("sessions", sessions), ("ended_runs", ended)]) })
    }
}
