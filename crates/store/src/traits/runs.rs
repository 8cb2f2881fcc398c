//! Runs as callers see them.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    Appended, PlaneId, Pool, Run, RunId, RunInput, RunState, SessionId, TenantId, WorkerId,
    budget::{Amount, Limit},
    error::Result,
    page::{Page, PageRequest},
    run::IfBusy,
    session::Head,
    step::Step,
};

use crate::{Lost, Outlook, SessionChange};

/// Runs as callers see them.
#[async_trait]
pub trait Runs {
    /// Accepts a run. Concurrent calls are committed together.
    async fn submit(&self, run: NewRun) -> Result<Submitted>;
    async fn get_run(&self, tenant: TenantId, run: RunId) -> Result<Run>;
    /// Newest first.
    async fn list_runs(&self, tenant: TenantId, filter: &RunFilter, page: &PageRequest) -> Result<Page<Run>>;
    /// The unfinished runs of a session, in the order of execution.
    async fn list_queue(&self, tenant: TenantId, session: SessionId, page: &PageRequest)
    -> Result<Page<Run>>;
    async fn list_steps(&self, tenant: TenantId, run: RunId) -> Result<Vec<Step>>;
    /// Asks for a run to stop, and all below it: one that nobody executes (waiting, parked, or its worker is lost) ends at
    /// once, an executing one is marked for its owner.
    async fn request_cancel(&self, tenant: TenantId, run: RunId, reason: &str) -> Result<Cancelled>;
    /// The same for every unfinished run of a session and the runs below these, or of the whole tree of sessions below it.
    async fn cancel_session(
        &self,
        tenant: TenantId,
        session: SessionId,
        reach: Reach,
        reason: &str,
    ) -> Result<CancelledRuns>;
    /// Lets a parked run go on. Fails with `not_parked`.
    async fn resume_run(&self, tenant: TenantId, run: RunId) -> Result<SessionChange>;
    /// The run with the state of its session and its place in line, read at one moment.
    async fn situation(&self, tenant: TenantId, run: RunId) -> Result<Situation>;
}

#[derive(Clone, Debug)]
pub struct NewRun {
    pub id: RunId,
    pub tenant: TenantId,
    pub session: SessionId,
    pub input: RunInput,
    pub timeout: Duration,
    pub if_busy: IfBusy,
    pub idempotency: Option<Idempotency>,
    pub traceparent: Option<String>,
    /// How much the run and those below it may spend.
    pub budget: Option<Limit>,
    /// Whose caller waits for its end.
    pub awaited_by: Option<PlaneId>,
}

/// Makes a retried submit return the first one's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    pub key: String,
    /// Hash of everything else in the request: the same key with another request is a conflict.
    pub request_hash: [u8; 32],
}

#[derive(Clone, Debug)]
pub struct Submitted {
    pub run: Run,
    pub pool: Pool,
    pub deduplicated: bool,
    /// Nobody owns the session, so a worker must be woken. An owner finds the run by itself: its release and this submit
    /// are ordered by the session's lock.
    pub wake: bool,
    pub events: Appended,
    /// Runs that `if_busy = interrupt` cancelled or asked to stop.
    pub interrupted: Vec<RunId>,
    /// Whom to tell that its current run should stop.
    pub signal: Option<(WorkerId, RunId)>,
    /// The attempt at an interrupted run that was lost with its worker, if one was.
    pub lost: Option<Lost>,
    /// What became of the runs below the interrupted ones, and of those that waited for them.
    pub below: CancelledRuns,
}

#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    pub session: Option<SessionId>,
    /// Empty means every state.
    pub states: Vec<RunState>,
}

#[derive(Clone, Debug)]
pub struct Cancelled {
    pub run: Run,
    pub already_finished: bool,
    pub change: SessionChange,
    /// The owner to tell, when the run executes.
    pub signal: Option<WorkerId>,
    /// What became of the runs below it, and of the one that waited for it.
    pub below: CancelledRuns,
}

/// How far a request about a session goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Session,
    /// The session and all sessions below it.
    Tree,
}

/// What cancelling many runs did.
#[derive(Clone, Debug, Default)]
pub struct CancelledRuns {
    /// Runs that are over now.
    pub ended: Vec<RunId>,
    /// Runs that execute and whose owner has to be told.
    pub requested: Vec<CancelSignal>,
    pub changes: Vec<SessionChange>,
}

/// Whom to tell that a run should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelSignal {
    pub worker: WorkerId,
    pub session: SessionId,
    pub run: RunId,
}

/// What `explain` looks at.
#[derive(Clone, Debug)]
pub struct Situation {
    pub run: Run,
    pub head: Head,
    /// Unfinished runs ahead of it in its session.
    pub ahead: i64,
    /// The run directly ahead, if any.
    pub blocked_by: Option<RunId>,
    /// Workers of the session's pool with a live lease that take work.
    pub workers: u32,
    /// Their free slots at the last heartbeats.
    pub free_slots: u32,
    /// What a run that waits for its budget could not reserve.
    pub needed: Option<Amount>,
    pub outlook: Outlook,
}
