//! Reclaims sessions from workers whose lease has expired, so that other workers continue their runs.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;
use remuda_telemetry::metrics::{self, Counter, registry::SESSIONS_TAKEN_BACK};

use super::background_task::{BackgroundTask, Round};
use crate::announcer::Announcer;

/// Sessions per transaction, which locks them all.
const BATCH: u32 = 200;
/// Clock skew: a lease that has expired by one clock may have a moment left by another.
const MARGIN: Duration = Duration::from_millis(20);

pub(super) struct ReclaimSessions {
    store: Arc<dyn Store>,
    announcer: Announcer,
    pace: Duration,
    reclaimed: Counter<u64>,
}

impl ReclaimSessions {
    pub(super) fn new(store: Arc<dyn Store>, announcer: Announcer, pace: Duration) -> Self {
        let reclaimed = metrics::counter(&SESSIONS_TAKEN_BACK);
        // Creates the metric before the first worker dies.
        reclaimed.add(0, &[]);
        Self { store, announcer, pace, reclaimed }
    }
}

#[async_trait]
impl BackgroundTask for ReclaimSessions {
    fn name(&self) -> &'static str {
        "take_back"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let (mut sessions, mut ended) = (0, 0);
        loop {
            let batch = self.store.reclaim_sessions(BATCH).await?;
            let reclaimed = batch.changes.len() as u64;
            self.reclaimed.add(reclaimed, &[]);
            sessions += reclaimed;
            ended += batch.ended;
            for change in batch.changes {
                self.announcer.announce_change(change);
            }
            if !batch.more {
                break;
            }
        }
        // A live worker renews its lease before that moment; a dead one does not.
        let next_end = self.store.next_lease_expiry().await?;
        let again_in = next_end.map(|left| left.saturating_add(MARGIN));
        Ok(Round { again_in, ..Round::of([("sessions", sessions), ("ended_runs", ended)]) })
    }
}
