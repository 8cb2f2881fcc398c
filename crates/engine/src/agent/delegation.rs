//! Delegation: gives a task to a sub-agent, which runs as a child run in its own session.

use std::{collections::HashSet, time::Duration};

use remuda_dispatch::retry_until_abandoned;
use remuda_domain::{
    Code, Error, EventBody, MessageId, Run, RunId, RunInput, RunState, SessionId, ToolCallId,
    error::Result,
    message::{Part, Role},
    permission::{PermissionMode, SessionPermissions},
    run::{Failure, MessageInput},
    session::{SessionRef, SessionStatus},
    step::Child,
    tool::{CallStatus, ToolOutcome},
};
use remuda_permissions::Verdict;
use remuda_store::{ChildReport, ChildSession, NewChild};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    AgentRun,
    agent_tools::{self, DELEGATE, DelegateArguments},
    call_targets, render, transcript,
};
use crate::{call_plan::PlannedCall, journal::Entry, run_context::RunProgress};

/// Minimum timeout of a child run.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);

/// The session that a `task_id` names.
pub(super) fn task_session(task: &str) -> Result<SessionId> {
    task.parse().map_err(|_| {
        Error::new(Code::TaskNotFound, "expected the task_id of an earlier result").at("arguments.task_id")
    })
}

/// A delegation that is ready to be committed.
struct PreparedDelegation {
    child: Child,
    new: NewChild,
    description: String,
}

