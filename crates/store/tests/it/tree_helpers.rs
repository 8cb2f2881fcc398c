//! Helpers for child runs, approvals and parked parents.

use std::time::Duration;

use anyhow::Result;
use remuda_domain::{
    Run, RunId, RunState, SessionId, TenantId, ToolCallId,
    approval::{ApprovalRequest, DecisionRequest, call_hash},
    identity::{Principal, Scope},
    permission::{PermissionAction, PermissionRule, SessionPermissions},
    run::ParkReason,
};
use remuda_store::{
    ChildSession, Commit, Committed, Grant, NewApproval, NewChild, ParkRequest, RunTransition, SessionChange,
};
use serde_json::json;

use crate::fixture::{Fixture, LONG_LEASE, completed, input};

/// A child run with a new session.
pub(crate) fn child() -> NewChild {
    let session = ChildSession {
        title: "look around".into(),
        agent: "scout".into(),
        model: None,
        permissions: SessionPermissions::default(),
    };
    NewChild { new_session: Some(session), ..child_of(SessionId::new()) }
}

/// Another run in a child's session.
pub(crate) fn child_of(session: SessionId) -> NewChild {
    NewChild {
        new_session: None,
        permissions: None,
        run: Run::queued(RunId::new(), (TenantId::new(), session), input("noop"), Duration::from_secs(30)),
    }
}

/// A commit that creates children and continues.
pub(crate) fn creating_children(grant: &Grant, children: &[NewChild]) -> Commit {
    Commit { children: children.to_vec(), ..Commit::new(grant.fence, grant.run.id, RunTransition::Continue) }
}

/// A commit that parks the run until children have ended.
pub(crate) fn parked_for_children(grant: &Grant, children: &[NewChild], needed: u32) -> Commit {
    let children = children.iter().map(|child| child.run.id).collect();
    let parking = ParkRequest { children, needed, ..ParkRequest::on(ParkReason::Children) };
    Commit::new(grant.fence, grant.run.id, RunTransition::Park(parking))
}

/// An approval request for a call of `make`.
pub(crate) fn new_approval(expires_in: Option<Duration>) -> NewApproval {
    let arguments = json!({ "command": "make" });
    let request = ApprovalRequest {
        call: ToolCallId::new(),
        tool: "Bash".into(),
        call_hash: call_hash("Bash", &arguments),
        arguments,
        agent: "build".into(),
        permission: "bash".into(),
        patterns: vec!["make".into()],
        always: vec![PermissionRule::new("bash", "make *", PermissionAction::Allow)],
        why: "the agent asks about bash".into(),
        approvers: Vec::new(),
    };
    NewApproval { id: remuda_domain::ApprovalId::new(), request, expires_in }
}

/// A commit that requests approvals and parks the run until all are decided.
pub(crate) fn parked_for_approvals(grant: &Grant, questions: &[NewApproval]) -> Commit {
    let approvals = questions.iter().map(|question| question.id).collect::<Vec<_>>();
    let needed = u32::try_from(approvals.len()).unwrap_or(u32::MAX);
    let parking = ParkRequest { approvals, needed, ..ParkRequest::on(ParkReason::Approval) };
    let commit = Commit::new(grant.fence, grant.run.id, RunTransition::Park(parking));
    Commit { approvals: questions.to_vec(), ..commit }
}

pub(crate) fn approve() -> DecisionRequest {
    DecisionRequest { approve: true, message: String::new(), arguments: None, always: false, call_hash: None }
}

impl Fixture {
    pub(crate) fn approver(&self) -> Principal {
        let scopes = vec![Scope::Approve];
        Principal { tenant: self.tenant, subject: "anna".into(), scopes }
    }

    /// An executing run, alone in its session.
    pub(crate) async fn executing(&self) -> Result<Grant> {
        let session = self.session().await?;
        self.submit(session).await?;
        self.granted(session, self.worker(LONG_LEASE).await?).await
    }

    /// Executes the head run of a session to its end, as a worker does.
    pub(crate) async fn execute_head_run(&self, session: SessionId) -> Result<Committed> {
        let grant = self.granted(session, self.worker(LONG_LEASE).await?).await?;
        Ok(self.store.commit(completed(&grant)).await?)
    }

    /// Resumes the parent of an ended run, as a worker does.
    pub(crate) async fn resume_parent(&self, committed: &Committed) -> Result<Option<SessionChange>> {
        match committed.parent {
            Some(parent) => Ok(self.store.resume_if_ready(self.tenant, parent).await?),
            None => Ok(None),
        }
    }

    pub(crate) async fn state(&self, run: RunId) -> Result<RunState> {
        Ok(self.run(run).await?.state)
    }
}
