//! Calls that wait for a person.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    ApprovalId, RunId, SessionId, TenantId,
    approval::{Answer, Approval, ApprovalRequest, ApprovalState},
    error::Result,
    identity::Principal,
    page::{Page, PageRequest},
};

use crate::SessionChange;

/// Calls that wait for a person.
#[async_trait]
pub trait Approvals {
    /// Fails with `approval_not_found`.
    async fn get_approval(&self, tenant: TenantId, approval: ApprovalId) -> Result<Approval>;
    /// Newest first.
    async fn list_approvals(
        &self,
        tenant: TenantId,
        filter: &ApprovalFilter,
        page: &PageRequest,
    ) -> Result<Page<Approval>>;
    /// Decides, by the rules of [`Approval::check`], and lets the run go on if it is parked. `always` adds the rules to the
    /// session's permissions.
    async fn decide(&self, caller: &Principal, approval: ApprovalId, answer: &Answer) -> Result<Decided>;
}

#[derive(Clone, Debug, Default)]
pub struct ApprovalFilter {
    pub state: Option<ApprovalState>,
    pub session: Option<SessionId>,
    pub run: Option<RunId>,
}

#[derive(Clone, Debug)]
pub struct Decided {
    pub approval: Approval,
    pub change: SessionChange,
}

/// A question to people that a commit asks.
#[derive(Clone, Debug)]
pub struct NewApproval {
    pub id: ApprovalId,
    pub request: ApprovalRequest,
    /// How long it may stay open, by the database's clock.
    pub expires_in: Option<Duration>,
}
