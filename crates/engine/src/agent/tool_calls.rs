//! Advances the tool calls of a response to their results: executed here, delegated to children, or parked for
//! approval.

use std::ops::Range;

use remuda_domain::{
    Code, Error, EventBody, RunId,
    error::Result,
    run::{Failure, ParkReason},
    tool::{CallStatus, ToolOutcome},
};
use remuda_permissions::Verdict;
use remuda_store::ParkRequest;
use serde_json::json;

use super::{
    AgentRun,
    agent_tools::{self, SWITCH, SwitchArguments},
};
use crate::{approvals, call_plan::PlannedCall, journal::Entry, run_context::RunProgress};

impl AgentRun<'_> {
    /// Advances the calls of a group as far as possible. Returns the run's progress if the run has to be left.
    pub(super) async fn advance(&mut self, group: Range<usize>) -> Result<Option<RunProgress>> {
        let open = |index: &usize| !self.plan[*index].is_done();
        let open: Vec<usize> = group.filter(open).collect();
        if self.ctx.killed.is_some() {
            return Ok(Some(self.ctx.progress()));
        }
        if open.is_empty() {
            return Ok(None);
        }
        if self.ctx.control.drain.is_cancelled() {
            return Ok(Some(RunProgress::HandOver));
        }
        self.apply_decisions(&open).await?;
        if self.failure.is_some() {
            return Ok(Some(self.ctx.progress()));
        }
        self.collect_child_results(&open).await?;
        self.run_switches(&open).await?;
        if let Some(progress) = self.delegate(&open).await? {
            return Ok(Some(progress));
        }
        let ready = |index: &usize| {
            let planned = &self.plan[*index];
            !planned.is_done()
                && !planned.links.is_harmless()
                && !agent_tools::is_agent_tool(&planned.call.tool)
        };
        let ready: Vec<usize> = open.iter().copied().filter(ready).collect();
        if !ready.is_empty() {
            self.ctx.run_group(&mut self.plan, &ready, false).await?;
        }
        if self.ctx.killed.is_some() || self.failure.is_some() {
            return Ok(Some(self.ctx.progress()));
        }
        Ok(self.park_request(&open).map(RunProgress::Park))
    }

    /// What calls without a result wait for.
    fn park_request(&self, indices: &[usize]) -> Option<ParkRequest> {
        let open: Vec<&PlannedCall> =
            indices.iter().map(|index| &self.plan[*index]).filter(|planned| !planned.is_done()).collect();
        if open.is_empty() {
            return None;
        }
        let approvals = approvals::awaited(open.iter().copied());
        let mut children: Vec<RunId> =
            open.iter().filter_map(|planned| planned.links.child.as_ref()).map(|child| child.run).collect();
        let has_queued = open.len() > approvals.len() + children.len();
        if has_queued {
            // The next delegation starts when any running child has ended.
            children.extend(self.live_background_children());
        }
        let all = u32::try_from(children.len()).unwrap_or(u32::MAX);
        Some(ParkRequest {
            reason: if approvals.is_empty() { ParkReason::Children } else { ParkReason::Approval },
            needed: if has_queued || !approvals.is_empty() { 1 } else { all },
            children,
            approvals,
            amount: None,
        })
    }

    /// Reads the decisions on pending approvals and applies them.
    async fn apply_decisions(&mut self, indices: &[usize]) -> Result<()> {
        let mut entry = Entry::default();
        for index in self.ctx.apply_decisions(&mut self.plan, indices, &mut entry).await? {
            if let Err(error) = self.check_edited(index) {
                self.refuse_call(index, &error, &mut entry);
            }
        }
        if entry.steps.is_empty() {
            return Ok(());
        }
        self.ctx.journal.commit(entry).await?;
        self.failure = self.fatal_refusal();
        Ok(())
    }

    /// A refusal among the last response's calls that has to fail the run.
    pub(super) fn fatal_refusal(&self) -> Option<Failure> {
        let on_expiry = self.ctx.engine.agents.settings.permissions.on_expiry;
        approvals::fatal_refusal(&self.plan, self.active.unattended, on_expiry)
    }

    /// An approver can edit a call, but not into one that is denied.
    fn check_edited(&self, index: usize) -> Result<()> {
        let planned = &self.plan[index];
        if planned.links.edited.is_none() {
            return Ok(());
        }
        let call = planned.effective();
        if let Some(tool) = self.active.tools.get(&call.tool) {
            tool.validate(&call.arguments)?;
        }
        match self.permission_verdict(&call) {
            Verdict::Deny(denial) => Err(Error::new(Code::CallDenied, denial.why)),
            Verdict::Allow | Verdict::Ask(_) => Ok(()),
        }
    }

    /// Executes agent switches. Which agent takes over is decided once all calls of the response have results.
    async fn run_switches(&mut self, indices: &[usize]) -> Result<()> {
        let mut entry = Entry::default();
        for &index in indices {
            let planned = &self.plan[index];
            if planned.call.tool != SWITCH || planned.is_done() || planned.links.awaits_approval() {
                continue;
            }
            match self.switch_target(index) {
                Ok(output) => {
                    let planned = &mut self.plan[index];
                    let call = planned.call.clone();
                    self.ctx
                        .journal
                        .add_event(EventBody::ToolStarted { call: call.id, tool: call.tool.clone() });
                    let outcome = ToolOutcome {
                        output,
                        ..ToolOutcome::without_result(&call, CallStatus::Completed, None)
                    };
                    self.ctx.add_outcome_event(&outcome);
                    planned.finish(outcome);
                    planned.stored = true;
                    entry.steps.push(planned.to_step());
                    self.switches += 1;
                }
                Err(error) => self.refuse_call(index, &error, &mut entry),
            }
        }
        if entry.steps.is_empty() { Ok(()) } else { self.ctx.journal.commit(entry).await }
    }

    fn switch_target(&self, index: usize) -> Result<serde_json::Value> {
        let own = &self.active.agent;
        if self.plan.iter().any(|planned| switched_to(planned).is_some()) {
            let message = "only one agent can go on: the first switch of an answer counts";
            return Err(Error::new(Code::SwitchLimit, message));
        }
        if self.switches >= own.policy.max_switches {
            let message = format!("a run may switch {} times: go on yourself", own.policy.max_switches);
            return Err(Error::new(Code::SwitchLimit, message));
        }
        let arguments: SwitchArguments = agent_tools::parse(&self.plan[index].effective().arguments)?;
        let target = self.setup.definitions().switch_target(own, &arguments.agent)?;
        let mut output = json!({ "agent": target.name, "note": "you are this agent from here on" });
        if let (Some(reminder), Some(fields)) = (&target.system_reminder, output.as_object_mut()) {
            fields.insert("system_reminder".to_owned(), reminder.trim().into());
        }
        Ok(output)
    }

    /// Gives a call that is not made the error as its result.
    pub(super) fn refuse_call(&mut self, index: usize, error: &Error, entry: &mut Entry) {
        self.ctx.refuse_call(&mut self.plan[index], error, entry);
    }
}

/// The agent that a completed switch names.
pub(super) fn switched_to(planned: &PlannedCall) -> Option<&str> {
    let outcome = planned.outcome.as_ref().filter(|outcome| outcome.status == CallStatus::Completed)?;
    if planned.call.tool != SWITCH {
        return None;
    }
    outcome.output.get("agent")?.as_str()
}
