//! The state that every run has while it executes: journal, call context and kill signals.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use remuda_domain::{
    Code, EventBody, RunState,
    error::Result,
    execution::{BackendKind, ExecutionSite},
    run::Failure,
    step::Step,
    tool::{CallStatus, Effects, ToolOutcome},
};
use remuda_sandbox::LazySandbox;
use remuda_store::{Grant, ParkRequest};
use remuda_tools::{BackgroundTasks, Registry};
use remuda_trace::RunTrace;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Engine, RunControl,
    call_context::CallContext,
    call_plan::PlannedCall,
    journal::{Entry, Journal},
    live_output::OutputPublisher,
};

/// A run that takes longer than this commits its `run.started` event early. A faster run commits it with its end.
const START_EVENT_DELAY: Duration = Duration::from_millis(25);
/// How long killed calls may take to exit. After that they are dropped, which kills them again.
const KILL_GRACE: Duration = Duration::from_secs(10);
/// Calls of one run that execute in parallel. Further calls wait for a permit.
const MAX_PARALLEL_CALLS: usize = 32;
/// A call that runs this long in a new sandbox commits its `sandbox.ready` event early. Faster calls commit it with
/// their results.
const SITE_EVENT_DELAY: Duration = Duration::from_millis(250);
const FAR_FUTURE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Why all running calls have to be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillReason {
    Cancelled,
    TimedOut,
    /// The worker must stop before its calls have finished. Another worker resumes the run.
    Interrupted,
    Abandoned,
}

/// Whether the event that names the execution site was added to the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SiteEvent {
    Pending,
    /// Due at this time at the latest.
    Due(ExecutionSite, Instant),
    Added,
}

/// How far a run got on this worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RunProgress {
    Finished,
    HandOver,
    /// The run waits in the store.
    Park(ParkRequest),
    Abandoned,
}

/// A run in progress.
pub(crate) struct RunContext<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) grant: &'a Grant,
    pub(crate) control: &'a RunControl,
    pub(crate) journal: Journal,
    pub(crate) trace: RunTrace,
    pub(crate) calls: CallContext,
    pub(crate) killed: Option<KillReason>,
    /// The run's total time limit, for the message of a timeout.
    pub(crate) limit: Duration,
    site_event: SiteEvent,
}

