//! How the calls of an answer come to their results: made here, by children, or not before someone allows it.

use std::ops::Range;

use remuda_domain::{
    Code, Error, EventBody, RunId,
    approval::{self, Approval, ApprovalState},
    error::Result,
    permission::Unattended,
    run::{Failure, ParkReason},
    tool::{CallStatus, ToolOutcome},
};
use remuda_permissions::Verdict;
use remuda_store::Parking;
use serde_json::json;

use super::{
    AgentRun, OnExpiry,
    control::{self, SWITCH, SwitchArguments},
};
use crate::{journal::Entry, patiently, plan::Slot, stand::Walked};

impl AgentRun<'_> {
    /// Brings the calls of a group as far as they come. Says how the run is left, if it has to be.
    pub(super) async fn advance(&mut self, group: Range<usize>) -> Result<Option<Walked>> {
        let open = |index: &usize| !self.slots[*index].is_done();
        let open: Vec<usize> = group.filter(open).collect();
        if self.stand.killed.is_some() {
            return Ok(Some(self.stand.walked()));
        }
        if open.is_empty() {
            return Ok(None);
        }
        if self.stand.control.drain.is_cancelled() {
            return Ok(Some(Walked::HandOver));
        }
        self.hear_decisions(&open).await?;
        if self.failure.is_some() {
            return Ok(Some(self.stand.walked()));
        }
        self.hear_children(&open).await?;
        self.switch(&open).await?;
        if let Some(walked) = self.delegate(&open).await? {
            return Ok(Some(walked));
        }
        let ready = |index: &usize| {
            let slot = &self.slots[*index];
            !slot.is_done() && !slot.links.is_harmless() && !control::is_control(&slot.call.tool)
        };
        let ready: Vec<usize> = open.iter().copied().filter(ready).collect();
        if !ready.is_empty() {
            self.stand.run_group(&mut self.slots, &ready, false).await?;
        }
        if self.stand.killed.is_some() || self.failure.is_some() {
            return Ok(Some(self.stand.walked()));
        }
        Ok(self.waits_for(&open).map(Walked::Park))
    }

    /// What calls that have no result yet wait for.
    fn waits_for(&self, indices: &[usize]) -> Option<Parking> {
        let open: Vec<&Slot> =
            indices.iter().map(|index| &self.slots[*index]).filter(|slot| !slot.is_done()).collect();
        if open.is_empty() {
            return None;
        }
        let approvals: Vec<_> = open
            .iter()
            .filter(|slot| slot.links.awaits_approval())
            .filter_map(|slot| slot.links.approval)
            .collect();
        let mut children: Vec<RunId> =
            open.iter().filter_map(|slot| slot.links.child.as_ref()).map(|child| child.run).collect();
        let in_line = open.len() > approvals.len() + children.len();
        if in_line {
            // The next one begins when any of those at work has ended.
            children.extend(self.background_at_work());
        }
        let all = u32::try_from(children.len()).unwrap_or(u32::MAX);
        Some(Parking {
            reason: if approvals.is_empty() { ParkReason::Children } else { ParkReason::Approval },
            needed: if in_line || !approvals.is_empty() { 1 } else { all },
            children,
            approvals,
            amount: None,
        })
    }

    /// Looks what became of the questions to people.
    async fn hear_decisions(&mut self, indices: &[usize]) -> Result<()> {
        let mut entry = Entry::default();
        for &index in indices {
            let slot = &self.slots[index];
            let Some(id) = slot.links.approval.filter(|_| slot.links.awaits_approval()) else { continue };
            let (store, tenant) = (&self.stand.engine.store, self.stand.grant.fence.tenant);
            let approval = patiently(&self.stand.control.abandon, || store.get_approval(tenant, id)).await?;
            match approval.state {
                ApprovalState::Pending => {}
                ApprovalState::Approved => self.take_approval(index, approval, &mut entry),
                ApprovalState::Denied | ApprovalState::Withdrawn => {
                    let error = rejected(&approval);
                    self.refuse_call(index, &error, &mut entry);
                }
                ApprovalState::Expired => {
                    let message = "nobody decided about this call in time. This is not a refusal: find another way, or say \
                                   what is needed";
                    let error = Error::new(Code::ApprovalExpired, message);
                    self.refuse_call(index, &error, &mut entry);
                }
            }
        }
        if entry.steps.is_empty() {
            return Ok(());
        }
        self.stand.journal.commit(entry).await?;
        self.failure = self.fatal_refusal();
        Ok(())
    }

    /// A call of the newest answer that nobody could allow, where that is to end the run.
    pub(super) fn fatal_refusal(&self) -> Option<Failure> {
        let on_expiry = self.stand.engine.agents.settings.permissions.on_expiry;
        let is_fatal = |failure: &&Failure| {
            let is = |code: Code| failure.code == code.as_str();
            (self.scene.unattended == Unattended::Fail && is(Code::ApprovalUnattended))
                || (on_expiry == OnExpiry::Fail && is(Code::ApprovalExpired))
        };
        let mut failures = self.slots.iter().filter_map(|slot| slot.outcome.as_ref()?.failure.as_ref());
        failures.find(is_fatal).cloned()
    }

    /// Lets an approved call begin, unless what was approved is something else.
    fn take_approval(&mut self, index: usize, approval: Approval, entry: &mut Entry) {
        let slot = &mut self.slots[index];
        let decision = approval.decision;
        slot.links.approved = true;
        slot.links.edited = decision.as_ref().and_then(|decision| decision.arguments.clone());
        slot.links.note = decision.map(|decision| decision.message).filter(|message| !message.is_empty());
        if approval.request.call_hash != approval::call_hash(&slot.call.tool, &slot.call.arguments) {
            let error = Error::new(Code::ApprovalChanged, "what was approved is another call");
            self.refuse_call(index, &error, entry);
            return;
        }
        if let Err(error) = self.check_edited(index) {
            self.refuse_call(index, &error, entry);
        }
    }

    /// Whoever approves a call can change it, but not to what is denied.
    fn check_edited(&self, index: usize) -> Result<()> {
        let slot = &self.slots[index];
        if slot.links.edited.is_none() {
            return Ok(());
        }
        let call = slot.effective();
        if let Some(tool) = self.scene.tools.get(&call.tool) {
            tool.validate(&call.arguments)?;
        }
        match self.judge_call(&call) {
            Verdict::Deny(denial) => Err(Error::new(Code::CallDenied, denial.why)),
            Verdict::Allow | Verdict::Ask(_) => Ok(()),
        }
    }

    /// Makes the calls that hand the conversation over. Who goes on is decided once all calls of the answer have results.
    async fn switch(&mut self, indices: &[usize]) -> Result<()> {
        let mut entry = Entry::default();
        for &index in indices {
            let slot = &self.slots[index];
            if slot.call.tool != SWITCH || slot.is_done() || slot.links.awaits_approval() {
                continue;
            }
            match self.switch_target(index) {
                Ok(output) => {
                    let slot = &mut self.slots[index];
                    let call = slot.call.clone();
                    self.stand
                        .journal
                        .note(EventBody::ToolStarted { call: call.id, tool: call.tool.clone() });
                    let outcome = ToolOutcome {
                        output,
                        ..ToolOutcome::without_result(&call, CallStatus::Completed, None)
                    };
                    self.stand.note_outcome(&outcome);
                    slot.finish(outcome);
                    slot.stored = true;
                    entry.steps.push(slot.to_step());
                    self.switches += 1;
                }
                Err(error) => self.refuse_call(index, &error, &mut entry),
            }
        }
        if entry.steps.is_empty() { Ok(()) } else { self.stand.journal.commit(entry).await }
    }

    fn switch_target(&self, index: usize) -> Result<serde_json::Value> {
        let own = &self.scene.agent;
        if self.slots.iter().any(|slot| switched_to(slot).is_some()) {
            let message = "only one agent can go on: the first switch of an answer counts";
            return Err(Error::new(Code::SwitchLimit, message));
        }
        if self.switches >= own.policy.max_switches {
            let message = format!("a run may switch {} times: go on yourself", own.policy.max_switches);
            return Err(Error::new(Code::SwitchLimit, message));
        }
        let arguments: SwitchArguments = control::parse(&self.slots[index].effective().arguments)?;
        let target = self.stage.definitions().switch_target(own, &arguments.agent)?;
        let mut output = json!({ "agent": target.name, "note": "you are this agent from here on" });
        if let (Some(reminder), Some(fields)) = (&target.system_reminder, output.as_object_mut()) {
            fields.insert("system_reminder".to_owned(), reminder.trim().into());
        }
        Ok(output)
    }

    /// Gives a call that is not made the reason for a result.
    pub(super) fn refuse_call(&mut self, index: usize, error: &Error, entry: &mut Entry) {
        let slot = &mut self.slots[index];
        let failure = Failure::new(error.code(), error.to_string());
        let outcome = ToolOutcome::without_result(&slot.call, CallStatus::Failed, Some(failure));
        self.stand.note_outcome(&outcome);
        slot.finish(outcome);
        slot.stored = true;
        entry.steps.push(slot.to_step());
    }
}

/// The agent that a call has handed the conversation to.
pub(super) fn switched_to(slot: &Slot) -> Option<&str> {
    let outcome = slot.outcome.as_ref().filter(|outcome| outcome.status == CallStatus::Completed)?;
    if slot.call.tool != SWITCH {
        return None;
    }
    outcome.output.get("agent")?.as_str()
}

fn rejected(approval: &Approval) -> Error {
    let Some(decision) = &approval.decision else {
        return Error::new(Code::CallRejected, "the question was withdrawn");
    };
    let message = match decision.message.as_str() {
        "" => format!("{} did not allow this call", decision.by),
        message => format!("{} did not allow this call: {message}", decision.by),
    };
    Error::new(Code::CallRejected, message)
}
