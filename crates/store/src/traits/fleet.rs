//! The fleet itself.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    Pool, RunId, SessionId, TenantId, Timestamp, WorkerId,
    error::Result,
    run::ParkReason,
    task::{TaskRound, TaskStatus},
    worker::{Registration, Worker},
};
use uuid::Uuid;

use crate::{CancelledRuns, SessionChange};

/// The fleet itself: workers, leases, and what must be woken. These calls act for the system, not for a tenant.
#[async_trait]
pub trait Fleet {
    async fn register_worker(&self, worker: &Registration, lease: Duration) -> Result<()>;
    /// Renews the lease by the database's clock and reads what the store wants of the worker. Fails with
    /// `ownership_lost` when the lease has already ended: whoever lost it must not go on.
    async fn renew_lease(&self, beat: &Heartbeat) -> Result<Orders>;
    /// Ends the worker's lease at once: it stopped cleanly and owns nothing.
    async fn retire_worker(&self, worker: WorkerId) -> Result<()>;
    async fn list_workers(&self, include_gone: bool) -> Result<Vec<Worker>>;
    async fn drain_worker(&self, worker: WorkerId) -> Result<Worker>;
    /// Takes sessions back from workers whose lease ended, at most `limit` at once. Their runs wait for the next owner, or
    /// end: cancelled, out of time, or out of attempts.
    async fn take_back(&self, limit: u32) -> Result<TakenBack>;
    /// Ends runs that started, that nobody executes now, and whose time is over.
    async fn end_overdue(&self, limit: u32) -> Result<TakenBack>;
    /// Lets parked runs go on whose wait is over and whom nobody told. Looks at `limit` parked ones, after `after` in id order.
    async fn resume_ready(&self, after: Option<RunId>, limit: u32) -> Result<Swept<Vec<SessionChange>>>;
    /// Asks for runs to stop whose parent is over. Looks at `limit` unfinished ones with a parent, after `after` in id order.
    async fn stop_orphans(&self, after: Option<RunId>, limit: u32) -> Result<Swept<CancelledRuns>>;
    /// Closes approvals that nobody decided in time, and lets their runs go on.
    async fn expire_approvals(&self, limit: u32) -> Result<TakenBack>;
    /// How long until the next approval expires.
    async fn next_approval_end(&self) -> Result<Option<Duration>>;
    /// How long until the next lease of a worker could end.
    async fn next_lease_end(&self) -> Result<Option<Duration>>;
    /// Ends every lease, of workers and of leaders, and says how many workers had one. Only for the embedded mode, where a
    /// lock on the data directory proves that nobody lives.
    async fn expire_all_leases(&self) -> Result<u64>;
    /// Sessions with a run that could start and no live owner, after `after` in id order.
    async fn runnable_sessions(&self, after: Option<SessionId>, limit: u32) -> Result<Vec<Runnable>>;
    /// Sessions that live workers own and do not seem to have in hand: their last heartbeats do not name the runs that were granted at least so
    /// long ago. Looks at `limit` sessions with work, after `after` in id order. A guess: such an owner is asked to look, and knows better.
    async fn unheld_sessions(
        &self,
        after: Option<SessionId>,
        limit: u32,
        granted_ago: Duration,
    ) -> Result<UnheldPage>;
    /// How many sessions should have a token: those that could start, and those that a worker works on.
    async fn count_sessions_with_work(&self) -> Result<u64>;
    async fn queue_stats(&self) -> Result<Vec<PoolStats>>;
    /// What waits and runs in pools that have any of it, or workers. Cheap beside [`Fleet::queue_stats`]: it looks at nothing
    /// that is over, and of what waits in a line at its first alone.
    async fn queue_depths(&self) -> Result<Vec<PoolDepth>>;
    /// How many runs wait for something else than a worker, by what that is. Reasons that no run has are left out.
    async fn count_parked(&self) -> Result<Vec<(ParkReason, u64)>>;
    /// Takes or renews a named lease of the control planes: one of them leads at a time.
    async fn lead(&self, name: &str, holder: &str, lease: Duration) -> Result<bool>;
    /// Deletes idempotency keys past their time. Returns how many.
    async fn delete_expired_keys(&self) -> Result<u64>;
    /// Notes what a round of a background task did, for `list_tasks`.
    async fn record_task(&self, round: &TaskRound) -> Result<()>;
    /// By name.
    async fn list_tasks(&self) -> Result<Vec<TaskStatus>>;
    /// Answers when the store does.
    async fn ping(&self) -> Result<()>;
}

/// What was taken back, or ended, on behalf of owners that are gone.
#[derive(Clone, Debug, Default)]
pub struct TakenBack {
    pub changes: Vec<SessionChange>,
    /// Runs that ended by it.
    pub ended: u64,
    /// There may be more to do at once.
    pub more: bool,
}

/// What a look at some of many did.
#[derive(Clone, Debug)]
pub struct Swept<T> {
    pub done: T,
    /// The last one that was looked at, to go on after. Nothing when there was none behind it.
    pub next: Option<RunId>,
}

impl<T> Swept<T> {
    /// After a look at these, in order, of which there could have been `limit`.
    pub(crate) fn page(done: T, looked_at: impl ExactSizeIterator<Item = Uuid>, limit: u32) -> Self {
        let is_full = looked_at.len() >= limit as usize;
        Self { done, next: looked_at.last().filter(|_| is_full).map(RunId::from_uuid) }
    }
}

#[derive(Clone, Debug)]
pub struct Heartbeat {
    pub worker: WorkerId,
    pub lease: Duration,
    /// The runs it executes, to learn which of them should stop.
    pub running: Vec<RunId>,
}

/// What the store wants of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    pub cancel: Vec<RunId>,
    pub drain: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runnable {
    pub tenant: TenantId,
    pub session: SessionId,
    pub pool: Pool,
}

/// A session that its owner may not know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unheld {
    pub tenant: TenantId,
    pub session: SessionId,
    pub owner: WorkerId,
}

#[derive(Clone, Debug)]
pub struct UnheldPage {
    pub sessions: Vec<Unheld>,
    /// The last session that was looked at, to go on after. Nothing when there was none behind it.
    pub next: Option<SessionId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDepth {
    pub pool: Pool,
    /// With a run that could start, and no live owner.
    pub runnable_sessions: u64,
    pub running_sessions: u64,
    /// Those that neither run nor are parked.
    pub queued_runs: u64,
    /// Since when the first of them waits for a worker, as far as is known: what it waited for otherwise does not count, what was
    /// done of it does.
    pub oldest_runnable_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStats {
    pub pool: Pool,
    pub runnable_sessions: i64,
    pub running_sessions: i64,
    /// As in [`PoolDepth`].
    pub queued_runs: i64,
    pub workers: u32,
    pub slots: u32,
    pub oldest_runnable_at: Option<Timestamp>,
}
