//! Ends runs that time out while no worker executes them.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;

use super::background_task::{BackgroundTask, Round};
use crate::announcer::Announcer;

const BATCH: u32 = 200;

pub(super) struct EndOverdue {
    pub(super) store: Arc<dyn Store>,
    pub(super) announcer: Announcer,
    pub(super) pace: Duration,
}

#[async_trait]
impl BackgroundTask for EndOverdue {
    fn name(&self) -> &'static str {
        "end_overdue"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let mut ended = 0;
        loop {
            let batch = self.store.end_overdue(BATCH).await?;
            ended += batch.ended;
            for change in batch.changes {
                self.announcer.announce_change(change);
            }
            if !batch.more {
                return Ok(Round::of([("ended_runs", ended)]));
            }
        }
    }
}