impl AgentRun<'_> {
    /// Starts the delegations that have not started, up to the limit of concurrent children. Returns the run's
    /// progress if a task was changed concurrently and the run has to be left.
    pub(super) async fn delegate(&mut self, indices: &[usize]) -> Result<Option<RunProgress>> {
        let waiting = |planned: &PlannedCall| {
            planned.call.tool == DELEGATE
                && !planned.is_done()
                && !planned.links.awaits_approval()
                && planned.links.child.is_none()
        };
        let todo: Vec<usize> = indices.iter().copied().filter(|index| waiting(&self.plan[*index])).collect();
        if todo.is_empty() {
            return Ok(None);
        }
        self.update_background().await?;
        let events_before = self.ctx.journal.pending_event_count();
        let mut entry = Entry::default();
        let mut sessions = HashSet::new();
        for index in todo {
            let policy = &self.active.agent.policy;
            if self.live_children() >= policy.max_concurrent_subagents as usize {
                break;
            }
            if self.delegations >= policy.max_subagents {
                let message = format!("a run may delegate {} times", policy.max_subagents);
                self.refuse_call(index, &Error::new(Code::DelegationLimit, message), &mut entry);
                continue;
            }
            let delegation = match self.prepare(index, &sessions).await {
                Ok(delegation) => delegation,
                Err(error) if is_run_error(&error) => return Err(error),
                Err(error) => {
                    self.refuse_call(index, &error, &mut entry);
                    continue;
                }
            };
            sessions.insert(delegation.child.session);
            self.start(index, delegation, &mut entry);
        }
        if entry.steps.is_empty() {
            return Ok(None);
        }
        match self.ctx.journal.commit(entry).await {
            // The task was closed or got other work since it was read. The next owner reads it again.
            Err(error) if matches!(error.code(), Code::TaskNotFound | Code::SessionBusy) => {
                self.ctx.journal.truncate_events(events_before);
                Ok(Some(RunProgress::HandOver))
            }
            committed => committed.map(|()| None),
        }
    }

    /// Children that run, or may run.
    fn live_children(&self) -> usize {
        let waiting = self.plan.iter().filter(|planned| !planned.is_done() && planned.links.child.is_some());
        waiting.count() + self.live_background_children().count()
    }

    /// Background children that had not ended when they were last read.
    pub(super) fn live_background_children(&self) -> impl Iterator<Item = RunId> {
        self.background.iter().filter(|child| !child.ended).map(|child| child.child.run)
    }

    /// Reads which background children have ended. Their results are reported later, with the next model call.
    async fn update_background(&mut self) -> Result<()> {
        let reports = self.child_reports(self.live_background_children()).await?;
        let ended: HashSet<RunId> =
            reports.iter().filter(|report| report.state.is_terminal()).map(|report| report.run).collect();
        for child in &mut self.background {
            child.ended |= ended.contains(&child.child.run);
        }
        Ok(())
    }

    /// Selects the agent and the session of a delegation. Errors become the call's result. `taken` are sessions that
    /// other calls of the same response use.
    async fn prepare(&self, index: usize, taken: &HashSet<SessionId>) -> Result<PreparedDelegation> {
        let planned = &self.plan[index];
        let arguments: DelegateArguments = agent_tools::parse(&planned.effective().arguments)?;
        let definitions = self.setup.definitions();
        let own = &self.active.agent;
        let (grant, engine) = (self.ctx.grant, self.ctx.engine);
        let resumed = match &arguments.task_id {
            Some(task) => Some(self.earlier_task(task_session(task)?, taken).await?),
            None => None,
        };
        let named = arguments.subagent_type.as_deref();
        let name = match (&resumed, named, own.subagents.as_slice()) {
            (Some(task), Some(named), _) if task.agent != named => {
                let message = format!("the task is {}'s: leave subagent_type out", task.agent);
                return Err(Error::new(Code::AgentNotAllowed, message).at("arguments.subagent_type"));
            }
            (Some(task), _, _) => task.agent.as_str(),
            (None, Some(named), _) => named,
            (None, None, [only]) => only,
            (None, None, all) => {
                let message = format!("expected one of {}", all.join(", "));
                return Err(Error::invalid("arguments.subagent_type", message));
            }
        };
        let target = definitions.delegation_target(own, name)?;
        let named = call_targets::with_argument(&planned.effective(), "subagent_type", target.name.clone());
        if let Verdict::Deny(denial) = self.permission_verdict(&named) {
            return Err(Error::new(Code::CallDenied, denial.why));
        }
        let background = arguments.run_in_background.unwrap_or(target.background);
        let remaining = self.ctx.calls.deadline.saturating_duration_since(Instant::now());
        let session = resumed.as_ref().map_or_else(SessionId::new, |task| task.session);
        let new_session = match &resumed {
            Some(_) => None,
            None => Some(ChildSession {
                title: title(&arguments),
                agent: target.name.clone(),
                // An agent that names no model uses the parent's.
                model: target.model.is_none().then(|| self.active.model.reference.to_string()),
                permissions: self.inherited(),
            }),
        };
        let parts = vec![Part::text(task_text(&own.name, &arguments.prompt))];
        let input = MessageInput { id: MessageId::new(), parts, agent: None };
        let child = Child { session, run: RunId::new(), agent: target.name.clone(), background };
        let line = (grant.fence.tenant, session);
        let run = Run::queued(child.run, line, RunInput::Message(input), remaining.max(MIN_TIMEOUT));
        let traceparent = self.ctx.trace.passed_on(planned.id()).map(|trace| trace.to_string());
        let new = NewChild {
            new_session,
            permissions: resumed.and_then(|task| task.narrowed),
            run: Run { traceparent, ..run },
        };
        debug_assert!(
            grant.depth < engine.agents.settings.delegation.max_depth,
            "the tool is not offered there"
        );
        Ok(PreparedDelegation { child, new, description: title(&arguments) })
    }

    /// The session and the agent of an earlier task.
    async fn earlier_task(&self, session: SessionId, taken: &HashSet<SessionId>) -> Result<EarlierTask> {
        let (store, fence) = (&self.ctx.engine.store, self.ctx.grant.fence);
        let reference = SessionRef::Id(session);
        let unknown =
            || Error::new(Code::TaskNotFound, "this agent has no such task").at("arguments.task_id");
        let found =
            retry_until_abandoned(&self.ctx.control.abandon, || store.get_session(fence.tenant, &reference))
                .await;
        let found = match found {
            Err(error) if error.code() == Code::SessionNotFound => return Err(unknown()),
            found => found?,
        };
        if found.parent != Some(fence.session) {
            return Err(unknown());
        }
        if found.status == SessionStatus::Closed {
            let message = "the task was closed: begin a new one";
            return Err(Error::new(Code::TaskNotFound, message).at("arguments.task_id"));
        }
        if found.pending > 0 || taken.contains(&session) {
            let message = "the task is still being worked on: wait for its result";
            return Err(Error::new(Code::SessionBusy, message).at("arguments.task_id"));
        }
        let narrowed = found.permissions.within(&self.inherited());
        let narrowed = (narrowed != found.permissions).then_some(narrowed);
        Ok(EarlierTask { session, agent: found.agent.ok_or_else(unknown)?, narrowed })
    }

    /// A child gets no more permissions than its parent's session has.
    fn inherited(&self) -> SessionPermissions {
        let mut permissions = self.ctx.grant.permissions.clone();
        if self.active.mode == PermissionMode::Plan {
            permissions.mode = Some(PermissionMode::Plan);
        }
        permissions
    }

    fn start(&mut self, index: usize, delegation: PreparedDelegation, entry: &mut Entry) {
        let PreparedDelegation { child, new, description } = delegation;
        self.delegations += 1;
        let epoch = self.ctx.grant.fence.epoch;
        let planned = &mut self.plan[index];
        planned.start(epoch);
        planned.links.child = Some(child.clone());
        let call = planned.call.id;
        self.ctx.journal.add_event(EventBody::ToolStarted { call, tool: planned.call.tool.clone() });
        self.ctx.journal.add_event(EventBody::SubagentStarted {
            call,
            session: child.session,
            run: child.run,
            agent: child.agent.clone(),
            description,
            background: child.background,
        });
        if child.background {
            let mut outcome = ToolOutcome::without_result(&planned.call, CallStatus::Completed, None);
            outcome.output = json!({
                "task_id": child.session.to_string(),
                "agent": child.agent,
                "state": "started",
                "note": "the result comes by itself when it is there: go on with something else",
            });
            self.ctx.add_outcome_event(&outcome);
            planned.finish(outcome);
            self.background.push(BackgroundChild { call, child, ended: false });
        }
        planned.stored = true;
        entry.steps.push(planned.to_step());
        entry.children.push(new);
    }

    /// Takes the results of children that have ended.
    pub(super) async fn collect_child_results(&mut self, indices: &[usize]) -> Result<()> {
        let child = |index: &usize| {
            let planned = &self.plan[*index];
            planned.links.child.clone().filter(|_| !planned.is_done()).map(|child| (*index, child))
        };
        let waiting: Vec<(usize, Child)> = indices.iter().filter_map(child).collect();
        let reports = self.child_reports(waiting.iter().map(|(_, child)| child.run)).await?;
        let mut steps = Vec::new();
        for (index, child) in waiting {
            let ended = |report: &&ChildReport| report.run == child.run && report.state.is_terminal();
            let Some(report) = reports.iter().find(ended) else { continue };
            let outcome = self.ctx.calls.shorten(result(&self.plan[index], &child, report)).await;
            let planned = &mut self.plan[index];
            self.ctx.journal.add_event(ended_event(planned.call.id, &child, report.state));
            self.ctx.add_outcome_event(&outcome);
            planned.finish(outcome);
            planned.stored = true;
            steps.push(planned.to_step());
        }
        if steps.is_empty() { Ok(()) } else { self.ctx.journal.commit(Entry::steps(steps)).await }
    }

    async fn child_reports(&self, runs: impl Iterator<Item = RunId>) -> Result<Vec<ChildReport>> {
        let runs: Vec<RunId> = runs.collect();
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let (store, tenant) = (&self.ctx.engine.store, self.ctx.grant.fence.tenant);
        retry_until_abandoned(&self.ctx.control.abandon, || store.child_reports(tenant, &runs)).await
    }

    /// Appends the results of background children that have ended. They are committed only with the next model call;
    /// if that does not happen, the next owner appends them again.
    pub(super) async fn collect_background_results(&mut self) -> Result<()> {
        let reports = self.child_reports(self.background.iter().map(|child| child.child.run)).await?;
        for report in reports.iter().filter(|report| report.state.is_terminal()) {
            let Some(at) = self.background.iter().position(|child| child.child.run == report.run) else {
                continue;
            };
            let BackgroundChild { call, child, .. } = self.background.remove(at);
            let text = self.notice_text(call, &child, report).await;
            self.next_call_events.push(ended_event(call, &child, report.state));
            self.reported.push(child.run);
            let id = MessageId::new();
            self.notices.push(id);
            self.append_message(id, Role::User, vec![Part::text(text)]);
        }
        Ok(())
    }

    /// The notice of a child's end. A long result is stored in a file, like that of a tool.
    async fn notice_text(&self, call: ToolCallId, child: &Child, report: &ChildReport) -> String {
        let result = report.answer.as_deref().unwrap_or("(it said nothing)");
        let outcome = ToolOutcome {
            id: call,
            tool: DELEGATE.to_owned(),
            status: CallStatus::Completed,
            output: result.into(),
            failure: None,
            duration_ms: 0,
            place: None,
        };
        notice(child, report, &render::result_text(&self.ctx.calls.shorten(outcome).await))
    }
}

