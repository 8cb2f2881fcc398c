//! Lets parked runs go on whose wait is over: whoever should have told them died before it could.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;

use super::task::{BackgroundTask, Round};
use crate::waker::Waker;

const BATCH: u32 = 200;

pub(super) struct ResumeReady {
    pub(super) store: Arc<dyn Store>,
    pub(super) waker: Waker,
    pub(super) pace: Duration,
}

#[async_trait]
impl BackgroundTask for ResumeReady {
    fn name(&self) -> &'static str {
        "resume_ready"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let mut resumed = 0;
        loop {
            let batch = self.store.resume_ready(BATCH).await?;
            resumed += batch.changes.len() as u64;
            for change in batch.changes {
                self.waker.announce_change(change);
            }
            if !batch.more {
                return Ok(Round::of([("resumed", resumed)]));
            }
        }
    }
}
