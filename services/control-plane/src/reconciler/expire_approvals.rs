//! Closes approvals that nobody decided in time, so that their runs go on.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;

use super::task::{BackgroundTask, Round};
use crate::waker::Waker;

const BATCH: u32 = 200;
/// A question that expires at this moment by one clock may have a moment left by another.
const MARGIN: Duration = Duration::from_millis(20);

pub(super) struct ExpireApprovals {
    pub(super) store: Arc<dyn Store>,
    pub(super) waker: Waker,
    pub(super) pace: Duration,
}

#[async_trait]
impl BackgroundTask for ExpireApprovals {
    fn name(&self) -> &'static str {
        "expire_approvals"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let mut sessions = 0;
        loop {
            let batch = self.store.expire_approvals(BATCH).await?;
            sessions += batch.changes.len() as u64;
            for change in batch.changes {
                self.waker.announce_change(change);
            }
            if !batch.more {
                break;
            }
        }
        let next_end = self.store.next_approval_end().await?;
        let again_in = next_end.map(|left| left.saturating_add(MARGIN));
        Ok(Round { again_in, ..Round::of([("sessions", sessions)]) })
    }
}
