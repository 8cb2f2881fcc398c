//! Looking at everything at once, often, without reading everything.

use std::{ops::Add, time::Duration};

use async_trait::async_trait;
use remuda_domain::{
    Pool, RunId, RunState, SessionId, TenantId, Timestamp, budget::Amount, error::Result, run::Parked,
    session::Owner, step::Step, worker::Worker,
};

use crate::PoolStats;

/// What people look at every second. However much waits and however much is over, a look reads a bounded number of rows.
#[async_trait]
pub trait Overview {
    /// Workers, pools, and what happened so far. Acts for the system, not for a tenant. Looks at `most_sessions` sessions with
    /// unfinished runs.
    async fn fleet_view(&self, most_sessions: u32) -> Result<FleetView>;
    /// The tenant's runs that have been executing for longest, as far as their workers have told with their last heartbeat.
    async fn longest_running(&self, tenant: TenantId, limit: u32) -> Result<Vec<Glance>>;
    /// The tenant's runs that nobody executes and that have waited for longest, among the first 500 of its unfinished ones.
    async fn longest_waiting(&self, tenant: TenantId, limit: u32) -> Result<Vec<Glance>>;
}

/// The whole installation at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetView {
    /// By the database's clock.
    pub at: Timestamp,
    /// Pools that have work or workers, by name.
    pub pools: Vec<PoolView>,
    /// There are more sessions with unfinished runs than were looked at: the numbers of the pools are at least what they say.
    pub at_least: bool,
    /// Those with a live lease, by pool and age, at most 1,000.
    pub workers: Vec<Worker>,
    pub counts: Counts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    pub stats: PoolStats,
    /// Sessions whose first unfinished run is parked.
    pub parked_sessions: i64,
    /// Of `stats.slots`, those in use at the last heartbeats.
    pub busy: u32,
    /// Workers that take nothing new; `stats` does not count them.
    pub draining: u32,
}

/// What happened in the whole installation since its beginning, as far as its processes have written it down: for rates.
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

/// A run as far as a list of many shows it: without its input and its outcomes, which may be large.
#[derive(Clone, Debug, PartialEq)]
pub struct Glance {
    pub run: RunId,
    pub session: SessionId,
    pub session_name: Option<String>,
    pub pool: Pool,
    /// `tools` or `message`.
    pub kind: &'static str,
    /// The agent that leads the session, if one does.
    pub agent: Option<String>,
    pub state: RunState,
    pub parked: Option<Parked>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub attempt: u32,
    pub lost_attempts: u32,
    /// Of its session.
    pub owner: Owner,
    /// Someone asked for it to stop.
    pub cancelling: bool,
    /// Unfinished runs ahead of it in its session.
    pub ahead: i64,
    pub spent: Amount,
    /// The newest of its steps that are written down, unless it is large.
    pub step: Option<Step>,
}

/// What the future of a run can be guessed from. Everything here is of the run's own tenant, but for counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// By the database's clock.
    pub now: Timestamp,
    /// The first unfinished run of its session, when that is another one.
    pub front: Option<Front>,
    /// Where its session stands, when that could be taken by a worker now.
    pub place: Option<Place>,
    /// Slots of the workers in the pool that take work.
    pub slots: u32,
    /// Workers of the pool that take nothing new.
    pub draining: u32,
    /// Since when a worker of the pool that takes work has told of a free slot with each of its heartbeats.
    pub slot_free_since: Option<Timestamp>,
    /// Of the worker that owns its session.
    pub heartbeat: Option<HeartbeatAge>,
    /// The newest of its steps, and how many have ended.
    pub step: Option<Step>,
    pub steps_ended: u32,
    /// How long the runs before it in its session worked, the newest first; at most 20.
    pub session_pace: Vec<Duration>,
    /// How long the newest runs of its tenant in the same pool worked; empty unless `session_pace` says too little.
    pub pool_pace: Vec<Duration>,
    /// When the newest of the runs before it in its session ended.
    pub previous_end: Option<Timestamp>,
}

/// The first unfinished run of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    pub run: RunId,
    pub state: RunState,
    pub parked: Option<Parked>,
    /// How long it has worked.
    pub worked: Duration,
}

/// A place among the sessions of a pool that a worker could take, as they were about a second ago. Workers take them about in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Those whose first run was submitted earlier.
    pub ahead: i64,
    /// Their unfinished runs, of each as many as a worker executes in a row.
    pub runs_ahead: i64,
    /// Not all were looked at.
    pub at_least: bool,
}

/// When a worker was last heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatAge {
    pub age: Duration,
    /// From that heartbeat on.
    pub lease: Duration,
    pub draining: bool,
}
