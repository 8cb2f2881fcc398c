//! Runs below runs.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    RunId, RunInput, RunState, SessionId, TenantId,
    budget::Total,
    error::Result,
    page::{Page, PageRequest},
    permission::SessionPermissions,
    run::Failure,
    session::Session,
};

use crate::{CancelledRuns, SessionChange};

/// Runs below runs. A child is made by a commit of its parent ([`Commit::children`](crate::Commit::children)), in a session of
/// its own.
#[async_trait]
pub trait Trees {
    /// How these runs stand, in no order. Runs that do not exist are left out. Only one that has ended has an answer.
    async fn look_at_children(&self, tenant: TenantId, runs: &[RunId]) -> Result<Vec<ChildReport>>;
    /// Lets a parked run go on if what it waits for has come ([`Parking`](crate::Parking)). Called with every end of a child;
    /// nothing happens, and nothing is wrong, if the run is not parked or has to wait on.
    async fn settle_parked(&self, tenant: TenantId, run: RunId) -> Result<Option<SessionChange>>;
    /// Asks for every unfinished run below this one to stop.
    async fn cancel_children(&self, tenant: TenantId, run: RunId, reason: &str) -> Result<CancelledRuns>;
    /// The sessions directly below one, oldest first.
    async fn list_child_sessions(
        &self,
        tenant: TenantId,
        session: SessionId,
        page: &PageRequest,
    ) -> Result<Page<Session>>;
    /// What a session and all sessions below it have spent; the first is without those below.
    async fn session_totals(&self, tenant: TenantId, session: SessionId) -> Result<(Total, Total)>;
    /// The same for a run.
    async fn run_totals(&self, tenant: TenantId, run: RunId) -> Result<(Total, Total)>;
}

/// How a child stands, for its parent.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildReport {
    pub run: RunId,
    pub session: SessionId,
    pub state: RunState,
    /// What its agent said last, else what its last tool gave.
    pub answer: Option<String>,
    pub failure: Option<Failure>,
}

/// A run that a commit of its parent makes.
#[derive(Clone, Debug)]
pub struct NewChild {
    /// The session to make, or, without one, `session` exists and is a child of the parent's session.
    pub new_session: Option<ChildSession>,
    /// What a session that exists may do from now on, if that has changed.
    pub permissions: Option<SessionPermissions>,
    pub session: SessionId,
    pub run: RunId,
    pub input: RunInput,
    pub timeout: Duration,
    /// The call that it works for, in its trace.
    pub traceparent: Option<String>,
}

/// A session of a child. Workspace, pool and execution are its parent's.
#[derive(Clone, Debug)]
pub struct ChildSession {
    pub title: String,
    pub agent: String,
    pub model: Option<String>,
    pub permissions: SessionPermissions,
}
