//! The way of a `tools` run.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use remuda_domain::{
    Code, EventBody, RunInput, RunState,
    error::Result,
    run::{Failure, RunEnd, ToolsInput},
    step::{Part, Role, Step},
    tool::{CallStatus, Effects, ToolOutcome},
};
use remuda_sandbox::LazySandbox;
use remuda_store::{Grant, NewMessage};
use remuda_tools::BackgroundTasks;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::{
    Ending, Engine, Execution, HandOver, RunControl,
    calls::CallContext,
    journal::{Journal, now},
    plan::{self, Slot},
};

/// A run that takes longer than this says in the store that it has started; a quicker one says so with its end.
const SOON: Duration = Duration::from_millis(25);
/// How long killed calls may take to be gone before they are dropped, which kills them again.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Why everything that runs has to die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    Cancelled,
    TimedOut,
    /// The worker must stop before the calls have: another worker goes on after them.
    Interrupted,
    Abandoned,
}

/// How far a run got on this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walked {
    ToTheEnd,
    HandOver,
    Abandoned,
}

impl Engine {
    /// Executes the granted run until it is over, handed over or abandoned.
    pub async fn execute(&self, grant: &Grant, control: &RunControl) -> Execution {
        match self.tools_run(grant, control).await {
            Ok(execution) => execution,
            Err(error) => {
                tracing::warn!(run = %grant.run.id, error = error.chain(), "the run was given up");
                Execution::Abandoned
            }
        }
    }

    /// Fails only when the journal cannot be written, that is when the session is lost.
    async fn tools_run(&self, grant: &Grant, control: &RunControl) -> Result<Execution> {
        let RunInput::Tools(input) = &grant.run.input;
        let sandbox = self.place(grant).await;
        let mut way = Way::new(self, grant, control, input, sandbox);
        let walked = way.walk().await;
        // Whichever way it goes on, nothing of this run is left here.
        way.calls.background.shutdown().await;
        match walked? {
            Walked::Abandoned => Ok(Execution::Abandoned),
            Walked::HandOver => Ok(Execution::HandedOver(Box::new(way.hand_over()))),
            Walked::ToTheEnd => {
                let reason = self.cancel_reason(grant, way.killed).await;
                Ok(Execution::Ended(Box::new(way.end(&reason))))
            }
        }
    }

    /// Why the run was cancelled, in the words of whoever asked for it.
    async fn cancel_reason(&self, grant: &Grant, killed: Option<Killed>) -> String {
        let mut cancel = grant.run.cancel.clone();
        if killed == Some(Killed::Cancelled) && cancel.is_none() {
            // It was asked for after the claim.
            let run = self.store.get_run(grant.fence.tenant, grant.run.id).await;
            cancel = run.ok().and_then(|run| run.cancel);
        }
        cancel.map_or_else(|| "cancelled".to_owned(), |cancel| cancel.reason)
    }
}

/// A run on its way.
struct Way<'a> {
    grant: &'a Grant,
    control: &'a RunControl,
    input: &'a ToolsInput,
    engine: &'a Engine,
    journal: Journal,
    slots: Vec<Slot>,
    interrupted: Vec<usize>,
    calls: CallContext,
    killed: Option<Killed>,
    /// Steps that the next commit has to carry.
    unsaved: Vec<usize>,
    /// Why the run can execute nowhere.
    refused: Option<Failure>,
}

impl<'a> Way<'a> {
    fn new(
        engine: &'a Engine,
        grant: &'a Grant,
        control: &'a RunControl,
        input: &'a ToolsInput,
        sandbox: Result<Arc<LazySandbox>>,
    ) -> Self {
        let (run, fence) = (&grant.run, grant.fence);
        let effects = |tool: &str| engine.tools.get(tool).map_or(Effects::Mutating, |tool| tool.effects());
        let (slots, interrupted) = plan::resume(&input.calls, &grant.steps, fence.epoch, effects);
        let (sandbox, refused) = match sandbox {
            Ok(sandbox) => (Some(sandbox), None),
            Err(error) => (None, Some(Failure::new(error.code(), error.to_string()))),
        };
        let deadline = Instant::now() + grant.time_left;
        let calls = CallContext {
            session: fence.session,
            tools: engine.tools.clone(),
            sandbox,
            background: Arc::new(BackgroundTasks::new(deadline)),
            deadline,
            kill: CancellationToken::new(),
        };
        let mut journal = Journal::new(
            Arc::clone(&engine.store),
            Arc::clone(&engine.transport),
            fence,
            run.id,
            control.abandon.clone(),
        );
        journal.note(EventBody::RunStarted { attempt: run.attempt, worker: fence.worker });
        Self {
            grant,
            control,
            input,
            engine,
            journal,
            slots,
            interrupted,
            calls,
            killed: None,
            unsaved: Vec::new(),
            refused,
        }
    }