impl<'a> RunContext<'a> {
    /// `time` is how long the run may still take.
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
            permits: Arc::new(Semaphore::new(MAX_PARALLEL_CALLS)),
            publisher: OutputPublisher { transport: Arc::clone(&engine.transport), fence, run: run.id },
            shortens_results: false,
        };
        let mut journal = Journal::new(engine.dispatcher.clone(), fence, run.id, control.abandon.clone())
            .with_gate(control.gate.clone())
            .with_budget(grant.budgeted)
            .with_trace(trace);
        let started = EventBody::RunStarted { attempt: run.attempt, worker: fence.worker };
        journal.add_event_at(grant.at, started);
        let killed = run.cancel.is_some().then_some(KillReason::Cancelled);
        Self {
            engine,
            grant,
            control,
            journal,
            trace,
            calls,
            killed,
            limit: run.timeout,
            site_event: SiteEvent::Pending,
        }
    }

    pub(crate) fn tools(&self) -> &Registry {
        &self.calls.tools
    }

    pub(crate) fn effects(&self, tool: &str) -> Effects {
        self.tools().get(tool).map_or(Effects::Mutating, |tool| tool.effects())
    }

    /// The progress of a run that starts nothing more.
    pub(crate) fn progress(&self) -> RunProgress {
        match self.killed {
            Some(KillReason::Abandoned) => RunProgress::Abandoned,
            _ if self.control.abandon.is_cancelled() => RunProgress::Abandoned,
            Some(KillReason::Interrupted) => RunProgress::HandOver,
            _ => RunProgress::Finished,
        }
    }

    /// Waits for a reason to kill running calls, other than the current one.
    async fn next_kill_reason(&self) -> KillReason {
        let (control, watching) = (self.control, self.killed.is_none());
        tokio::select! {
            biased;
            () = control.abandon.cancelled(), if self.killed != Some(KillReason::Abandoned) => KillReason::Abandoned,
            () = control.cancel.cancelled(), if watching => KillReason::Cancelled,
            () = control.interrupt.cancelled(), if watching => KillReason::Interrupted,
            () = sleep_until(self.calls.deadline), if watching => KillReason::TimedOut,
            else => std::future::pending().await,
        }
    }

    /// Runs a future that can be dropped at any point, until it completes or there is a reason to kill it.
    pub(crate) async fn unless_killed<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let reason = tokio::select! {
            biased;
            reason = self.next_kill_reason() => reason,
            done = work => return Some(done),
        };
        self.killed = Some(reason);
        self.calls.kill.cancel();
        None
    }

    /// Commits the results of calls that an earlier owner left unfinished.
    pub(crate) async fn report_interrupted(
        &mut self,
        plan: &mut [PlannedCall],
        interrupted: &[usize],
    ) -> Result<()> {
        if interrupted.is_empty() {
            return Ok(());
        }
        let steps = interrupted.iter().map(|index| {
            let planned = &mut plan[*index];
            planned.stored = true;
            planned.to_step()
        });
        let steps: Vec<Step> = steps.collect();
        for outcome in steps.iter().filter_map(Step::call_outcome) {
            self.measure(outcome);
            self.journal.add_event(EventBody::ToolFailed(outcome.clone()));
        }
        self.journal.commit(Entry::steps(steps)).await
    }

    async fn flush(&mut self) -> Result<()> {
        if self.journal.has_pending_events() { self.journal.commit(Entry::default()).await } else { Ok(()) }
    }

    /// Executes calls in parallel. Each is committed when it ends. With `keep_last`, the last one is left to the
    /// run's final commit.
    pub(crate) async fn run_group(
        &mut self,
        plan: &mut [PlannedCall],
        todo: &[usize],
        keep_last: bool,
    ) -> Result<()> {
        self.commit_intents(plan, todo).await?;
        let mut running: FuturesUnordered<_> = todo
            .iter()
            .map(|index| {
                let (index, planned) = (*index, &plan[*index]);
                let (call, trace) = (planned.effective(), self.trace.passed_on(planned.id()));
                let calls = self.calls.clone();
                async move { (index, calls.execute(call, trace).await) }
            })
            .collect();
        let start_event_due = Instant::now() + START_EVENT_DELAY;
        let mut kill_deadline = Instant::now() + FAR_FUTURE;
        let uses_sandbox = todo.iter().any(|index| self.calls.needs_sandbox(&plan[*index].call.tool));
        loop {
            let watching = self.killed.is_none();
            let site_event_due = match &self.site_event {
                SiteEvent::Due(_, due) if watching => Some(*due),
                _ => None,
            };
            tokio::select! {
                biased;
                ended = running.next() => {
                    let Some((index, outcome)) = ended else { return Ok(()) };
                    let keep = keep_last && running.is_empty();
                    self.record(&mut plan[index], outcome, keep).await?;
                }
                reason = self.next_kill_reason() => {
                    self.killed = Some(reason);
                    self.calls.kill.cancel();
                    kill_deadline = Instant::now() + KILL_GRACE;
                }
                () = sleep_until(start_event_due), if self.journal.has_pending_events() && watching => self.flush().await?,
                site = self.calls.remote_site(), if uses_sandbox && self.site_event == SiteEvent::Pending => {
                    self.site_event = SiteEvent::Due(site, Instant::now() + SITE_EVENT_DELAY);
                }
                () = sleep_until(site_event_due.unwrap_or(kill_deadline)), if site_event_due.is_some() => {
                    self.add_site_event();
                    self.flush().await?;
                }
                () = sleep_until(kill_deadline) => return Ok(()),
            }
        }
    }

    /// Adds the start events of calls. Calls with side effects are committed as intents before they start.
    async fn commit_intents(&mut self, plan: &mut [PlannedCall], todo: &[usize]) -> Result<()> {
        // A repeatable call must not run too early either: only reads may run behind a closed gate.
        if todo.iter().any(|index| self.effects(&plan[*index].call.tool) != Effects::ReadOnly) {
            self.journal.wait_for_gate().await?;
        }
        let mut intents = Vec::new();
        for index in todo {
            let planned = &mut plan[*index];
            planned.start(self.grant.fence.epoch);
            let (call, tool) = (planned.call.id, planned.call.tool.clone());
            let repeatable = self.effects(&tool).repeatable();
            self.journal.add_event(EventBody::ToolStarted { call, tool });
            if !repeatable {
                intents.push(planned.to_step());
            }
        }
        if intents.is_empty() { Ok(()) } else { self.journal.commit(Entry::steps(intents)).await }
    }

    async fn record(&mut self, planned: &mut PlannedCall, outcome: ToolOutcome, keep: bool) -> Result<()> {
        match self.killed {
            Some(KillReason::Abandoned) => return Ok(()),
            Some(KillReason::Interrupted) if outcome.status == CallStatus::Cancelled => {
                self.interrupt(planned);
                return Ok(());
            }
            _ => {}
        }
        if let (SiteEvent::Pending, Some(site)) = (&self.site_event, &outcome.place) {
            self.site_event = SiteEvent::Due(site.clone(), Instant::now());
        }
        self.add_site_event();
        self.add_outcome_event(&outcome);
        planned.finish(outcome);
        if keep {
            return Ok(());
        }
        planned.stored = true;
        self.journal.commit(Entry::steps(vec![planned.to_step()])).await
    }

    fn add_site_event(&mut self) {
        match std::mem::replace(&mut self.site_event, SiteEvent::Added) {
            SiteEvent::Pending => self.site_event = SiteEvent::Pending,
            SiteEvent::Due(site, _) => self.journal.add_event(EventBody::SandboxReady(site)),
            SiteEvent::Added => {}
        }
    }

    pub(crate) fn add_outcome_event(&mut self, outcome: &ToolOutcome) {
        self.measure(outcome);
        self.journal.add_event(match outcome.status {
            CallStatus::Completed => EventBody::ToolCompleted(outcome.clone()),
            _ => EventBody::ToolFailed(outcome.clone()),
        });
    }

    fn measure(&self, outcome: &ToolOutcome) {
        let backend = match (&outcome.place, &self.calls.sandbox) {
            (Some(site), _) => site.backend,
            (None, Some(sandbox)) if self.calls.needs_sandbox(&outcome.tool) => sandbox.backend(),
            (None, _) => BackendKind::None,
        };
        let known = self.tools().get(&outcome.tool).is_some();
        self.engine.agents.meters.tool_call(outcome, known, backend);
    }

    /// Records that a call was killed because its worker stops. A repeatable call is left without a result and runs
    /// again.
    fn interrupt(&mut self, planned: &mut PlannedCall) {
        if self.effects(&planned.call.tool).repeatable() {
            return;
        }
        let outcome = ToolOutcome::interrupted(&planned.call, "stopped");
        self.measure(&outcome);
        self.journal.add_event(EventBody::ToolFailed(outcome.clone()));
        planned.finish(outcome);
    }

    /// The end state and failure of a killed run.
    pub(crate) fn end_of_killed(&self, killed: KillReason, cancel_reason: &str) -> (RunState, Failure) {
        match killed {
            KillReason::Cancelled => (RunState::Cancelled, Failure::new(Code::Cancelled, cancel_reason)),
            KillReason::TimedOut | KillReason::Interrupted | KillReason::Abandoned => {
                let message = format!("the run did not end within {:?}", self.limit);
                (RunState::TimedOut, Failure::new(Code::RunTimedOut, message))
            }
        }
    }

    /// The reason that was given for the cancellation.
    pub(crate) async fn cancel_reason(&self) -> String {
        let mut cancel = self.grant.run.cancel.clone();
        if self.killed == Some(KillReason::Cancelled) && cancel.is_none() {
            // The cancellation arrived after the claim.
            let run = self.engine.store.get_run(self.grant.fence.tenant, self.grant.run.id).await;
            cancel = run.ok().and_then(|run| run.cancel);
        }
        cancel.map_or_else(|| "cancelled".to_owned(), |cancel| cancel.reason)
    }
}

/// Gives every unfinished call of an ending run an outcome. Returns the steps that the store does not have yet.
pub(crate) fn close_unfinished(plan: &mut [PlannedCall], end: RunState) -> Vec<Step> {
    for planned in plan.iter_mut().filter(|planned| !planned.is_done()) {
        let outcome = ToolOutcome::unreached(&planned.call, end);
        planned.finish(outcome);
    }
    plan.iter().filter(|planned| !planned.stored).map(PlannedCall::to_step).collect()
}
