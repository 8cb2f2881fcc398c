//! What every run has around it while it executes: its journal, its calls, and the reasons to stop.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use remuda_domain::{
    Code, EventBody, RunState,
    error::Result,
    execution::{BackendKind, Place},
    run::Failure,
    step::Step,
    tool::{CallStatus, Effects, ToolOutcome},
};
use remuda_sandbox::LazySandbox;
use remuda_store::{Grant, Parking};
use remuda_tools::{BackgroundTasks, Registry};
use remuda_trace::RunTrace;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Engine, RunControl,
    calls::CallContext,
    journal::{Entry, Journal},
    live_output::Audience,
    plan::Slot,
};

/// A run that takes longer than this says in the store that it has started; a quicker one says so with its end.
const SOON: Duration = Duration::from_millis(25);
/// How long killed calls may take to be gone before they are dropped, which kills them again.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// Calls of one run that go on at once; more wait for room.
const MAX_AT_ONCE: usize = 32;
/// A call that goes on for so long in a new place is worth a commit that says where. Others say it with their results.
const SETTLED: Duration = Duration::from_millis(250);
const NEVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Why everything that runs has to die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Killed {
    Cancelled,
    TimedOut,
    /// The worker must stop before the calls have: another worker goes on after them.
    Interrupted,
    Abandoned,
}

/// Whether it was told where calls are executed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PlaceTold {
    No,
    /// At the latest then.
    Soon(Place, Instant),
    Yes,
}

/// How far a run got on this worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Walked {
    ToTheEnd,
    HandOver,
    /// It waits as data.
    Park(Parking),
    Abandoned,
}

/// A run under way.
pub(crate) struct Stand<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) grant: &'a Grant,
    pub(crate) control: &'a RunControl,
    pub(crate) journal: Journal,
    pub(crate) trace: RunTrace,
    pub(crate) calls: CallContext,
    pub(crate) killed: Option<Killed>,
    /// How long the run may take in all, for the message that says that it took longer.
    pub(crate) limit: Duration,
    place: PlaceTold,
}

impl<'a> Stand<'a> {
    /// `time` is how long the run may go on from now.
    pub(crate) fn new(
        engine: &'a Engine,
        grant: &'a Grant,
        control: &'a RunControl,
        sandbox: Option<Arc<LazySandbox>>,
        time: Duration,
    ) -> Self {
        let (run, fence, trace) = (&grant.run, grant.fence, RunTrace::of(&grant.run));
        let deadline = Instant::now() + time;
        let calls = CallContext {
            session: fence.session,
            tools: engine.tools.clone(),
            sandbox,
            background: Arc::new(BackgroundTasks::new(deadline)),
            deadline,
            kill: CancellationToken::new(),
            room: Arc::new(Semaphore::new(MAX_AT_ONCE)),
            audience: Audience { transport: Arc::clone(&engine.transport), fence, run: run.id },
            shorten: None,
        };
        let mut journal = Journal::new(
            Arc::clone(&engine.store),
            Arc::clone(&engine.transport),
            fence,
            run.id,
            control.abandon.clone(),
        )
        .behind(control.gate.clone())
        .limited(grant.budgeted)
        .traced(trace);
        let started = EventBody::RunStarted { attempt: run.attempt, worker: fence.worker };
        journal.note_at(grant.at, started);
        let killed = run.cancel.is_some().then_some(Killed::Cancelled);
        Self {
            engine,
            grant,
            control,
            journal,
            trace,
            calls,
            killed,
            limit: run.timeout,
            place: PlaceTold::No,
        }
    }

    pub(crate) fn tools(&self) -> &Registry {
        &self.calls.tools
    }

    pub(crate) fn effects(&self, tool: &str) -> Effects {
        self.tools().get(tool).map_or(Effects::Mutating, |tool| tool.effects())
    }

    /// Where a run stands that has nothing more to start.
    pub(crate) fn walked(&self) -> Walked {
        match self.killed {
            Some(Killed::Abandoned) => Walked::Abandoned,
            _ if self.control.abandon.is_cancelled() => Walked::Abandoned,
            Some(Killed::Interrupted) => Walked::HandOver,
            _ => Walked::ToTheEnd,
        }
    }

