//! Giving a part of the work to another agent: a run of its own, in a session of its own.

use std::{collections::HashSet, time::Duration};

use remuda_domain::{
    Code, Error, EventBody, MessageId, RunId, RunInput, RunState, SessionId, ToolCallId,
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
    control::{self, DELEGATE, DelegateArguments},
    render, targets, transcript,
};
use crate::{journal::Entry, patiently, plan::Slot, stand::Walked};

/// Time that a child has at least: a run of no time is none.
const LEAST_TIME: Duration = Duration::from_millis(1);

/// The session that a `task_id` names.
pub(super) fn task_session(task: &str) -> Result<SessionId> {
    task.parse().map_err(|_| {
        Error::new(Code::TaskNotFound, "expected the task_id of an earlier result").at("arguments.task_id")
    })
}

/// A delegation that can begin.
struct Delegated {
    child: Child,
    new: NewChild,
    description: String,
}

impl AgentRun<'_> {
    /// Begins those of the calls that delegate and have not begun, as far as there is room for them. Says how the run is left
    /// if a task has meanwhile become something that cannot be gone on with.
    pub(super) async fn delegate(&mut self, indices: &[usize]) -> Result<Option<Walked>> {
        let waiting = |slot: &Slot| {
            slot.call.tool == DELEGATE
                && !slot.is_done()
                && !slot.links.awaits_approval()
                && slot.links.child.is_none()
        };
        let todo: Vec<usize> = indices.iter().copied().filter(|index| waiting(&self.slots[*index])).collect();
        if todo.is_empty() {
            return Ok(None);
        }
        self.count_background().await?;
        let notes = self.stand.journal.notes();
        let mut entry = Entry::default();
        let mut sessions = HashSet::new();
        for index in todo {
            let policy = &self.scene.agent.policy;
            if self.living() >= policy.max_concurrent_subagents as usize {
                break;
            }
            if self.children >= policy.max_subagents {
                let message = format!("a run may delegate {} times", policy.max_subagents);
                self.refuse_call(index, &Error::new(Code::DelegationLimit, message), &mut entry);
                continue;
            }
            let delegated = match self.prepare(index, &sessions).await {
                Ok(delegated) => delegated,
                Err(error) if is_fault(&error) => return Err(error),
                Err(error) => {
                    self.refuse_call(index, &error, &mut entry);
                    continue;
                }
            };
            sessions.insert(delegated.child.session);
            self.begin(index, delegated, &mut entry);
        }
        if entry.steps.is_empty() {
            return Ok(None);
        }
        match self.stand.journal.commit(entry).await {
            // Somebody closed a task, or gave it other work, since we looked. Whoever goes on looks again.
            Err(error) if matches!(error.code(), Code::TaskNotFound | Code::SessionBusy) => {
                self.stand.journal.forget_after(notes);
                Ok(Some(Walked::HandOver))
            }
            committed => committed.map(|()| None),
        }
    }

    /// Children that are, or may be, at work.
    fn living(&self) -> usize {
        let waiting = self.slots.iter().filter(|slot| !slot.is_done() && slot.links.child.is_some());
        waiting.count() + self.background_at_work().count()
    }

    /// Children in the background that had not ended when they were last looked at.
    pub(super) fn background_at_work(&self) -> impl Iterator<Item = RunId> {
        self.background.iter().filter(|sent| !sent.ended).map(|sent| sent.child.run)
    }

    /// Looks which children in the background have ended. What they say is heard later, with the next question.
    async fn count_background(&mut self) -> Result<()> {
        let reports = self.look_at(self.background_at_work()).await?;
        let ended: HashSet<RunId> =
            reports.iter().filter(|report| report.state.is_terminal()).map(|report| report.run).collect();
        for sent in &mut self.background {
            sent.ended |= ended.contains(&sent.child.run);
        }
        Ok(())
    }

    /// Decides who does it and where. Fails with what the model is told. `taken` are sessions that calls of the same answer use.
    async fn prepare(&self, index: usize, taken: &HashSet<SessionId>) -> Result<Delegated> {
        let slot = &self.slots[index];
        let arguments: DelegateArguments = control::parse(&slot.effective().arguments)?;
        let definitions = self.stage.definitions();
        let own = &self.scene.agent;
        let (grant, engine) = (self.stand.grant, self.stand.engine);
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
        let target = definitions.delegate(own, name)?;
        let named = targets::naming(&slot.effective(), "subagent_type", target.name.clone());
        if let Verdict::Deny(denial) = self.judge_call(&named) {
            return Err(Error::new(Code::CallDenied, denial.why));
        }
        let background = arguments.run_in_background.unwrap_or(target.background);
        let left = self.stand.calls.deadline.saturating_duration_since(Instant::now());
        let session = resumed.as_ref().map_or_else(SessionId::new, |task| task.session);
        let new_session = match &resumed {
            Some(_) => None,
            None => Some(ChildSession {
                title: title(&arguments),
                agent: target.name.clone(),
                // An agent without a wish for a model takes that of whoever sends it.
                model: target.model.is_none().then(|| self.scene.model.reference.to_string()),
                permissions: self.inherited(),
            }),
        };
        let parts = vec![Part::text(task_text(&own.name, &arguments.prompt))];
        let input = MessageInput { id: MessageId::new(), parts, agent: None };
        let child = Child { session, run: RunId::new(), agent: target.name.clone(), background };
        let new = NewChild {
            new_session,
            permissions: resumed.and_then(|task| task.narrowed),
            session,
            run: child.run,
            input: RunInput::Message(input),
            timeout: left.max(LEAST_TIME),
            traceparent: self.stand.trace.passed_on(slot.id()).map(|trace| trace.to_string()),
        };
        debug_assert!(
            grant.depth < engine.agents.settings.delegation.max_depth,
            "the tool is not offered there"
        );
        Ok(Delegated { child, new, description: title(&arguments) })
    }

    /// The session of an earlier task and who works there.
    async fn earlier_task(&self, session: SessionId, taken: &HashSet<SessionId>) -> Result<EarlierTask> {
        let (store, fence) = (&self.stand.engine.store, self.stand.grant.fence);
        let reference = SessionRef::Id(session);
        let unknown =
            || Error::new(Code::TaskNotFound, "this agent has no such task").at("arguments.task_id");
        let found =
            patiently(&self.stand.control.abandon, || store.get_session(fence.tenant, &reference)).await;
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

    /// A child may do no more than its parent's session may.
    fn inherited(&self) -> SessionPermissions {
        let mut permissions = self.stand.grant.permissions.clone();
        if self.scene.mode == PermissionMode::Plan {
            permissions.mode = Some(PermissionMode::Plan);
        }
        permissions
    }

    fn begin(&mut self, index: usize, delegated: Delegated, entry: &mut Entry) {
        let Delegated { child, new, description } = delegated;
        self.children += 1;
        let epoch = self.stand.grant.fence.epoch;
        let slot = &mut self.slots[index];
        slot.start(epoch);
        slot.links.child = Some(child.clone());
        let call = slot.call.id;
        self.stand.journal.note(EventBody::ToolStarted { call, tool: slot.call.tool.clone() });
        self.stand.journal.note(EventBody::SubagentStarted {
            call,
            session: child.session,
            run: child.run,
            agent: child.agent.clone(),
            description,
            background: child.background,
        });
        if child.background {
            let mut outcome = ToolOutcome::without_result(&slot.call, CallStatus::Completed, None);
            outcome.output = json!({
                "task_id": child.session.to_string(),
                "agent": child.agent,
                "state": "started",
                "note": "the result comes by itself when it is there: go on with something else",
            });
            self.stand.note_outcome(&outcome);
            slot.finish(outcome);
            self.background.push(Sent { call, child, ended: false });
        }
        slot.stored = true;
        entry.steps.push(slot.to_step());
        entry.children.push(new);
    }

    /// Takes the results of children that have ended.
    pub(super) async fn hear_children(&mut self, indices: &[usize]) -> Result<()> {
        let child = |index: &usize| {
            let slot = &self.slots[*index];
            slot.links.child.clone().filter(|_| !slot.is_done()).map(|child| (*index, child))
        };
        let waiting: Vec<(usize, Child)> = indices.iter().filter_map(child).collect();
        let reports = self.look_at(waiting.iter().map(|(_, child)| child.run)).await?;
        let mut steps = Vec::new();
        for (index, child) in waiting {
            let ended = |report: &&ChildReport| report.run == child.run && report.state.is_terminal();
            let Some(report) = reports.iter().find(ended) else { continue };
            let outcome = self.stand.calls.shorten(result(&self.slots[index], &child, report)).await;
            let slot = &mut self.slots[index];
            self.stand.journal.note(ended_event(slot.call.id, &child, report.state));
            self.stand.note_outcome(&outcome);
            slot.finish(outcome);
            slot.stored = true;
            steps.push(slot.to_step());
        }
        if steps.is_empty() { Ok(()) } else { self.stand.journal.commit(Entry::steps(steps)).await }
    }

    async fn look_at(&self, runs: impl Iterator<Item = RunId>) -> Result<Vec<ChildReport>> {
        let runs: Vec<RunId> = runs.collect();
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let (store, tenant) = (&self.stand.engine.store, self.stand.grant.fence.tenant);
        patiently(&self.stand.control.abandon, || store.look_at_children(tenant, &runs)).await
    }

    /// Says what children in the background came to. Says so only with the next question: until then, whoever takes the run over
    /// says it again.
    pub(super) async fn hear_background(&mut self) -> Result<()> {
        let reports = self.look_at(self.background.iter().map(|sent| sent.child.run)).await?;
        for report in reports.iter().filter(|report| report.state.is_terminal()) {
            let Some(at) = self.background.iter().position(|sent| sent.child.run == report.run) else {
                continue;
            };
            let Sent { call, child, .. } = self.background.remove(at);
            let text = self.told(call, &child, report).await;
            self.with_question.push(ended_event(call, &child, report.state));
            self.reported.push(child.run);
            let id = MessageId::new();
            self.notices.push(id);
            self.say(id, Role::User, vec![Part::text(text)]);
        }
        Ok(())
    }

    /// What the model is told of a child's end. A long answer is kept in a file, as that of a tool would be.
    async fn told(&self, call: ToolCallId, child: &Child, report: &ChildReport) -> String {
        let answer = report.answer.as_deref().unwrap_or("(it said nothing)");
        let outcome = ToolOutcome {
            id: call,
            tool: DELEGATE.to_owned(),
            status: CallStatus::Completed,
            output: answer.into(),
            failure: None,
            duration_ms: 0,
            place: None,
        };
        notice(child, report, &render::result_text(&self.stand.calls.shorten(outcome).await))
    }
}

