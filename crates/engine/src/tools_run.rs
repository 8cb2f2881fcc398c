//! Executes a `tools` run: a fixed list of tool calls.

use remuda_domain::{
    Code, EventBody, MessageId, RunState,
    error::Result,
    message::{Part, Role},
    permission::Unattended,
    run::{Failure, ParkReason, RunEnd, ToolsInput},
    tool::{CallStatus, ToolCall, ToolOutcome},
};
use remuda_permissions::Verdict;
use remuda_store::{Grant, NewMessage, ParkRequest};
use tokio::time::Instant;

use crate::{
    Ending, Engine, Entry, Execution, HandOver, RunControl, approvals,
    call_plan::{self, PlannedCall},
    journal::now,
    operator_rules::CallRules,
    run_context::{RunContext, RunProgress, close_unfinished},
};

/// A `tools` run in progress.
struct ToolsRun<'a> {
    input: &'a ToolsInput,
    /// What the operator's rules say about the calls, if there are any.
    rules: Option<CallRules<'a>>,
    unattended: Unattended,
    ctx: RunContext<'a>,
    plan: Vec<PlannedCall>,
    interrupted: Vec<usize>,
    /// Why the run has no sandbox to execute in.
    no_sandbox: Option<Failure>,
}

impl Engine {
    /// Fails only if the journal cannot be written: the session is lost, or the store rejects the commit.
    pub(crate) async fn tools_run(
        &self,
        input: &ToolsInput,
        grant: &Grant,
        control: &RunControl,
    ) -> Result<Execution> {
        let needs_sandbox = |name: &str| self.tools.get(name).is_some_and(|tool| tool.needs_sandbox());
        let needed = input.calls.iter().any(|call| needs_sandbox(&call.tool));
        let tenant = self.tenant_name(grant, &control.abandon).await?;
        let (sandbox, no_sandbox) = match self.sandbox_for(grant, &tenant, &grant.execution, needed).await {
            Ok(sandbox) => (Some(sandbox), None),
            Err(error) => (None, Some(Failure::new(error.code(), error.to_string()))),
        };
        let ctx = RunContext::new(self, grant, control, sandbox, grant.time_left);
        let (plan, interrupted) =
            call_plan::resume(&input.calls, &grant.steps, 0, grant.fence.epoch, |tool| ctx.effects(tool));
        let operator = &self.agents.operator_rules;
        let rules = operator.of(&tenant, &grant.permissions);
        let unattended = operator.unattended(&grant.permissions);
        let mut run = ToolsRun { input, rules, unattended, ctx, plan, interrupted, no_sandbox };
        let progress = run.run_calls().await;
        // However the run continues, none of its background processes stay on this worker.
        run.ctx.calls.background.shutdown().await;
        match progress? {
            RunProgress::Abandoned => Ok(Execution::Abandoned),
            RunProgress::HandOver => Ok(Execution::HandedOver(Box::new(run.hand_over()))),
            RunProgress::Park(park) => Ok(Execution::Parked(Box::new(run.hand_over()), park)),
            RunProgress::Finished => {
                let reason = run.ctx.cancel_reason().await;
                Ok(Execution::Ended(Box::new(run.end(&reason))))
            }
        }
    }
}

