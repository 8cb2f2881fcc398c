//! Deletes events of finished runs whose retention time is over.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::{SessionId, error::Result};
use remuda_store::Store;

use super::background_task::{BackgroundTask, Round};

/// Not urgent.
const PACE: Duration = Duration::from_secs(60);
/// Pause between rounds while there is more to scan.
const WORKING_PACE: Duration = Duration::from_secs(1);
/// Sessions per page, and pages per round.
const PAGE: u32 = 200;
const PAGES: u32 = 10;

pub(super) struct TrimEvents {
    pub(super) store: Arc<dyn Store>,
    /// Zero keeps events for ever.
    pub(super) kept: Duration,
    /// The last session of the previous page. `None` at the beginning.
    pub(super) after: Option<SessionId>,
}

#[async_trait]
impl BackgroundTask for TrimEvents {
    fn name(&self) -> &'static str {
        "trim_events"
    }

    fn pace(&self) -> Duration {
        PACE
    }

    async fn round(&mut self) -> Result<Round> {
        if self.kept.is_zero() {
            return Ok(Round::default());
        }
        let (mut sessions, mut deleted) = (0, 0);
        for _ in 0..PAGES {
            let trimmed = self.store.trim_events(self.kept, self.after, PAGE).await?;
            self.after = trimmed.next;
            sessions += trimmed.sessions;
            deleted += trimmed.rows;
            if self.after.is_none() {
                break;
            }
        }
        let round = Round::of([("sessions", sessions), ("rows_deleted", deleted)]);
        Ok(Round { again_in: self.after.map(|_| WORKING_PACE), ..round })
    }
}