/// A child in the background, of which the model has not heard yet.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) call: ToolCallId,
    pub(super) child: Child,
    /// It was seen to be over.
    pub(super) ended: bool,
}

/// A task that was given to an agent before.
struct EarlierTask {
    session: SessionId,
    agent: String,
    /// What its session may do from now on, if that is less than before.
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

/// What fails the run, or its worker, rather than the call.
fn is_fault(error: &Error) -> bool {
    matches!(error.code(), Code::OwnershipLost | Code::Internal | Code::Unavailable)
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

fn result(slot: &Slot, child: &Child, report: &ChildReport) -> ToolOutcome {
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
        output: answer(child, report),
        duration_ms: slot.age_ms(),
        ..ToolOutcome::without_result(&slot.call, status, failure)
    }
}

fn answer(child: &Child, report: &ChildReport) -> Value {
    json!({
        "task_id": child.session.to_string(),
        "agent": child.agent,
        "state": report.state.as_str(),
        "result": report.answer.as_deref().unwrap_or("(it said nothing)"),
    })
}

fn notice(child: &Child, report: &ChildReport, answer: &str) -> String {
    let failure = report.failure.as_ref().map(|failure| format!("\nerror: {}", failure.message));
    format!(
        "{}\ntask_id: {}\nagent: {}\nstate: {}{}\n\n{answer}\n</task_notification>",
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
    fn titles_are_one_line_that_every_store_takes() {
        let title = |description: &str, prompt: &str| {
            let arguments = json!({ "description": description, "prompt": prompt });
            title(&control::parse(&arguments).unwrap())
        };
        assert_eq!(title(" look \u{0}around ", "x"), "look around");
        assert_eq!(title("", "\u{0}dig\ndeeper"), "dig");
        assert_eq!(title("", &"x".repeat(500)).len(), 80);
    }
}