/// A background child whose end was not reported to the model yet.
#[derive(Clone, Debug)]
pub(super) struct BackgroundChild {
    pub(super) call: ToolCallId,
    pub(super) child: Child,
    /// It has been seen to be over.
    pub(super) ended: bool,
}

/// A task that was delegated before.
struct EarlierTask {
    session: SessionId,
    agent: String,
    /// The permissions of its session from now on, if narrower than before.
    narrowed: Option<SessionPermissions>,
}

fn ended_event(call: ToolCallId, child: &Child, state: RunState) -> EventBody {
    EventBody::SubagentEnded {
        call,
        session: child.session,
        run: child.run,
        agent: child.agent.clone(),
        state,
    }
}

/// Whether an error fails the run or its worker, rather than the call.
fn is_run_error(error: &Error) -> bool {
    matches!(error.code(), Code::OwnershipLost | Code::Internal) || error.code().is_outage()
}

fn title(arguments: &DelegateArguments) -> String {
    let line = match arguments.description.trim() {
        "" => arguments.prompt.trim().lines().next().unwrap_or_default(),
        description => description,
    };
    line.chars().filter(|character| !character.is_control()).take(80).collect()
}

fn task_text(from: &str, prompt: &str) -> String {
    format!(
        "The agent {from} gives you this task. Your last message is all that it will see of your work: say there what you \
         found and did.\n\n{}",
        prompt.trim()
    )
}

