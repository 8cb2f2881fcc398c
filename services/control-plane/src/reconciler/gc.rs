//! Deletes runs, sessions and rows of workers whose retention time is over.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use remuda_domain::{RunId, SessionId, error::Result};
use remuda_store::{Store, Sweep, WORKER_RETENTION};

use super::{
    ReconcilerOptions,
    background_task::{BackgroundTask, Round},
};

/// Not urgent.
const PACE: Duration = Duration::from_secs(60);
/// Pause between rounds while there is more to scan. It leaves time on the database for others.
const WORKING_PACE: Duration = Duration::from_secs(1);
/// Page sizes, and pages per round. Each session is deleted in a transaction of its own.
const RUNS: u32 = 200;
const SESSIONS: u32 = 50;
const PAGES: u32 = 10;

pub(super) struct Gc {
    store: Arc<dyn Store>,
    /// Zero keeps runs, or sessions, for ever.
    runs_kept: Duration,
    sessions_kept: Duration,
    /// The last row of the previous page. `None` at the beginning.
    runs_after: Option<RunId>,
    sessions_after: Option<SessionId>,
}

impl Gc {
    pub(super) fn new(store: Arc<dyn Store>, options: &ReconcilerOptions) -> Self {
        let ReconcilerOptions { runs_kept, sessions_kept, .. } = *options;
        Self { store, runs_kept, sessions_kept, runs_after: None, sessions_after: None }
    }

    async fn runs(&mut self) -> Result<u64> {
        let mut deleted = 0;
        if self.runs_kept.is_zero() {
            return Ok(deleted);
        }
        for _ in 0..PAGES {
            let older_than = self.runs_kept;
            let sweep = Sweep { older_than, after: self.runs_after, limit: RUNS, dry_run: false };
            let done = self.store.collect_runs(sweep).await?;
            deleted += done.deleted;
            self.runs_after = done.next;
            if self.runs_after.is_none() {
                break;
            }
        }
        Ok(deleted)
    }

    async fn sessions(&mut self) -> Result<u64> {
        let mut deleted = 0;
        if self.sessions_kept.is_zero() {
            return Ok(deleted);
        }
        for _ in 0..PAGES {
            let older_than = self.sessions_kept;
            let sweep = Sweep { older_than, after: self.sessions_after, limit: SESSIONS, dry_run: false };
            let done = self.store.collect_sessions(sweep).await?;
            deleted += done.deleted;
            self.sessions_after = done.next;
            if self.sessions_after.is_none() {
                break;
            }
        }
        Ok(deleted)
    }
}

#[async_trait]
impl BackgroundTask for Gc {
    fn name(&self) -> &'static str {
        "gc"
    }

    fn pace(&self) -> Duration {
        PACE
    }

    async fn round(&mut self) -> Result<Round> {
        let (runs, sessions) = (self.runs().await?, self.sessions().await?);
        let workers = self.store.collect_workers(WORKER_RETENTION, false).await?;
        let round =
            Round::of([("runs_deleted", runs), ("sessions_deleted", sessions), ("workers_deleted", workers)]);
        let has_more = self.runs_after.is_some() || self.sessions_after.is_some();
        Ok(Round { again_in: has_more.then_some(WORKING_PACE), ..round })
    }
}
