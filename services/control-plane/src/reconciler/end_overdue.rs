//! Ends runs whose time is over while nobody executes them: no worker is there to notice.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;

use super::task::{BackgroundTask, Round};
use crate::waker::Waker;

const BATCH: u32 = 200;

pub(super) struct EndOverdue {
    pub(super) store: Arc<dyn Store>,
    pub(super) waker: Waker,
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
                self.waker.announce_change(change);
            }
            if !batch.more {
                return Ok(Round::of([("ended_runs", ended)]));
            }
        }
    }
}
