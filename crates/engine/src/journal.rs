//! What an execution writes on its way.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Code, Error, EventBody, Fence, RunId, Timestamp,
    budget::Spent,
    content::Content,
    error::Result,
    event::NewEvent,
    step::Step,
    trace::{SpanId, TraceContext},
};
use remuda_store::{Budgeted, Commit, NewApproval, NewChild, NewMessage, SessionChange, Store, Then};
use remuda_trace::RunTrace;
use remuda_transport::Transport;
use tokio_util::sync::CancellationToken;

use crate::Gate;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Collects events and commits them with steps, under the fence of the session's owner.
pub struct Journal {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    fence: Fence,
    run: RunId,
    abandon: CancellationToken,
    gate: Gate,
    /// Events that the next commit will carry.
    noted: Vec<NewEvent>,
    /// What limits the spending of the run, as far as is known.
    budgeted: Option<Budgeted>,
    trace: Option<RunTrace>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("fence", &self.fence).field("run", &self.run).finish_non_exhaustive()
    }
}

/// What a commit holds besides events.
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

    /// The commit that holds it.
    #[must_use]
    pub fn into_commit(self, fence: Fence, run: RunId, events: Vec<NewEvent>, then: Then) -> Commit {
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

/// The present, as precise as the stores keep it.
#[must_use]
pub fn now() -> Timestamp {
    let now = chrono::Utc::now();
    Timestamp::from_timestamp_micros(now.timestamp_micros()).unwrap_or(now)
}

impl Journal {
    pub fn new(
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
        fence: Fence,
        run: RunId,
        abandon: CancellationToken,
    ) -> Self {
        let (gate, noted) = (Gate::default(), Vec::new());
        Self { store, transport, fence, run, abandon, gate, noted, budgeted: None, trace: None }
    }

    /// The same for a run that may write nothing before the gate is open.
    #[must_use]
    pub fn behind(self, gate: Gate) -> Self {
        Self { gate, ..self }
    }

    /// The same for a run that was found to be limited.
    #[must_use]
    pub fn limited(self, budgeted: Option<Budgeted>) -> Self {
        Self { budgeted, ..self }
    }

    /// The same for a run whose commits and steps are told to whoever collects its trace.
    #[must_use]
    pub fn traced(self, trace: RunTrace) -> Self {
        Self { trace: Some(trace).filter(RunTrace::is_collected), ..self }
    }

    /// What limits the spending of the run. Commits that tell of costs learn what was decided meanwhile.
    #[must_use]
    pub fn budgeted(&self) -> Option<Budgeted> {
        self.budgeted
    }

    /// Notes an event for the next commit. A small run needs no commit but its last.
    pub fn note(&mut self, body: EventBody) {
        self.note_at(now(), body);
    }

    /// The same of something that has its time from the store.
    pub fn note_at(&mut self, at: Timestamp, body: EventBody) {
        self.noted.push(NewEvent { run: Some(self.run), at, body });
    }

    #[must_use]
    pub fn has_notes(&self) -> bool {
        !self.noted.is_empty()
    }

    /// How many events are noted, for [`forget_after`](Self::forget_after).
    #[must_use]
    pub fn notes(&self) -> usize {
        self.noted.len()
    }

    /// Forgets what was noted since there were so many: it did not come to that.
    pub fn forget_after(&mut self, notes: usize) {
        self.noted.truncate(notes);
    }

    /// The notes that were not committed yet, for the last commit.
    #[must_use]
    pub fn take_notes(&mut self) -> Vec<NewEvent> {
        std::mem::take(&mut self.noted)
    }

    /// Waits until the runs before this one are committed: before that nothing may be written, here or anywhere else.
    pub async fn cleared(&self) -> Result<()> {
        tokio::select! {
            biased;
            () = self.gate.passed() => Ok(()),
            () = self.abandon.cancelled() => Err(abandoned()),
        }
    }

    /// Commits an entry with the noted events, and publishes these. Waits for a store that does not answer until the session
    /// must be abandoned: without the commit nothing may go on. Events of a refused commit stay noted.
    pub async fn commit(&mut self, entry: Entry) -> Result<()> {
        self.cleared().await?;
        let has_spent = !entry.spent.is_empty();
        let commit = entry.into_commit(self.fence, self.run, self.take_notes(), Then::Continue);
        let begun = now();
        let committed = match patiently(&self.abandon, || self.store.commit(commit.clone())).await {
            Ok(committed) => committed,
            Err(refusal) => {
                self.noted = commit.events;
                return Err(refusal);
            }
        };
        if let Some(trace) = &self.trace {
            trace.emit_commit(&commit, begun, now());
        }
        if has_spent {
            self.budgeted = committed.budgeted;
        }
        let (Fence { tenant, session, .. }, origin) = (self.fence, self.trace.map(|trace| trace.run()));
        self.transport.publish_events_from(tenant, session, &committed.events, origin).await;
        wake_all(&*self.transport, &committed.children, origin).await;
        Ok(())
    }
}

/// Tells of what became of sessions. A wake-up that is lost is only a late one: the reconciler sends it again.
///
/// `relative` is a run above or below theirs, if its trace is collected: it is theirs, too.
pub async fn wake_all(transport: &dyn Transport, changes: &[SessionChange], relative: Option<TraceContext>) {
    for change in changes {
        let SessionChange { tenant, session, pool, events, .. } = change;
        let run = events.iter().find_map(|event| event.run);
        let origin = relative.zip(run).map(|(relative, run)| relative.with_span(SpanId::of_run(run)));
        transport.publish_events_from(*tenant, *session, events, origin).await;
        if !change.wake {
            continue;
        }
        if let Err(error) = transport.publish_token_from(pool, *tenant, *session, origin).await {
            tracing::warn!(session = %change.session, error = error.chain(), "a session is left to the reconciler");
        }
    }
}

/// Tries again while the store is unavailable, with growing pauses, until `abandon`.
pub async fn patiently<T, F>(abandon: &CancellationToken, mut attempt: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut pause = FIRST_PAUSE;
    loop {
        let outcome = tokio::select! {
            biased;
            () = abandon.cancelled() => return Err(abandoned()),
            outcome = attempt() => outcome,
        };
        match outcome {
            Err(error) if error.code() == Code::Unavailable => {
                tracing::warn!(error = error.chain(), retry_in = ?pause, "waiting for the store");
            }
            outcome => return outcome,
        }
        tokio::select! {
            () = abandon.cancelled() => return Err(abandoned()),
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn abandoned() -> Error {
    Error::new(Code::OwnershipLost, "the session had to be given up")
}
