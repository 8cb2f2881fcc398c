//! Cheap summaries for dashboards: pools, workers, counters, longest runs, and estimate inputs.

use std::{ops::Add, time::Duration};

use async_trait::async_trait;
use remuda_domain::{
    Pool, RunId, RunState, SessionId, TenantId, Timestamp, budget::Amount, error::Result, run::Parked,
    session::Owner, step::Step, worker::Worker,
};

use crate::PoolStats;

/// Summaries that people refresh every second. Each call reads a bounded number of rows, however many runs are queued
/// or finished.
#[async_trait]
pub trait Overview {
    /// Reads workers, pools and counters. Scans at most `max_sessions` sessions with unfinished runs. Acts for the
    /// system, not for a tenant.
    async fn fleet_view(&self, max_sessions: u32) -> Result<FleetView>;
    /// Reads the tenant's runs that have executed for longest, as named in the last heartbeats of their workers.
    async fn longest_running(&self, tenant: TenantId, limit: u32) -> Result<Vec<RunSummary>>;
    /// Reads the tenant's unfinished runs that no worker executes and that have waited for longest, among its 500
    /// oldest unfinished runs.
    async fn longest_waiting(&self, tenant: TenantId, limit: u32) -> Result<Vec<RunSummary>>;
}

/// A snapshot of the whole installation.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetView {
    /// By the database's clock.
    pub at: Timestamp,
    /// Pools that have work or workers, by name.
    pub pools: Vec<PoolView>,
    /// The scan hit its limit, so the pools' numbers are lower bounds.
    pub at_least: bool,
    /// Workers with a live lease, by pool and age, at most 1,000.
    pub workers: Vec<Worker>,
    pub counts: Counts,
}

/// A pool in a [`FleetView`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    pub stats: PoolStats,
    /// Sessions whose first unfinished run is parked.
    pub parked_sessions: i64,
    /// How many of `stats.slots` were in use at the last heartbeats.
    pub busy: u32,
    /// Draining workers; `stats` does not count them.
    pub draining: u32,
}

/// Counters of the whole installation since its creation, for rates. A killed process loses its last seconds of counts,
/// so do not bill from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub submitted: u64,
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub timed_out: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Millionths of a dollar.
    pub cost_micros: u64,
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            submitted: self.submitted.saturating_add(other.submitted),
            completed: self.completed.saturating_add(other.completed),
            failed: self.failed.saturating_add(other.failed),
            cancelled: self.cancelled.saturating_add(other.cancelled),
            timed_out: self.timed_out.saturating_add(other.timed_out),
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cost_micros: self.cost_micros.saturating_add(other.cost_micros),
        }
    }
}

/// A run as lists show it: without its input and its outcomes, which may be large.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSummary {
    pub run: RunId,
    pub session: SessionId,
    pub session_name: Option<String>,
    pub pool: Pool,
    /// `tools` or `message`.
    pub kind: &'static str,
    /// The active agent of the session, if any.
    pub agent: Option<String>,
    pub state: RunState,
    pub parked: Option<Parked>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub attempt: u32,
    pub lost_attempts: u32,
    /// The owner of its session.
    pub owner: Owner,
    /// Its cancellation was requested.
    pub cancelling: bool,
    /// Unfinished runs ahead of it in its session.
    pub ahead: i64,
    pub spent: Amount,
    /// Its newest committed step, unless that is large.
    pub step: Option<Step>,
}

/// The inputs for estimating when a run starts and ends. All data belongs to the run's own tenant, except counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EstimateInputs {
    /// By the database's clock.
    pub now: Timestamp,
    /// The first unfinished run of its session, if that is another run.
    pub front: Option<FirstUnfinishedRun>,
    /// The queue position of its session, if the session is runnable.
    pub place: Option<QueuePosition>,
    /// Slots of the pool's active workers.
    pub slots: u32,
    /// Draining workers of the pool.
    pub draining: u32,
    /// Since when an active worker of the pool has reported a free slot with every heartbeat.
    pub slot_free_since: Option<Timestamp>,
    /// The last heartbeat of its session's owner.
    pub heartbeat: Option<HeartbeatAge>,
    /// Its unfinished step, or else its newest one.
    pub step: Option<Step>,
    /// Number of finished steps.
    pub steps_ended: u32,
    /// Execution times of the runs before it in its session, newest first; at most 20.
    pub session_pace: Vec<Duration>,
    /// Execution times of the tenant's newest runs in the same pool; only loaded if `session_pace` has too few samples.
    pub pool_pace: Vec<Duration>,
    /// When the newest run before it in its session ended.
    pub previous_end: Option<Timestamp>,
}

/// The first unfinished run of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstUnfinishedRun {
    pub run: RunId,
    pub state: RunState,
    pub parked: Option<Parked>,
    /// Its execution time so far.
    pub worked: Duration,
}

/// A position among the runnable sessions of a pool, about a second old. Workers claim sessions approximately in this
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    /// Sessions whose first run was submitted earlier.
    pub ahead: i64,
    /// Their unfinished runs; per session at most as many as a worker executes in a row.
    pub runs_ahead: i64,
    /// The scan hit its limit, so the numbers are lower bounds.
    pub at_least: bool,
}

/// The age of a worker's last heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatAge {
    pub age: Duration,
    /// Lease duration from that heartbeat on.
    pub lease: Duration,
    pub draining: bool,
}
