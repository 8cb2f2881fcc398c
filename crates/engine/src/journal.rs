//! The journal of an execution: buffers events and commits them with steps.

use remuda_dispatch::{Dispatcher, session_abandoned};
use remuda_domain::{
    EventBody, Fence, RunId, Timestamp, budget::Spent, content::Content, error::Result, event::NewEvent,
    step::Step,
};
use remuda_store::{BudgetLimits, Commit, NewApproval, NewChild, NewMessage, RunTransition};
use remuda_trace::RunTrace;
use tokio_util::sync::CancellationToken;

use crate::Gate;

/// Collects events and commits them with steps, under the fence of the session's owner.
pub struct Journal {
    dispatcher: Dispatcher,
    fence: Fence,
    run: RunId,
    abandon: CancellationToken,
    gate: Gate,
    /// Events for the next commit.
    pending_events: Vec<NewEvent>,
    /// The limits on the run's spending, as of the last commit that reported costs.
    budgeted: Option<BudgetLimits>,
    trace: Option<RunTrace>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("fence", &self.fence).field("run", &self.run).finish_non_exhaustive()
    }
}

/// The content of a commit besides its events.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    pub steps: Vec<Step>,
    pub messages: Vec<NewMessage>,
    pub contents: Vec<Content>,
    pub children: Vec<NewChild>,
    pub approvals: Vec<NewApproval>,
    pub spent: Vec<Spent>,
}

impl Entry {
    #[must_use]
    pub fn steps(steps: Vec<Step>) -> Self {
        Self { steps, ..Self::default() }
    }

    /// The commit with this content.
    #[must_use]
    pub fn into_commit(self, fence: Fence, run: RunId, events: Vec<NewEvent>, then: RunTransition) -> Commit {
        Commit {
            steps: self.steps,
            messages: self.messages,
            contents: self.contents,
            events,
            children: self.children,
            approvals: self.approvals,
            spent: self.spent,
            ..Commit::new(fence, run, then)
        }
    }
}

/// The current time, at the precision that the stores keep.
#[must_use]
pub fn now() -> Timestamp {
    let now = chrono::Utc::now();
    Timestamp::from_timestamp_micros(now.timestamp_micros()).unwrap_or(now)
}

impl Journal {
    #[must_use]
    pub fn new(dispatcher: Dispatcher, fence: Fence, run: RunId, abandon: CancellationToken) -> Self {
        let (gate, pending_events) = (Gate::default(), Vec::new());
        Self { dispatcher, fence, run, abandon, gate, pending_events, budgeted: None, trace: None }
    }

    /// Makes commits wait for the gate.
    #[must_use]
    pub fn with_gate(self, gate: Gate) -> Self {
        Self { gate, ..self }
    }

    /// Sets the limits on the run's spending that the claim found.
    #[must_use]
    pub fn with_budget(self, budgeted: Option<BudgetLimits>) -> Self {
        Self { budgeted, ..self }
    }

    /// Emits commits and steps as spans, if the run's trace is collected.
    #[must_use]
    pub fn with_trace(self, trace: RunTrace) -> Self {
        Self { trace: Some(trace).filter(RunTrace::is_collected), ..self }
    }

    /// The limits on the run's spending. A commit that reports costs also reads limits that were set meanwhile.
    #[must_use]
    pub fn budgeted(&self) -> Option<BudgetLimits> {
        self.budgeted
    }

    /// Buffers an event for the next commit. A short run needs only its last commit.
    pub fn add_event(&mut self, body: EventBody) {
        self.add_event_at(now(), body);
    }

    /// Buffers an event whose time comes from the store.
    pub fn add_event_at(&mut self, at: Timestamp, body: EventBody) {
        self.pending_events.push(NewEvent { run: Some(self.run), at, body });
    }

    #[must_use]
    pub fn has_pending_events(&self) -> bool {
        !self.pending_events.is_empty()
    }

    /// The number of buffered events, for [`truncate_events`](Self::truncate_events).
    #[must_use]
    pub fn pending_event_count(&self) -> usize {
        self.pending_events.len()
    }

    /// Drops the events that were buffered after the given count, because they did not happen.
    pub fn truncate_events(&mut self, count: usize) {
        self.pending_events.truncate(count);
    }

    /// Takes the events that were not committed yet, for the last commit.
    #[must_use]
    pub fn take_pending_events(&mut self) -> Vec<NewEvent> {
        std::mem::take(&mut self.pending_events)
    }

    /// Waits until the preceding runs are committed. Nothing may be written before that, here or elsewhere.
    pub async fn wait_for_gate(&self) -> Result<()> {
        tokio::select! {
            biased;
            () = self.gate.wait_open() => Ok(()),
            () = self.abandon.cancelled() => Err(session_abandoned()),
        }
    }

    /// Commits an entry with the buffered events and publishes the events. Retries an unavailable store until the
    /// session is abandoned, because nothing may continue without the commit. Events of a rejected commit stay
    /// buffered.
    pub async fn commit(&mut self, entry: Entry) -> Result<()> {
        self.wait_for_gate().await?;
        let has_spent = !entry.spent.is_empty();
        let commit =
            entry.into_commit(self.fence, self.run, self.take_pending_events(), RunTransition::Continue);
        let committed = match self.dispatcher.commit(&commit, self.trace.as_ref(), &self.abandon).await {
            Ok(committed) => committed,
            Err(rejection) => {
                self.pending_events = commit.events;
                return Err(rejection);
            }
        };
        if has_spent {
            self.budgeted = committed.budgeted;
        }
        Ok(())
    }
}