    /// Executes what is left of the calls, group by group.
    async fn walk(&mut self) -> Result<Walked> {
        self.report_interrupted().await?;
        if self.grant.run.cancel.is_some() {
            self.killed = Some(Killed::Cancelled);
        }
        for group in plan::groups(&self.input.calls) {
            let todo: Vec<usize> = group.filter(|index| !self.slots[*index].is_done()).collect();
            if todo.is_empty() {
                continue;
            }
            if self.is_over() {
                break;
            }
            if self.control.drain.is_cancelled() {
                return Ok(Walked::HandOver);
            }
            self.run_group(&todo).await?;
        }
        Ok(match self.killed {
            Some(Killed::Abandoned) => Walked::Abandoned,
            _ if self.control.abandon.is_cancelled() => Walked::Abandoned,
            Some(Killed::Interrupted) => Walked::HandOver,
            _ => Walked::ToTheEnd,
        })
    }

    /// Tells of the calls that an earlier owner left unfinished.
    async fn report_interrupted(&mut self) -> Result<()> {
        let steps: Vec<Step> = self.interrupted.iter().map(|index| self.slots[*index].step.clone()).collect();
        if steps.is_empty() {
            return Ok(());
        }
        for outcome in steps.iter().filter_map(|step| step.outcome.clone()) {
            self.journal.note(EventBody::ToolFailed(outcome));
        }
        self.journal.commit(steps).await
    }

    /// Nothing more is to be started.
    fn is_over(&self) -> bool {
        self.killed.is_some() || self.refused.is_some() || self.failure().is_some()
    }

    /// The failed call that fails the run, if there is one. An interrupted call has a result: that nobody knows.
    fn failure(&self) -> Option<&ToolOutcome> {
        if self.input.continue_on_error {
            return None;
        }
        let outcomes = self.slots.iter().filter_map(|slot| slot.step.outcome.as_ref());
        outcomes
            .into_iter()
            .find(|outcome| matches!(outcome.status, CallStatus::Failed | CallStatus::TimedOut))
    }

    async fn flush(&mut self) -> Result<()> {
        if self.journal.has_notes() { self.journal.commit(Vec::new()).await } else { Ok(()) }
    }

    /// Executes calls together. Each is committed when it ends, except the run's very last, which its end carries.
    async fn run_group(&mut self, todo: &[usize]) -> Result<()> {
        self.announce(todo).await?;
        let is_last = self.slots.iter().filter(|slot| !slot.is_done()).count() == todo.len();
        let mut running: FuturesUnordered<_> = todo
            .iter()
            .map(|index| {
                let (index, call) = (*index, self.slots[*index].step.call.clone());
                let calls = self.calls.clone();
                async move { (index, calls.execute(call).await) }
            })
            .collect();
        let soon = Instant::now() + SOON;
        let mut patience = Instant::now() + Duration::from_secs(365 * 24 * 60 * 60);
        loop {
            let watching = self.killed.is_none();
            tokio::select! {
                biased;
                ended = running.next() => {
                    let Some((index, outcome)) = ended else { return Ok(()) };
                    self.record(index, outcome, is_last && running.is_empty()).await?;
                }
                () = self.control.abandon.cancelled(), if self.killed != Some(Killed::Abandoned) => {
                    self.kill(Killed::Abandoned, &mut patience);
                }
                () = self.control.cancel.cancelled(), if watching => self.kill(Killed::Cancelled, &mut patience),
                () = self.control.interrupt.cancelled(), if watching => {
                    self.kill(Killed::Interrupted, &mut patience);
                }
                () = sleep_until(self.calls.deadline), if watching => self.kill(Killed::TimedOut, &mut patience),
                () = sleep_until(soon), if self.journal.has_notes() && watching => self.flush().await?,
                () = sleep_until(patience) => return Ok(()),
            }
        }
    }

    fn kill(&mut self, why: Killed, patience: &mut Instant) {
        self.killed = Some(why);
        self.calls.kill.cancel();
        *patience = Instant::now() + KILL_PATIENCE;
    }

