//! Retention: deleting old runs, sessions, workers and events.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{RunId, SessionId, error::Result};

use crate::TrimPage;

/// How long the row of a worker is kept that is gone and owns nothing.
pub const WORKER_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Deletes old data. These calls act for the system, scan a bounded number of rows, and delete in short transactions,
/// so they do not block other callers. They are safe at any time and from several processes at once.
///
/// Sequence numbers of runs and cursors of events are never reused.
#[async_trait]
pub trait Retention {
    /// Deletes runs that ended before the retention period, with all dependent rows except messages and events. A run
    /// is deleted together with its descendants, once all of them are old enough. It is kept while its idempotency key
    /// is valid and while a webhook still has to deliver its events. Scans `limit` runs in id order.
    async fn collect_runs(&self, sweep: Sweep<RunId>) -> Result<SweepResult<RunId>>;
    /// Deletes sessions without activity for that long, open or closed, with everything in them. A session is kept
    /// while it has unfinished runs or child sessions, while a parent run of its runs is unfinished, while an
    /// idempotency key of its runs is valid, and while a webhook still has to deliver its events. Scans `limit`
    /// sessions from the newest that is old enough to the oldest, so that children come before their parents.
    async fn collect_sessions(&self, sweep: Sweep<SessionId>) -> Result<SweepResult<SessionId>>;
    /// Deletes the rows of workers that have been gone for that long, own no session, and have no sandbox on record.
    async fn collect_workers(&self, gone_for: Duration, dry_run: bool) -> Result<u64>;
    /// Counts what repeated calls of [`Events::trim_events`](crate::Events::trim_events) would delete from these
    /// sessions.
    async fn count_old_events(
        &self,
        retention: Duration,
        after: Option<SessionId>,
        limit: u32,
    ) -> Result<TrimPage>;
}

/// One page of a retention sweep.
#[derive(Clone, Copy, Debug)]
pub struct Sweep<Id> {
    pub older_than: Duration,
    /// Where the previous page ended. `None` for the first page.
    pub after: Option<Id>,
    pub limit: u32,
    /// Count what would be deleted, and delete nothing.
    pub dry_run: bool,
}

/// The result of a [`Sweep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepResult<Id> {
    pub deleted: u64,
    /// Where to continue. `None` at the end of the sweep.
    pub next: Option<Id>,
}