fn result(planned: &PlannedCall, child: &Child, report: &ChildReport) -> ToolOutcome {
    let (status, failure) = match (report.state, &report.failure) {
        (RunState::Completed, _) => (CallStatus::Completed, None),
        (state, Some(failure)) => {
            let message = format!("the task is {state}: {} ({})", failure.message, failure.code);
            (CallStatus::Failed, Some(Failure::new(Code::ToolFailed, message)))
        }
        (state, None) => {
            (CallStatus::Failed, Some(Failure::new(Code::ToolFailed, format!("the task is {state}"))))
        }
    };
    ToolOutcome {
        output: result_value(child, report),
        duration_ms: planned.age_ms(),
        ..ToolOutcome::without_result(&planned.call, status, failure)
    }
}

fn result_value(child: &Child, report: &ChildReport) -> Value {
    json!({
        "task_id": child.session.to_string(),
        "agent": child.agent,
        "state": report.state.as_str(),
        "result": report.answer.as_deref().unwrap_or("(it said nothing)"),
    })
}

fn notice(child: &Child, report: &ChildReport, result: &str) -> String {
    let failure = report.failure.as_ref().map(|failure| format!("\nerror: {}", failure.message));
    format!(
        "{}\ntask_id: {}\nagent: {}\nstate: {}{}\n\n{result}\n</task_notification>",
        transcript::NOTICE,
        child.session,
        child.agent,
        report.state,
        failure.unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_is_one_printable_line() {
        let title = |description: &str, prompt: &str| {
            let arguments = json!({ "description": description, "prompt": prompt });
            title(&agent_tools::parse(&arguments).unwrap())
        };
        assert_eq!(title(" look \u{0}around ", "x"), "look around");
        assert_eq!(title("", "\u{0}dig\ndeeper"), "dig");
        assert_eq!(title("", &"x".repeat(500)).len(), 80);
    }
}
