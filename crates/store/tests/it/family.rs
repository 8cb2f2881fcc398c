//! Runs below runs: short ways to make them and to wait for them.

use std::time::Duration;

use anyhow::Result;
use remuda_domain::{
    RunId, RunState, SessionId, ToolCallId,
    approval::{Answer, ApprovalRequest, call_hash},
    identity::{Principal, Scope},
    permission::{PermissionAction, PermissionRule, SessionPermissions},
    run::ParkReason,
};
use remuda_store::{
    ChildSession, Commit, Committed, Grant, NewApproval, NewChild, Parking, SessionChange, Then,
};
use serde_json::json;

use crate::lab::{LONG_LEASE, Lab, completed, input};

/// A child in a session of its own.
pub(crate) fn child() -> NewChild {
    let session = ChildSession {
        title: "look around".into(),
        agent: "scout".into(),
        model: None,
        permissions: SessionPermissions::default(),
    };
    NewChild { new_session: Some(session), ..child_of(SessionId::new()) }
}

/// Another run of a child's session.
pub(crate) fn child_of(session: SessionId) -> NewChild {
    NewChild {
        new_session: None,
        permissions: None,
        session,
        run: RunId::new(),
        input: input("noop"),
        timeout: Duration::from_secs(30),
        traceparent: None,
    }
}

/// Makes children and goes on.
pub(crate) fn making(grant: &Grant, children: &[NewChild]) -> Commit {
    Commit { children: children.to_vec(), ..Commit::new(grant.fence, grant.run.id, Then::Continue) }
}

/// Waits for children.
pub(crate) fn awaiting(grant: &Grant, children: &[NewChild], needed: u32) -> Commit {
    let children = children.iter().map(|child| child.run).collect();
    let parking = Parking { children, needed, ..Parking::on(ParkReason::Children) };
    Commit::new(grant.fence, grant.run.id, Then::Park(parking))
}

/// A question about a call of `make`.
pub(crate) fn question(expires_in: Option<Duration>) -> NewApproval {
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

/// Asks people and waits for all of them.
pub(crate) fn asking(grant: &Grant, questions: &[NewApproval]) -> Commit {
    let approvals = questions.iter().map(|question| question.id).collect::<Vec<_>>();
    let needed = u32::try_from(approvals.len()).unwrap_or(u32::MAX);
    let parking = Parking { approvals, needed, ..Parking::on(ParkReason::Approval) };
    let commit = Commit::new(grant.fence, grant.run.id, Then::Park(parking));
    Commit { approvals: questions.to_vec(), ..commit }
}

pub(crate) fn yes() -> Answer {
    Answer { approve: true, message: String::new(), arguments: None, always: false, call_hash: None }
}

impl Lab {
    pub(crate) fn anna(&self) -> Principal {
        let scopes = vec![Scope::Approve];
        Principal { tenant: self.tenant, subject: "anna".into(), scopes }
    }

    /// A run that executes, alone in its session.
    pub(crate) async fn executing(&self) -> Result<Grant> {
        let session = self.session().await?;
        self.submit(session).await?;
        self.granted(session, self.worker(LONG_LEASE).await?).await
    }

    /// Executes the head run of a session to its end, as a worker does.
    pub(crate) async fn work_off(&self, session: SessionId) -> Result<Committed> {
        let grant = self.granted(session, self.worker(LONG_LEASE).await?).await?;
        Ok(self.store.commit(completed(&grant)).await?)
    }

    /// What a worker does once a run has ended.
    pub(crate) async fn tell_parent(&self, committed: &Committed) -> Result<Option<SessionChange>> {
        match committed.parent {
            Some(parent) => Ok(self.store.settle_parked(self.tenant, parent).await?),
            None => Ok(None),
        }
    }

    pub(crate) async fn state(&self, run: RunId) -> Result<RunState> {
        Ok(self.run(run).await?.state)
    }
}
