//! Approvals: tool calls that wait for a person's decision.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    ApprovalId, RunId, SessionId, TenantId,
    approval::{Approval, ApprovalRequest, ApprovalState, DecisionRequest},
    error::Result,
    identity::Principal,
    page::{Page, PageRequest},
};

use crate::SessionChange;

/// Reads and decides approvals.
#[async_trait]
pub trait Approvals {
    /// Reads one approval. Fails with `approval_not_found`.
    async fn get_approval(&self, tenant: TenantId, approval: ApprovalId) -> Result<Approval>;
    /// Lists approvals, newest first.
    async fn list_approvals(
        &self,
        tenant: TenantId,
        filter: &ApprovalFilter,
        page: &PageRequest,
    ) -> Result<Page<Approval>>;
    /// Decides an approval by the rules of [`Approval::check`], and resumes its run if that run is parked and waits for
    /// nothing else. `always` also adds the approval's rules to the session's permissions.
    async fn decide(
        &self,
        caller: &Principal,
        approval: ApprovalId,
        answer: &DecisionRequest,
    ) -> Result<DecidedApproval>;
}

/// Selects approvals; `None` matches everything.
#[derive(Clone, Debug, Default)]
pub struct ApprovalFilter {
    pub state: Option<ApprovalState>,
    pub session: Option<SessionId>,
    pub run: Option<RunId>,
}

/// A decided approval, and what the decision changed in its session.
#[derive(Clone, Debug)]
pub struct DecidedApproval {
    pub approval: Approval,
    pub change: SessionChange,
}

/// An approval that a commit requests.
#[derive(Clone, Debug)]
pub struct NewApproval {
    pub id: ApprovalId,
    pub request: ApprovalRequest,
    /// How long it may stay pending, by the database's clock. Without it, the approval never expires.
    pub expires_in: Option<Duration>,
}
