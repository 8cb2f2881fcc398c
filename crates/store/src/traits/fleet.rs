//! The fleet: workers, leases, recovery scans and queue statistics.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    Pool, RunId, SessionId, TenantId, Timestamp, WorkerId,
    background_task::{TaskRound, TaskStatus},
    error::Result,
    run::ParkReason,
    worker::{Registration, Worker},
};
use uuid::Uuid;

use crate::{CancelledRuns, SessionChange};

/// Workers, leases, recovery scans and queue statistics. These calls act for the system, not for a tenant.
///
/// Scans take `after` and `limit`: they read `limit` rows with ids greater than `after`, in id order.
#[async_trait]
pub trait Fleet {
    /// Inserts a worker with a lease of this length.
    async fn register_worker(&self, worker: &Registration, lease: Duration) -> Result<()>;
    /// Renews the lease by the database's clock and returns the requests to the worker. Fails with `ownership_lost` if
    /// the lease has expired: the worker must then stop executing.
    async fn renew_lease(&self, beat: &Heartbeat) -> Result<HeartbeatResponse>;
    /// Ends the worker's lease immediately, after a clean shutdown.
    async fn retire_worker(&self, worker: WorkerId) -> Result<()>;
    /// Lists at most 1,000 workers, newest first.
    async fn list_workers(&self, include_gone: bool) -> Result<Vec<Worker>>;
    /// Asks a worker to take no new work. Fails with `worker_not_found`.
    async fn drain_worker(&self, worker: WorkerId) -> Result<Worker>;
    /// Reclaims at most `limit` sessions from workers whose lease has expired. Their current runs go back to the head
    /// of the session's queue, or end if they were cancelled, have used up their time or have no attempts left.
    async fn reclaim_sessions(&self, limit: u32) -> Result<Reclaimed>;
    /// Resumes parked runs whose wait is satisfied but that were not resumed, for example after a crash. Scans parked
    /// runs.
    async fn resume_ready(&self, after: Option<RunId>, limit: u32) -> Result<ScanPage<Vec<SessionChange>>>;
    /// Requests the cancellation of runs whose parent has ended. Scans unfinished runs that have a parent.
    async fn stop_orphans(&self, after: Option<RunId>, limit: u32) -> Result<ScanPage<CancelledRuns>>;
    /// Expires approvals past their deadline and resumes their runs.
    async fn expire_approvals(&self, limit: u32) -> Result<Reclaimed>;
    /// Time until the next pending approval expires.
    async fn next_approval_expiry(&self) -> Result<Option<Duration>>;
    /// Time until the earliest worker lease could expire.
    async fn next_lease_expiry(&self) -> Result<Option<Duration>>;
    /// Ends every lease, of workers and of leaders, and returns the number of workers that had one. Only for the
    /// embedded mode, where the lock on the data directory proves that no other process is alive.
    async fn expire_all_leases(&self) -> Result<u64>;
    /// Scans for sessions with a run that could start and without a live owner.
    async fn runnable_sessions(&self, after: Option<SessionId>, limit: u32) -> Result<Vec<RunnableSession>>;
    /// Scans sessions with work for lost grants: the owner is alive, the grant is at least `granted_ago` old, and the
    /// owner's last heartbeat does not name the run. This is a heuristic: the caller notifies the owner, which checks
    /// whether it has the session.
    async fn lost_grants(
        &self,
        after: Option<SessionId>,
        limit: u32,
        granted_ago: Duration,
    ) -> Result<LostGrantPage>;
    /// Counts the sessions that should have a token: runnable ones and those that a worker executes.
    async fn count_sessions_with_work(&self) -> Result<u64>;
    /// Reads the statistics of every pool. Expensive; see [`Fleet::queue_depths`].
    async fn queue_stats(&self) -> Result<Vec<PoolStats>>;
    /// Reads the queue depths of pools that have work or workers. Cheaper than [`Fleet::queue_stats`]: it reads no
    /// finished runs, and of each session's queue only the first run.
    async fn queue_depths(&self) -> Result<Vec<PoolDepth>>;
    /// Counts parked runs by reason. Reasons without runs are left out.
    async fn count_parked(&self) -> Result<Vec<(ParkReason, u64)>>;
    /// Acquires or renews a named leader lease and returns whether `holder` has it: one control plane leads at a time.
    async fn acquire_leader_lease(&self, name: &str, holder: &str, lease: Duration) -> Result<bool>;
    /// Deletes expired idempotency keys and returns their number.
    async fn delete_expired_keys(&self) -> Result<u64>;
    /// Records the last round of a background task, for [`Fleet::list_tasks`].
    async fn record_task(&self, round: &TaskRound) -> Result<()>;
    /// Lists background tasks by name.
    async fn list_tasks(&self) -> Result<Vec<TaskStatus>>;
    /// Returns once the database has answered. Fails with `storage_full` from a write that found the disk full until there
    /// is room again.
    async fn ping(&self) -> Result<()>;
}

/// The result of a recovery scan.
#[derive(Clone, Debug, Default)]
pub struct Reclaimed {
    pub changes: Vec<SessionChange>,
    /// Number of runs that ended.
    pub ended: u64,
    /// The limit was reached; call again.
    pub more: bool,
}

/// One page of a scan over runs.
#[derive(Clone, Debug)]
pub struct ScanPage<T> {
    /// What was done for the runs of this page.
    pub result: T,
    /// The last scanned run, to continue after. `None` at the end of the scan.
    pub next: Option<RunId>,
}

impl<T> ScanPage<T> {
    /// The page that scanned these runs, in id order, with this limit.
    pub(crate) fn new(result: T, scanned: impl ExactSizeIterator<Item = Uuid>, limit: u32) -> Self {
        let is_full = scanned.len() >= limit as usize;
        Self { result, next: scanned.last().filter(|_| is_full).map(RunId::from_uuid) }
    }
}

/// A worker's lease renewal.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    pub worker: WorkerId,
    pub lease: Duration,
    /// The runs that the worker executes. The response says which of them to cancel.
    pub running: Vec<RunId>,
    /// How long each of them was executed so far, in the same order, in all attempts: if the worker is lost, this is what
    /// counts.
    pub worked: Vec<Duration>,
}

/// Requests to a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatResponse {
    /// Runs to cancel.
    pub cancel: Vec<RunId>,
    /// Take no new work.
    pub drain: bool,
}

/// A session with a run that could start and without a live owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnableSession {
    pub tenant: TenantId,
    pub session: SessionId,
    pub pool: Pool,
}

/// A session whose grant may not have reached its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostGrant {
    pub tenant: TenantId,
    pub session: SessionId,
    pub owner: WorkerId,
}

/// One page of the scan for lost grants.
#[derive(Clone, Debug)]
pub struct LostGrantPage {
    pub sessions: Vec<LostGrant>,
    /// The last scanned session, to continue after. `None` at the end of the scan.
    pub next: Option<SessionId>,
}

/// The queue of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDepth {
    pub pool: Pool,
    /// Sessions with a run that could start and without a live owner.
    pub runnable_sessions: u64,
    pub running_sessions: u64,
    /// Unfinished runs that neither execute nor are parked.
    pub queued_runs: u64,
    /// The earliest time since when a runnable session has waited for a worker, as far as is known. Time spent parked
    /// does not count; time spent executing before does.
    pub oldest_runnable_at: Option<Timestamp>,
}

/// The queue and the capacity of a pool.
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