    /// Waits for a reason to kill what runs, other than the one there is already.
    async fn reason(&self) -> Killed {
        let (control, watching) = (self.control, self.killed.is_none());
        tokio::select! {
            biased;
            () = control.abandon.cancelled(), if self.killed != Some(Killed::Abandoned) => Killed::Abandoned,
            () = control.cancel.cancelled(), if watching => Killed::Cancelled,
            () = control.interrupt.cancelled(), if watching => Killed::Interrupted,
            () = sleep_until(self.calls.deadline), if watching => Killed::TimedOut,
            else => std::future::pending().await,
        }
    }

    /// Does something that can be dropped anywhere, unless there is a reason to kill it.
    pub(crate) async fn unless_killed<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let reason = tokio::select! {
            biased;
            reason = self.reason() => reason,
            done = work => return Some(done),
        };
        self.killed = Some(reason);
        self.calls.kill.cancel();
        None
    }

    /// Tells of calls that an earlier owner left unfinished.
    pub(crate) async fn report_interrupted(
        &mut self,
        slots: &mut [Slot],
        interrupted: &[usize],
    ) -> Result<()> {
        if interrupted.is_empty() {
            return Ok(());
        }
        let steps = interrupted.iter().map(|index| {
            let slot = &mut slots[*index];
            slot.stored = true;
            slot.to_step()
        });
        let steps: Vec<Step> = steps.collect();
        for outcome in steps.iter().filter_map(Step::call_outcome) {
            self.measure(outcome);
            self.journal.note(EventBody::ToolFailed(outcome.clone()));
        }
        self.journal.commit(Entry::steps(steps)).await
    }

    async fn flush(&mut self) -> Result<()> {
        if self.journal.has_notes() { self.journal.commit(Entry::default()).await } else { Ok(()) }
    }

    /// Executes calls together. Each is committed when it ends; with `keep_last`, the last one is left to the run's end.
    pub(crate) async fn run_group(
        &mut self,
        slots: &mut [Slot],
        todo: &[usize],
        keep_last: bool,
    ) -> Result<()> {
        self.announce(slots, todo).await?;
        let mut running: FuturesUnordered<_> = todo
            .iter()
            .map(|index| {
                let (index, slot) = (*index, &slots[*index]);
                let (call, trace) = (slot.effective(), self.trace.passed_on(slot.id()));
                let calls = self.calls.clone();
                async move { (index, calls.execute(call, trace).await) }
            })
            .collect();
        let soon = Instant::now() + SOON;
        let mut patience = Instant::now() + NEVER;
        let placed = todo.iter().any(|index| self.calls.needs_sandbox(&slots[*index].call.tool));
        loop {
            let watching = self.killed.is_none();
            let tell_place = match &self.place {
                PlaceTold::Soon(_, due) if watching => Some(*due),
                _ => None,
            };
            tokio::select! {
                biased;
                ended = running.next() => {
                    let Some((index, outcome)) = ended else { return Ok(()) };
                    let keep = keep_last && running.is_empty();
                    self.record(&mut slots[index], outcome, keep).await?;
                }
                reason = self.reason() => {
                    self.killed = Some(reason);
                    self.calls.kill.cancel();
                    patience = Instant::now() + KILL_PATIENCE;
                }
                () = sleep_until(soon), if self.journal.has_notes() && watching => self.flush().await?,
                place = self.calls.placed(), if placed && self.place == PlaceTold::No => {
                    self.place = PlaceTold::Soon(place, Instant::now() + SETTLED);
                }
                () = sleep_until(tell_place.unwrap_or(patience)), if tell_place.is_some() => {
                    self.tell_place();
                    self.flush().await?;
                }
                () = sleep_until(patience) => return Ok(()),
            }
        }
    }

    /// Notes that calls start. Those with side effects are in the store before they do.
    async fn announce(&mut self, slots: &mut [Slot], todo: &[usize]) -> Result<()> {
        // What may be done twice may still not be done too early: only looking is harmless.
        if todo.iter().any(|index| self.effects(&slots[*index].call.tool) != Effects::ReadOnly) {
            self.journal.cleared().await?;
        }
        let mut intents = Vec::new();
        for index in todo {
            let slot = &mut slots[*index];
            slot.start(self.grant.fence.epoch);
            let (call, tool) = (slot.call.id, slot.call.tool.clone());
            let repeatable = self.effects(&tool).repeatable();
            self.journal.note(EventBody::ToolStarted { call, tool });
            if !repeatable {
                intents.push(slot.to_step());
            }
        }
        if intents.is_empty() { Ok(()) } else { self.journal.commit(Entry::steps(intents)).await }
    }

    async fn record(&mut self, slot: &mut Slot, outcome: ToolOutcome, keep: bool) -> Result<()> {
        match self.killed {
            Some(Killed::Abandoned) => return Ok(()),
            Some(Killed::Interrupted) if outcome.status == CallStatus::Cancelled => {
                self.interrupt(slot);
                return Ok(());
            }
            _ => {}
        }
        if let (PlaceTold::No, Some(place)) = (&self.place, &outcome.place) {
            self.place = PlaceTold::Soon(place.clone(), Instant::now());
        }
        self.tell_place();
        self.note_outcome(&outcome);
        slot.finish(outcome);
        if keep {
            return Ok(());
        }
        slot.stored = true;
        self.journal.commit(Entry::steps(vec![slot.to_step()])).await
    }

    fn tell_place(&mut self) {
        match std::mem::replace(&mut self.place, PlaceTold::Yes) {
            PlaceTold::No => self.place = PlaceTold::No,
            PlaceTold::Soon(place, _) => self.journal.note(EventBody::SandboxReady(place)),
            PlaceTold::Yes => {}
        }
    }

    pub(crate) fn note_outcome(&mut self, outcome: &ToolOutcome) {
        self.measure(outcome);
        self.journal.note(match outcome.status {
            CallStatus::Completed => EventBody::ToolCompleted(outcome.clone()),
            _ => EventBody::ToolFailed(outcome.clone()),
        });
    }

    fn measure(&self, outcome: &ToolOutcome) {
        let backend = match (&outcome.place, &self.calls.sandbox) {
            (Some(place), _) => place.backend,
            (None, Some(sandbox)) if self.calls.needs_sandbox(&outcome.tool) => sandbox.backend(),
            (None, _) => BackendKind::None,
        };
        let known = self.tools().get(&outcome.tool).is_some();
        self.engine.agents.meters.tool_call(outcome, known, backend);
    }

    /// Records that a call was cut short because its worker stops. One that can be repeated simply has not happened yet.
    fn interrupt(&mut self, slot: &mut Slot) {
        if self.effects(&slot.call.tool).repeatable() {
            return;
        }
        let outcome = ToolOutcome::interrupted(&slot.call, "stopped");
        self.measure(&outcome);
        self.journal.note(EventBody::ToolFailed(outcome.clone()));
        slot.finish(outcome);
    }

    /// How a run ended that was killed.
    pub(crate) fn killed_end(&self, killed: Killed, cancel_reason: &str) -> (RunState, Failure) {
        match killed {
            Killed::Cancelled => (RunState::Cancelled, Failure::new(Code::Cancelled, cancel_reason)),
            Killed::TimedOut | Killed::Interrupted | Killed::Abandoned => {
                let message = format!("the run did not end within {:?}", self.limit);
                (RunState::TimedOut, Failure::new(Code::RunTimedOut, message))
            }
        }
    }

    /// Why the run was cancelled, in the words of whoever asked for it.
    pub(crate) async fn cancel_reason(&self) -> String {
        let mut cancel = self.grant.run.cancel.clone();
        if self.killed == Some(Killed::Cancelled) && cancel.is_none() {
            // It was asked for after the claim.
            let run = self.engine.store.get_run(self.grant.fence.tenant, self.grant.run.id).await;
            cancel = run.ok().and_then(|run| run.cancel);
        }
        cancel.map_or_else(|| "cancelled".to_owned(), |cancel| cancel.reason)
    }
}

/// Completes what a run that ends did not come to. Returns the steps that the store does not have yet.
pub(crate) fn close_slots(slots: &mut [Slot], end: RunState) -> Vec<Step> {
    for slot in slots.iter_mut().filter(|slot| !slot.is_done()) {
        let outcome = ToolOutcome::unreached(&slot.call, end);
        slot.finish(outcome);
    }
    slots.iter().filter(|slot| !slot.stored).map(Slot::to_step).collect()
}
