//! The interface of background tasks.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{background_task::TaskCounts, error::Result};

/// A small job that compares the stored state with reality and repairs differences.
///
/// A round takes no input and is idempotent: it may run at any time, any number of times, and in two processes at once.
/// So a suspicion is reason enough to trigger it.
#[async_trait]
pub(super) trait BackgroundTask: Send + Sync {
    /// A stable name: it is stored, and operators and dashboards use it.
    fn name(&self) -> &'static str;

    /// The pause between rounds if nothing triggers one earlier.
    fn pace(&self) -> Duration;

    /// Scans once and repairs what it finds.
    async fn round(&mut self) -> Result<Round>;

    /// Returns when there is a reason for a round before the pace says so. Cancel-safe.
    async fn triggered(&self) {
        std::future::pending().await
    }
}

/// The result of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    /// Repaired items by name. Empty if there was nothing to do.
    pub(super) counts: TaskCounts,
    /// When the next round is due, if that is sooner than the task's pace.
    pub(super) again_in: Option<Duration>,
}

impl Round {
    /// A round with these counts; zeros are left out.
    pub(super) fn of<const N: usize>(counts: [(&str, u64); N]) -> Self {
        let done = counts.into_iter().filter(|(_, count)| *count > 0);
        Self { counts: done.map(|(name, count)| (name.to_owned(), count)).collect(), again_in: None }
    }
}
