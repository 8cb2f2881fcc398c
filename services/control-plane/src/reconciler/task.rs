//! What a background task is.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{error::Result, task::TaskCounts};

/// A small job that looks at the world and mends it.
///
/// A round takes no input and is idempotent: it may come at any time, any number of times, and in two processes at once. So
/// whoever suspects that it is needed simply lets it run, and nothing depends on the suspicion.
#[async_trait]
pub(super) trait BackgroundTask: Send + Sync {
    /// A stable name: operators and dashboards know it.
    fn name(&self) -> &'static str;

    /// The pause after a round in which nothing calls for the next one.
    fn pace(&self) -> Duration;

    /// Looks once and mends what it finds.
    async fn round(&mut self) -> Result<Round>;

    /// Returns when there is a reason to look at once. Cancel-safe.
    async fn called(&self) {
        std::future::pending().await
    }
}

/// What a round did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    /// Empty when there was nothing to do.
    pub(super) counts: TaskCounts,
    /// When the next look is worth it, if that is sooner than the task's pace.
    pub(super) again_in: Option<Duration>,
}

impl Round {
    /// A round that did these things; those it did not do at all are left out.
    pub(super) fn of<const N: usize>(counts: [(&str, u64); N]) -> Self {
        let done = counts.into_iter().filter(|(_, count)| *count > 0);
        Self { counts: done.map(|(name, count)| (name.to_owned(), count)).collect(), again_in: None }
    }
}