impl ToolsRun<'_> {
    /// Executes the remaining calls, group by group.
    async fn run_calls(&mut self) -> Result<RunProgress> {
        self.ctx.report_interrupted(&mut self.plan, &self.interrupted).await?;
        for group in call_plan::groups(&self.plan) {
            let mut todo: Vec<usize> = group.clone().filter(|index| !self.plan[*index].is_done()).collect();
            if todo.is_empty() {
                continue;
            }
            if self.is_over() {
                break;
            }
            if self.ctx.control.drain.is_cancelled() {
                return Ok(RunProgress::HandOver);
            }
            if self.rules.is_some() || todo.iter().any(|index| self.plan[*index].links.awaits_approval()) {
                todo = self.judge(&todo).await?;
            }
            // The run's last call is committed together with the run's end.
            let is_last = self.plan.iter().filter(|planned| !planned.is_done()).count() == todo.len();
            if !todo.is_empty() && !self.has_fatal_refusal() {
                self.ctx.run_group(&mut self.plan, &todo, is_last).await?;
            }
            let approvals = approvals::awaited(self.plan[group].iter());
            if !approvals.is_empty() && !self.is_over() {
                let parking = ParkRequest { approvals, needed: 1, ..ParkRequest::on(ParkReason::Approval) };
                return Ok(RunProgress::Park(parking));
            }
        }
        Ok(self.ctx.progress())
    }

    /// Applies the decisions and the rules to calls without a result. Returns those that may be made now: the others are
    /// refused, or wait for approval.
    async fn judge(&mut self, todo: &[usize]) -> Result<Vec<usize>> {
        let mut entry = Entry::default();
        for index in self.ctx.apply_decisions(&mut self.plan, todo, &mut entry).await? {
            let call = self.plan[index].effective();
            let valid =
                self.ctx.tools().get(&call.tool).map_or(Ok(()), |tool| tool.validate(&call.arguments));
            if let Err(error) = valid {
                self.ctx.refuse_call(&mut self.plan[index], &error, &mut entry);
            }
        }
        let mut allowed = Vec::with_capacity(todo.len());
        for &index in todo {
            let planned = &self.plan[index];
            if planned.is_done() || planned.links.awaits_approval() {
                continue;
            }
            let (approved, verdict) = (planned.links.approved, self.verdict(&planned.effective()));
            match approvals::required(verdict, self.unattended) {
                Ok(Some(ask)) if !approved => {
                    self.ctx.request_approval(&mut self.plan[index], ask, "", &mut entry);
                }
                Ok(_) => allowed.push(index),
                // An approval stays valid if the session became unattended after it. A rule that denies now still counts.
                Err(error) if approved && error.code() != Code::CallDenied => allowed.push(index),
                Err(error) => self.ctx.refuse_call(&mut self.plan[index], &error, &mut entry),
            }
        }
        if !entry.steps.is_empty() {
            self.ctx.journal.commit(entry).await?;
        }
        Ok(allowed)
    }

    /// The verdict of the operator's rules on a call.
    fn verdict(&self, call: &ToolCall) -> Verdict {
        let Some(rules) = &self.rules else { return Verdict::Allow };
        // Once the sandbox exists, its paths may be used, too.
        let sandbox = self.ctx.calls.sandbox.as_ref().and_then(|sandbox| sandbox.acquired());
        let root = sandbox.and_then(|sandbox| sandbox.workspace_path());
        let root = root.unwrap_or(&self.ctx.grant.workspace_root);
        rules.judge(root, &self.ctx.tools().catalog().describe(&call.tool), call)
    }

    /// Whether no more calls are to be started.
    fn is_over(&self) -> bool {
        self.ctx.killed.is_some()
            || self.no_sandbox.is_some()
            || self.failure().is_some()
            || self.has_fatal_refusal()
    }

    fn has_fatal_refusal(&self) -> bool {
        self.fatal_refusal().is_some()
    }

    /// An unattended or expired approval that fails the run, whatever the run does about failed calls.
    fn fatal_refusal(&self) -> Option<Failure> {
        let on_expiry = self.ctx.engine.agents.settings.permissions.on_expiry;
        approvals::fatal_refusal(&self.plan, self.unattended, on_expiry)
    }

    /// The failed call that fails the run, if any. An interrupted call does not: its effects are unknown, and that is
    /// a result.
    fn failure(&self) -> Option<&ToolOutcome> {
        if self.input.continue_on_error {
            return None;
        }
        let mut outcomes = self.plan.iter().filter_map(|planned| planned.outcome.as_ref());
        outcomes.find(|outcome| matches!(outcome.status, CallStatus::Failed | CallStatus::TimedOut))
    }

    /// The content of the commit that hands the run over.
    fn hand_over(mut self) -> HandOver {
        let unsaved = self.plan.iter().filter(|planned| planned.is_done() && !planned.stored);
        HandOver {
            entry: Entry::steps(unsaved.map(PlannedCall::to_step).collect()),
            events: self.ctx.journal.take_pending_events(),
        }
    }

    /// The content of the run's last commit.
    fn end(mut self, cancel_reason: &str) -> Ending {
        let (state, failure) = match (self.ctx.killed, self.failure()) {
            (Some(killed), _) => {
                let (state, failure) = self.ctx.end_of_killed(killed, cancel_reason);
                (state, Some(failure))
            }
            (None, _) if self.no_sandbox.is_some() => (RunState::Failed, self.no_sandbox.take()),
            (None, outcome) if self.has_fatal_refusal() || outcome.is_some() => {
                (RunState::Failed, self.fatal_refusal().or_else(|| outcome.map(run_failure)))
            }
            (None, _) => (RunState::Completed, None),
        };
        let steps = close_unfinished(&mut self.plan, state);
        let outcomes: Vec<ToolOutcome> =
            self.plan.iter().filter_map(|planned| planned.outcome.clone()).collect();
        let messages = if self.input.record { calls_as_message(&self.plan) } else { Vec::new() };
        let journal = &mut self.ctx.journal;
        for message in &messages {
            journal.add_event(EventBody::MessageCompleted {
                message: message.id,
                role: message.role,
                agent: None,
                parts: message.parts.clone(),
            });
        }
        let stopped_at = (state == RunState::Cancelled).then(|| {
            journal.add_event(EventBody::RunStopped);
            Instant::now()
        });
        Ending {
            end: RunEnd { state, outcomes, failure },
            started_at: self.ctx.grant.run.started_at.unwrap_or_else(now),
            stopped_at,
            entry: Entry { steps, messages, ..Entry::default() },
            events: journal.take_pending_events(),
            agent: None,
        }
    }
}

fn run_failure(outcome: &ToolOutcome) -> Failure {
    let cause = outcome.failure.as_ref().map_or("no reason given", |failure| failure.message.as_str());
    let code = if outcome.status == CallStatus::TimedOut { Code::ToolTimedOut } else { Code::ToolFailed };
    Failure::new(code, format!("{} failed: {cause}", outcome.tool))
}

/// The calls and their results as one message, which agents of the session will see.
fn calls_as_message(plan: &[PlannedCall]) -> Vec<NewMessage> {
    let uses = plan.iter().map(|planned| Part::ToolUse { call: planned.call.clone() });
    let results = plan.iter().filter_map(|planned| planned.outcome.clone());
    let notes = plan.iter().filter_map(approvals::decision_note).map(Part::text);
    let parts = uses.chain(results.map(|outcome| Part::ToolResult { outcome })).chain(notes).collect();
    vec![NewMessage { id: MessageId::new(), role: Role::Tool, agent: None, parts }]
}
