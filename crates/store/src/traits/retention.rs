//! Deleting what is over for long.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{RunId, SessionId, error::Result};

use crate::Trimmed;

/// How long the row of a worker stays that is gone and owns nothing.
pub const WORKERS_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Deleting what is over for long. These calls act for the system, look at a bounded number of rows, and change what they delete in short
/// transactions of their own: nobody else waits for them. They may be made at any time, and from two places at once.
///
/// What stays is as it was: places of runs and cursors of events that were given once are never given again.
#[async_trait]
pub trait Retention {
    /// Deletes runs that ended longer ago than that, with all that hangs on them but what was said and the events that are still kept. A run
    /// goes together with those below it, once the last of them is old enough. It stays while its idempotency key holds, and while a
    /// webhook has still to be told of it. Looks at `limit` runs in the order of their ids.
    async fn collect_runs(&self, sweep: Sweep<RunId>) -> Result<Collected<RunId>>;
    /// Deletes sessions, open or closed, in which nothing has happened for that long, with everything in them. A session stays while it has
    /// unfinished runs or sessions below it, while a run that it works for is unfinished, while a key of its runs holds, and
    /// while a webhook has still to be told of it. Looks at `limit` sessions, from the newest that is old enough to the oldest:
    /// so those below come before those above.
    async fn collect_sessions(&self, sweep: Sweep<SessionId>) -> Result<Collected<SessionId>>;
    /// Deletes the rows of workers that are gone for that long, whose sessions are in other hands, and who left no sandbox behind.
    async fn collect_workers(&self, gone_for: Duration, dry_run: bool) -> Result<u64>;
    /// What [`Events::trim_events`](crate::Events::trim_events) would delete of these sessions, all in one go.
    async fn count_old_events(&self, kept: Duration, after: Option<SessionId>, limit: u32)
    -> Result<Trimmed>;
}

/// A look at some of many, to delete what is old among them.
#[derive(Clone, Copy, Debug)]
pub struct Sweep<Id> {
    pub older_than: Duration,
    /// Where the look before this one ended. Nothing at the beginning.
    pub after: Option<Id>,
    pub limit: u32,
    /// Counts what would be deleted, and deletes nothing.
    pub dry_run: bool,
}

/// What a [`Sweep`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collected<Id> {
    pub deleted: u64,
    /// Where to go on. Nothing when there is nothing old behind it.
    pub next: Option<Id>,
}
