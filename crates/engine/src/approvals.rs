//! Approvals of calls, in every kind of run: requesting them, and applying the decisions.
//!
//! The request is committed with the call's step before the run parks, so no crash loses it or makes a second one. A
//! decision is read again by every owner until the step of the approved call is committed as an intent, so an approved
//! call is executed once.

use remuda_dispatch::retry_until_abandoned;
use remuda_domain::{
    ApprovalId, Code, Error, EventBody,
    approval::{self, Approval, ApprovalRequest, ApprovalState},
    error::Result,
    permission::Unattended,
    run::Failure,
    tool::{CallStatus, ToolOutcome},
};
use remuda_permissions::{Ask, Verdict};
use remuda_store::NewApproval;

use crate::{Entry, OnExpiry, call_plan::PlannedCall, journal::now, run_context::RunContext};

/// What the rules say about a call, once it is known whether somebody can be asked: `None` if it may be made.
pub(crate) fn required(verdict: Verdict, unattended: Unattended) -> Result<Option<Ask>> {
    match verdict {
        Verdict::Allow => Ok(None),
        Verdict::Deny(denial) => Err(Error::new(Code::CallDenied, denial.why)),
        Verdict::Ask(ask) if unattended == Unattended::Wait => Ok(Some(ask)),
        Verdict::Ask(ask) => {
            let message = format!("the call needs someone's approval, and nobody is there: {}", ask.why);
            Err(Error::new(Code::ApprovalUnattended, message))
        }
    }
}

/// A refusal among the calls that has to fail the run: unattended or expired approvals, if so configured.
pub(crate) fn fatal_refusal(
    plan: &[PlannedCall],
    unattended: Unattended,
    on_expiry: OnExpiry,
) -> Option<Failure> {
    if unattended != Unattended::Fail && on_expiry != OnExpiry::Fail {
        return None;
    }
    let is_fatal = |failure: &&Failure| {
        let is = |code: Code| failure.code == code.as_str();
        (unattended == Unattended::Fail && is(Code::ApprovalUnattended))
            || (on_expiry == OnExpiry::Fail && is(Code::ApprovalExpired))
    };
    plan.iter().filter_map(|planned| planned.outcome.as_ref()?.failure.as_ref()).find(is_fatal).cloned()
}

/// What the approver of a call says besides the result.
pub(crate) fn decision_note(planned: &PlannedCall) -> Option<String> {
    let edited = planned.links.edited.as_ref().map(|arguments| {
        format!("The call {} was approved with other arguments: {arguments}", planned.call.id)
    });
    let comment =
        planned.links.note.as_ref().map(|note| format!("Whoever approved {} says: {note}", planned.call.id));
    match (edited, comment) {
        (None, None) => None,
        (edited, comment) => Some([edited, comment].into_iter().flatten().collect::<Vec<_>>().join("\n")),
    }
}

/// The approvals that these calls wait for.
pub(crate) fn awaited<'a>(calls: impl Iterator<Item = &'a PlannedCall>) -> Vec<ApprovalId> {
    let waiting = calls.filter(|planned| !planned.is_done() && planned.links.awaits_approval());
    waiting.filter_map(|planned| planned.links.approval).collect()
}

impl RunContext<'_> {
    /// Requests approval of a call. The request is part of the entry. `agent` is empty in a run without one.
    pub(crate) fn request_approval(
        &mut self,
        planned: &mut PlannedCall,
        ask: Ask,
        agent: &str,
        entry: &mut Entry,
    ) {
        let settings = &self.engine.agents.settings.permissions;
        let own = &self.grant.permissions.approvers;
        let approvers = if own.is_empty() { &settings.approvers } else { own };
        let call = &planned.call;
        let (id, request) = (
            ApprovalId::new(),
            ApprovalRequest {
                call: call.id,
                tool: call.tool.clone(),
                arguments: call.arguments.clone(),
                call_hash: approval::call_hash(&call.tool, &call.arguments),
                agent: agent.to_owned(),
                permission: ask.permission,
                patterns: ask.patterns,
                always: ask.always,
                why: ask.why,
                approvers: approvers.clone(),
            },
        );
        let expires_in = settings.expire_after;
        let expires_at =
            expires_in.and_then(|after| now().checked_add_signed(chrono::TimeDelta::from_std(after).ok()?));
        self.journal.add_event(EventBody::ApprovalRequested {
            approval: id,
            request: Box::new(request.clone()),
            expires_at,
        });
        planned.links.approval = Some(id);
        planned.stored = true;
        entry.steps.push(planned.to_step());
        entry.approvals.push(NewApproval { id, request, expires_in });
    }

    /// Reads the decisions on pending approvals. Calls that will not be made are refused as part of the entry. Returns
    /// the positions of the calls that were approved.
    pub(crate) async fn apply_decisions(
        &mut self,
        plan: &mut [PlannedCall],
        indices: &[usize],
        entry: &mut Entry,
    ) -> Result<Vec<usize>> {
        let mut approved = Vec::new();
        for &index in indices {
            let planned = &mut plan[index];
            let Some(id) = planned.links.approval.filter(|_| planned.links.awaits_approval()) else {
                continue;
            };
            let (store, tenant) = (&self.engine.store, self.grant.fence.tenant);
            let approval =
                retry_until_abandoned(&self.control.abandon, || store.get_approval(tenant, id)).await?;
            match approval.state {
                ApprovalState::Pending => {}
                ApprovalState::Approved => match allow(planned, approval) {
                    Ok(()) => approved.push(index),
                    Err(error) => self.refuse_call(planned, &error, entry),
                },
                ApprovalState::Denied | ApprovalState::Withdrawn => {
                    self.refuse_call(planned, &rejection(&approval), entry);
                }
                ApprovalState::Expired => {
                    let message = "nobody decided about this call in time. This is not a refusal: find another way, or say \
                                   what is needed";
                    self.refuse_call(planned, &Error::new(Code::ApprovalExpired, message), entry);
                }
            }
        }
        Ok(approved)
    }

    /// Gives a call that is not made the error as its result.
    pub(crate) fn refuse_call(&mut self, planned: &mut PlannedCall, error: &Error, entry: &mut Entry) {
        let failure = Failure::new(error.code(), error.to_string());
        let outcome = ToolOutcome::without_result(&planned.call, CallStatus::Failed, Some(failure));
        self.add_outcome_event(&outcome);
        planned.finish(outcome);
        planned.stored = true;
        entry.steps.push(planned.to_step());
    }
}

/// Lets an approved call start, unless the approval is for a different call.
fn allow(planned: &mut PlannedCall, approval: Approval) -> Result<()> {
    if approval.request.call_hash != approval::call_hash(&planned.call.tool, &planned.call.arguments) {
        return Err(Error::new(Code::ApprovalChanged, "what was approved is another call"));
    }
    let decision = approval.decision;
    planned.links.approved = true;
    planned.links.edited = decision.as_ref().and_then(|decision| decision.arguments.clone());
    planned.links.note = decision.map(|decision| decision.message).filter(|message| !message.is_empty());
    Ok(())
}

fn rejection(approval: &Approval) -> Error {
    let Some(decision) = &approval.decision else {
        return Error::new(Code::CallRejected, "the question was withdrawn");
    };
    let message = match decision.message.as_str() {
        "" => format!("{} did not allow this call", decision.by),
        message => format!("{} did not allow this call: {message}", decision.by),
    };
    Error::new(Code::CallRejected, message)
}
