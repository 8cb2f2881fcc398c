//! Trees of runs and sessions: children, their results, and totals.

use async_trait::async_trait;
use remuda_domain::{
    Run, RunId, RunState, SessionId, TenantId,
    budget::Total,
    error::Result,
    page::{Page, PageRequest},
    permission::SessionPermissions,
    run::Failure,
    session::Session,
};

use crate::{CancelledRuns, SessionChange};

/// Trees of runs and sessions. A commit of the parent creates child runs
/// ([`Commit::children`](crate::Commit::children)), each in its own session.
#[async_trait]
pub trait Trees {
    /// Reads the states of child runs, in no particular order. Runs that do not exist are left out. Only ended runs
    /// have an answer.
    async fn child_reports(&self, tenant: TenantId, runs: &[RunId]) -> Result<Vec<ChildReport>>;
    /// Resumes a parked run if its [`ParkRequest`](crate::ParkRequest) is satisfied. Call it for the parent whenever a
    /// child run ends. Does nothing, and succeeds, if the run is not parked or has to wait longer.
    async fn resume_if_ready(&self, tenant: TenantId, run: RunId) -> Result<Option<SessionChange>>;
    /// Cancels every unfinished descendant of a run.
    async fn cancel_children(&self, tenant: TenantId, run: RunId, reason: &str) -> Result<CancelledRuns>;
    /// Lists the direct child sessions, oldest first.
    async fn list_child_sessions(
        &self,
        tenant: TenantId,
        session: SessionId,
        page: &PageRequest,
    ) -> Result<Page<Session>>;
    /// What a session has spent: by itself, and together with its descendants.
    async fn session_totals(&self, tenant: TenantId, session: SessionId) -> Result<(Total, Total)>;
    /// What a run has spent: by itself, and together with its descendants.
    async fn run_totals(&self, tenant: TenantId, run: RunId) -> Result<(Total, Total)>;
}

/// The state of a child run, for its parent.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildReport {
    pub run: RunId,
    pub session: SessionId,
    pub state: RunState,
    /// The agent's final answer, or else the output of the last tool call.
    pub answer: Option<String>,
    pub failure: Option<Failure>,
}

/// A child run that a commit of its parent creates.
#[derive(Clone, Debug)]
pub struct NewChild {
    /// The session to create. Without it, the run's session must exist and be a child of the parent's session.
    pub new_session: Option<ChildSession>,
    /// New permissions of an existing session, if they change.
    pub permissions: Option<SessionPermissions>,
    /// As [`Run::queued`] makes it. It gets tenant, labels and budget of its parent run.
    pub run: Run,
}

/// The session of a child run. It inherits workspace, pool and execution from its parent.
#[derive(Clone, Debug)]
pub struct ChildSession {
    pub title: String,
    pub agent: String,
    pub model: Option<String>,
    pub permissions: SessionPermissions,
}
