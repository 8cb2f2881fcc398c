//! Runs as API callers use them: submit, read, cancel, resume.

use async_trait::async_trait;
use remuda_domain::{
    Labels, Run, RunId, RunState, SessionId, TenantId, WorkerId,
    budget::{Amount, Limit},
    error::Result,
    page::{Page, PageRequest},
    run::IfBusy,
    session::Head,
    step::Step,
};

use crate::{EstimateInputs, SessionChange};

/// Submits, reads, cancels and resumes runs.
#[async_trait]
pub trait Runs {
    /// Accepts a run. Concurrent calls share a transaction. With an idempotency key that was used before, returns the
    /// first run. The same transaction may grant the session to a worker with a free
    /// [slot](crate::Options::slots).
    async fn submit(&self, run: NewRun) -> Result<Submitted>;
    /// Reads a run with its outcomes. Fails with `run_not_found`.
    async fn get_run(&self, tenant: TenantId, run: RunId) -> Result<Run>;
    /// Lists runs without their outcomes, newest first.
    async fn list_runs(&self, tenant: TenantId, filter: &RunFilter, page: &PageRequest) -> Result<Page<Run>>;
    /// Lists the unfinished runs of a session, in execution order.
    async fn list_queue(&self, tenant: TenantId, session: SessionId, page: &PageRequest)
    -> Result<Page<Run>>;
    /// Lists the committed steps of a run, in order.
    async fn list_steps(&self, tenant: TenantId, run: RunId) -> Result<Vec<Step>>;
    /// Cancels a run and its descendants. A run that no live worker executes (queued, parked, or lost with its worker)
    /// ends immediately; an executing run is marked, and its owner has to be notified.
    async fn request_cancel(&self, tenant: TenantId, run: RunId, reason: &str) -> Result<Cancelled>;
    /// Cancels every unfinished run of a session and the descendants of these runs, or of the whole tree of sessions
    /// below it.
    async fn cancel_session(
        &self,
        tenant: TenantId,
        session: SessionId,
        scope: CancelScope,
        reason: &str,
    ) -> Result<CancelledRuns>;
    /// Resumes a parked run, whatever it waits for. Fails with `not_parked`.
    async fn resume_run(&self, tenant: TenantId, run: RunId) -> Result<SessionChange>;
    /// Reads a run, the state of its session and its queue position in one snapshot, for `explain`.
    async fn diagnostics(&self, tenant: TenantId, run: RunId) -> Result<RunDiagnostics>;
}

/// A run to submit.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// As [`Run::queued`] makes it, with the fields that the caller sets. The store sets its key and its budget.
    pub run: Run,
    pub if_busy: IfBusy,
    pub idempotency: Option<Idempotency>,
    /// How much the run and its descendants may spend.
    pub budget: Option<Limit>,
}

impl From<Run> for NewRun {
    fn from(run: Run) -> Self {
        Self { run, if_busy: IfBusy::Enqueue, idempotency: None, budget: None }
    }
}

/// Makes a retried submit return the run of the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    pub key: String,
    /// Hash of the rest of the request: the same key with another request is a conflict.
    pub request_hash: [u8; 32],
}

/// The result of a submit.
#[derive(Clone, Debug)]
pub struct Submitted {
    pub run: Run,
    /// An earlier submit with the same key created the run.
    pub deduplicated: bool,
    /// What it did to the session. If the session has an owner, that owner finds the run without a token: its release
    /// and this submit are ordered by the session's lock.
    pub change: SessionChange,
    /// Runs that `if_busy = interrupt` ended or marked for cancellation.
    pub interrupted: Vec<RunId>,
    /// The worker to notify, and the run that it should cancel.
    pub signal: Option<(WorkerId, RunId)>,
    /// What happened to the descendants of the interrupted runs, and to runs that waited for them.
    pub descendants: CancelledRuns,
}

/// Selects runs; `None` matches everything.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    pub session: Option<SessionId>,
    /// Empty means every state.
    pub states: Vec<RunState>,
    /// Labels that a run must have, all of them.
    pub labels: Labels,
}

/// The result of cancelling one run.
#[derive(Clone, Debug)]
pub struct Cancelled {
    pub run: Run,
    pub already_finished: bool,
    pub change: SessionChange,
    /// The owner to notify, if the run executes.
    pub signal: Option<WorkerId>,
    /// What happened to its descendants, and to the run that waited for it.
    pub descendants: CancelledRuns,
}

/// Which sessions a cancellation covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelScope {
    Session,
    /// The session and all sessions below it.
    Tree,
}

/// The result of cancelling many runs.
#[derive(Clone, Debug, Default)]
pub struct CancelledRuns {
    /// Runs that have ended.
    pub ended: Vec<RunId>,
    /// Executing runs whose owners have to be notified.
    pub requested: Vec<CancelSignal>,
    pub changes: Vec<SessionChange>,
}

/// A notification to a worker that a run should be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelSignal {
    pub worker: WorkerId,
    pub session: SessionId,
    pub run: RunId,
}

/// The input of `explain`.
#[derive(Clone, Debug)]
pub struct RunDiagnostics {
    pub run: Run,
    pub head: Head,
    /// Unfinished runs ahead of it in its session.
    pub ahead: i64,
    /// The run directly ahead, if any.
    pub blocked_by: Option<RunId>,
    /// Active workers of the session's pool.
    pub workers: u32,
    /// Free slots of these workers at their last heartbeats.
    pub free_slots: u32,
    /// The amount that a run parked for its budget could not reserve.
    pub needed: Option<Amount>,
    pub estimate_inputs: EstimateInputs,
}
