//! Expires approvals that were not decided in time, so that their runs resume.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::error::Result;
use remuda_store::Store;

use super::background_task::{BackgroundTask, Round};
use crate::announcer::Announcer;

const BATCH: u32 = 200;
/// Clock skew: an approval that has expired by one clock may have a moment left by another.
const MARGIN: Duration = Duration::from_millis(20);

pub(super) struct ExpireApprovals {
    pub(super) store: Arc<dyn Store>,
    pub(super) announcer: Announcer,
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
                self.announcer.announce_change(change);
            }
            if !batch.more {
                break;
            }
        }
        let next_end = self.store.next_approval_expiry().await?;
        let again_in = next_end.map(|left| left.saturating_add(MARGIN));
        Ok(Round { again_in, ..Round::of([("sessions", sessions)]) })
    }
}