    /// Notes that calls start. Those with side effects are in the store before they do.
    async fn announce(&mut self, todo: &[usize]) -> Result<()> {
        let mut intents = Vec::new();
        for index in todo {
            let slot = &mut self.slots[*index];
            slot.step.started_at = now();
            slot.step.epoch = self.grant.fence.epoch;
            let call = &slot.step.call;
            self.journal.note(EventBody::ToolStarted { call: call.id, tool: call.tool.clone() });
            let repeatable =
                self.engine.tools.get(&call.tool).is_some_and(|tool| tool.effects().repeatable());
            if !repeatable {
                slot.stored = true;
                intents.push(slot.step.clone());
            }
        }
        if intents.is_empty() { Ok(()) } else { self.journal.commit(intents).await }
    }

    async fn record(&mut self, index: usize, outcome: ToolOutcome, is_very_last: bool) -> Result<()> {
        let outcome = match self.killed {
            Some(Killed::Abandoned) => return Ok(()),
            Some(Killed::Interrupted) if outcome.status == CallStatus::Cancelled => {
                self.interrupt(index);
                return Ok(());
            }
            _ => outcome,
        };
        let body = match outcome.status {
            CallStatus::Completed => EventBody::ToolCompleted(outcome.clone()),
            _ => EventBody::ToolFailed(outcome.clone()),
        };
        self.journal.note(body);
        let slot = &mut self.slots[index];
        slot.stored = !is_very_last;
        slot.finish(outcome);
        if is_very_last { Ok(()) } else { self.journal.commit(vec![self.slots[index].step.clone()]).await }
    }

    /// Records that a call was cut short because its worker stops. One that can be repeated simply has not happened yet.
    fn interrupt(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let effects = self.engine.tools.get(&slot.step.call.tool).map(|tool| tool.effects());
        if effects.is_some_and(|effects| effects.repeatable()) {
            return;
        }
        let outcome = ToolOutcome::interrupted(&slot.step.call, "stopped");
        self.journal.note(EventBody::ToolFailed(outcome.clone()));
        slot.finish(outcome);
        self.unsaved.push(index);
    }

    /// What the commit holds that hands the run over.
    fn hand_over(mut self) -> HandOver {
        let steps = self.unsaved.iter().map(|index| self.slots[*index].step.clone()).collect();
        HandOver { steps, events: self.journal.take_notes() }
    }

    /// What the run's last commit holds.
    fn end(mut self, cancel_reason: &str) -> Ending {
        let (state, failure) = match (self.killed, self.failure()) {
            (Some(Killed::Cancelled), _) => {
                (RunState::Cancelled, Some(Failure::new(Code::Cancelled, cancel_reason)))
            }
            (Some(Killed::TimedOut | Killed::Interrupted | Killed::Abandoned), _) => {
                let message = format!("the run did not end within {:?}", self.grant.run.timeout);
                (RunState::TimedOut, Some(Failure::new(Code::RunTimedOut, message)))
            }
            (None, _) if self.refused.is_some() => (RunState::Failed, self.refused.take()),
            (None, Some(outcome)) => (RunState::Failed, Some(run_failure(outcome))),
            (None, None) => (RunState::Completed, None),
        };
        let mut steps = Vec::new();
        for slot in &mut self.slots {
            if !slot.is_done() {
                slot.stored = false;
                let outcome = ToolOutcome::unreached(&slot.step.call, state);
                slot.finish(outcome);
            }
            if !slot.stored {
                steps.push(slot.step.clone());
            }
        }
        let outcomes: Vec<ToolOutcome> =
            self.slots.iter().filter_map(|slot| slot.step.outcome.clone()).collect();
        let stopped_at = (state == RunState::Cancelled).then(|| {
            self.journal.note(EventBody::RunStopped);
            Instant::now()
        });
        let messages = if self.input.record { transcript(&self.slots) } else { Vec::new() };
        Ending {
            end: RunEnd { state, outcomes, failure },
            started_at: self.grant.run.started_at.unwrap_or_else(now),
            stopped_at,
            steps,
            events: self.journal.take_notes(),
            messages,
        }
    }
}

fn run_failure(outcome: &ToolOutcome) -> Failure {
    let cause = outcome.failure.as_ref().map_or("no reason given", |failure| failure.message.as_str());
    let code = if outcome.status == CallStatus::TimedOut { Code::ToolTimedOut } else { Code::ToolFailed };
    Failure::new(code, format!("{} failed: {cause}", outcome.tool))
}

/// The calls and their results as one message, which agents of the session will see.
fn transcript(slots: &[Slot]) -> Vec<NewMessage> {
    let uses = slots.iter().map(|slot| Part::ToolUse { call: slot.step.call.clone() });
    let results = slots.iter().filter_map(|slot| slot.step.outcome.clone());
    let parts = uses.chain(results.map(|outcome| Part::ToolResult { outcome })).collect();
    vec![NewMessage { role: Role::Tool, parts }]
}
