//! Pipelined execution of the consecutive runs of a session, until none waits or the slot is needed elsewhere.
//!
//! ```text
//!  executing   1 ──► 2 ──► 3 ──► 4 ──► 5 …        one at a time, in queue order
//!  committing    ╰─ 1 ──────╯╰─ 2, 3, 4 ───╯      one commit at a time, with all runs that ended meanwhile
//! ```
//!
//! The next run starts when its predecessor has ended, not when that end is committed. Until then it is speculative
//! and has no effects: its [gate](Gate) holds back every commit and every call that is not read-only. So nothing has
//! to be undone if the worker dies, or if the commit returns another queue than expected.

use std::{collections::VecDeque, future, time::Duration};

use futures::future::BoxFuture;
use remuda_domain::{Fence, Run, RunInput, RunState};
use remuda_engine::{Ending, Execution, Gate, HandOver};
use remuda_store::{Commit, Committed, Finish, Grant, RunTransition};
use remuda_trace::AttemptEnd;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{SessionOutcome, SessionServer};
use crate::{
    active_sessions::SessionGuard,
    attempt_trace::{self, Arrival, AttemptTrace},
    log_spans,
};

/// Maximum number of ended runs that wait for a commit.
const MAX_UNCOMMITTED: usize = 64;
/// After this many runs in a row, commits also ask for the runs after the next one.
const LOOKAHEAD_AFTER: u32 = 3;

/// The run being executed.
struct ExecutingRun<'a> {
    gate: Gate,
    /// Started before the ends of its predecessors were committed.
    speculative: bool,
    abandon: CancellationToken,
    grant: Grant,
    trace: Option<AttemptTrace>,
    began: Instant,
    execution: BoxFuture<'a, Execution>,
}

/// A run that ended.
pub(super) struct EndedRun {
    pub(super) grant: Grant,
    pub(super) trace: Option<AttemptTrace>,
    pub(super) state: RunState,
    pub(super) commit: Commit,
}

/// Result of committing a batch of ended runs.
pub(super) struct CommitResult {
    pub(super) batch: Vec<EndedRun>,
    pub(super) outcome: remuda_domain::error::Result<Committed>,
}

/// Executes the runs of one session and commits their ends.
pub(super) struct RunPipeline<'a> {
    server: &'a SessionServer,
    session_guard: &'a SessionGuard,
    fence: Fence,
    /// Number of runs started.
    started: u32,
    /// The next runs, as far as they are known.
    upcoming: VecDeque<Grant>,
    executing: Option<ExecutingRun<'a>>,
    /// Ended runs whose commit has not begun.
    uncommitted: Vec<EndedRun>,
    committing: Option<BoxFuture<'a, CommitResult>>,
}

/// Awaits the future, or never returns if there is none.
async fn or_pending<T>(future: Option<&mut BoxFuture<'_, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => future::pending().await,
    }
}

impl<'a> RunPipeline<'a> {
    pub(super) fn new(server: &'a SessionServer, session_guard: &'a SessionGuard, grant: &Grant) -> Self {
        Self {
            server,
            session_guard,
            fence: grant.fence,
            started: 0,
            upcoming: VecDeque::new(),
            executing: None,
            uncommitted: Vec::new(),
            committing: None,
        }
    }

    /// `arrival` is `None` if the session was granted without a token.
    pub(super) async fn run(mut self, grant: Grant, arrival: Option<Arrival>) -> SessionOutcome {
        self.start(grant, Gate::default(), arrival);
        loop {
            let outcome = tokio::select! {
                biased;
                result = or_pending(self.committing.as_mut()) => {
                    self.committing = None;
                    self.on_commit_result(result).await
                }
                execution = or_pending(self.executing.as_mut().map(|it| &mut it.execution)) => {
                    self.on_execution_end(execution).await
                }
            };
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
    }

    /// Whether to release the session although runs wait: the worker drains, or all slots are busy and this session
    /// has had its share.
    fn should_release(&self) -> bool {
        let Self { server, .. } = self;
        server.drain.is_cancelled()
            || (self.started >= server.worker.options.max_consecutive_runs && server.all_slots_busy())
    }

    fn start(&mut self, grant: Grant, gate: Gate, arrival: Option<Arrival>) {
        let (server, session_guard) = (self.server, self.session_guard);
        self.started += 1;
        server.worker.meters.started(&grant.run);
        let trace = AttemptTrace::begin(&grant, arrival);
        let (abandon, span) = (server.abandon.child_token(), log_spans::run_span(&grant.run));
        let speculative = !gate.is_open();
        let execution = server.execute(session_guard, grant.clone(), gate.clone(), abandon.clone());
        let execution = Box::pin(execution.instrument(span));
        let began = Instant::now();
        self.executing = Some(ExecutingRun { gate, speculative, abandon, grant, trace, began, execution });
    }

    /// Starts the next run if possible. Nothing is blocked by a run that starts behind uncommitted ones: it is
    /// speculative.
    fn start_next(&mut self) {
        let predecessors_uncommitted = self.committing.is_some() || !self.uncommitted.is_empty();
        let blocked =
            predecessors_uncommitted && (self.uncommitted.len() >= MAX_UNCOMMITTED || self.should_release());
        if self.executing.is_some() || blocked {
            return;
        }
        // An agent's run reads the messages of its predecessors, so it cannot start before they are committed.
        let fits = |grant: &Grant| !predecessors_uncommitted || matches!(grant.run.input, RunInput::Tools(_));
        if let Some(grant) = self.upcoming.pop_front_if(|grant| fits(grant)) {
            let gate = if predecessors_uncommitted { Gate::closed() } else { Gate::default() };
            self.start(grant, gate, None);
        }
    }

    /// Handles the end of an execution.
    async fn on_execution_end(&mut self, execution: Execution) -> Option<SessionOutcome> {
        let ExecutingRun { gate, speculative, mut grant, trace, began, .. } = self.executing.take()?;
        let end = attempt_trace::execution_end(&execution);
        let (hand_over, then) = match execution {
            Execution::Ended(ending) => {
                self.uncommitted.push(EndedRun::new(grant, trace, *ending, speculative));
                self.commit_next_batch();
                self.start_next();
                return None;
            }
            // A speculative run has written nothing. It starts again once its predecessors are committed.
            _ if !gate.is_open() => {
                self.upcoming.clear();
                return None;
            }
            Execution::HandedOver(hand_over) => (hand_over, RunTransition::HandOver),
            Execution::Parked(hand_over, parking) => (hand_over, RunTransition::Park(parking)),
            Execution::Abandoned => {
                self.server.emit_trace(trace, &grant, end).await;
                return Some(self.server.release(self.fence).await);
            }
        };
        grant.run.worked += began.elapsed();
        Some(self.hand_over_and_release(grant, trace, *hand_over, then, end).await)
    }

    /// Hands the run over, or parks it, and releases the session.
    async fn hand_over_and_release(
        &mut self,
        grant: Grant,
        trace: Option<AttemptTrace>,
        hand_over: HandOver,
        then: RunTransition,
        end: AttemptEnd,
    ) -> SessionOutcome {
        let committing = self.server.commit_hand_over(&grant, hand_over, then, trace.as_ref());
        let committed = committing.instrument(log_spans::run_span(&grant.run)).await;
        let end = match &committed {
            Ok(committed) => attempt_trace::end_after_commit(end, committed, &grant),
            Err(_) => AttemptEnd::Abandoned,
        };
        self.server.emit_trace(trace, &grant, end).await;
        match committed {
            Ok(_) => SessionOutcome::Released,
            Err(error) => {
                tracing::warn!(run = %grant.run.id, error = error.chain(), "commit rejected, releasing the session");
                self.server.release(self.fence).await
            }
        }
    }

    /// Starts the commit of the ended runs, unless a commit is under way.
    fn commit_next_batch(&mut self) {
        if self.committing.is_some() || self.uncommitted.is_empty() {
            return;
        }
        // A run whose end holds more than steps and events must be the first of its batch.
        let small_ends =
            self.uncommitted.iter().skip(1).take_while(|ended_run| ended_run.commit.is_small_end()).count();
        let mut batch: Vec<EndedRun> = self.uncommitted.drain(..=small_ends).collect();
        let give_up = self.should_release() && self.uncommitted.is_empty();
        let look_ahead = !give_up && self.started >= LOOKAHEAD_AFTER;
        let wanted = if look_ahead { (2 * batch.len() + 2).min(MAX_UNCOMMITTED) } else { 0 };
        if let Some(RunTransition::End(finish)) = batch.last_mut().map(|ended_run| &mut ended_run.commit.then)
        {
            finish.release = give_up;
        }
        let committing = self.server.commit_ends(batch, u32::try_from(wanted).unwrap_or(0));
        self.committing = Some(Box::pin(committing));
    }

    /// Handles the result of a commit.
    async fn on_commit_result(&mut self, result: CommitResult) -> Option<SessionOutcome> {
        let CommitResult { batch, outcome } = result;
        let count = batch.len();
        let gave_up = batch.last().is_some_and(|ended_run| ended_run.gives_up());
        let committed = match outcome {
            Ok(committed) => committed,
            Err(error) => {
                let run = batch.first().map(|ended_run| ended_run.grant.run.id);
                tracing::warn!(?run, error = error.chain(), "commit rejected, releasing the session");
                for EndedRun { grant, trace, .. } in batch {
                    self.server.emit_trace(trace, &grant, AttemptEnd::Abandoned).await;
                }
                self.discard_speculative().await;
                return Some(self.server.release(self.fence).await);
            }
        };
        for EndedRun { grant, trace, state, .. } in batch.into_iter().take(committed.ended) {
            let end = attempt_trace::end_after_commit(AttemptEnd::Ended(state), &committed, &grant);
            self.server.emit_trace(trace, &grant, end).await;
        }
        let Some(next) = committed.next else {
            self.discard_speculative().await;
            // Runs whose ends were not committed are still waiting.
            let idle = !gave_up && committed.ended == count;
            return Some(if idle { SessionOutcome::Idle } else { SessionOutcome::Released });
        };
        self.refresh_upcoming(*next, committed.ended < count).await;
        self.commit_next_batch();
        if let (None, Some(executing)) = (&self.committing, &self.executing) {
            executing.gate.open();
        }
        self.start_next();
        None
    }

    /// Replaces the upcoming runs by the store's queue, without the runs that have started already.
    async fn refresh_upcoming(&mut self, mut next: Grant, partly_committed: bool) {
        let following = std::mem::take(&mut next.following);
        let following: Vec<Grant> = following.into_iter().map(|run| following_grant(&next, run)).collect();
        let mut upcoming: VecDeque<Grant> = std::iter::once(next).chain(following).collect();
        let executing = self.executing.as_ref().map(|it| it.grant.run.id);
        let started: Vec<_> =
            self.uncommitted.iter().map(|ended_run| ended_run.grant.run.id).chain(executing).collect();
        let as_expected = started.iter().zip(&upcoming).all(|(started, granted)| *started == granted.run.id);
        if partly_committed || !as_expected {
            self.discard_speculative().await;
        } else {
            upcoming.drain(..started.len().min(upcoming.len()));
        }
        self.upcoming = upcoming;
    }

    /// Discards speculative work, because the queue is not the expected one.
    async fn discard_speculative(&mut self) {
        self.upcoming.clear();
        self.uncommitted.clear();
        if let Some(executing) = self.executing.take() {
            executing.abandon.cancel();
            executing.execution.await;
        }
    }
}

/// The grant of a run queued behind a granted one, as if it had been granted as well.
fn following_grant(before: &Grant, run: Run) -> Grant {
    let (attempt, started_at) = (run.attempt + 1, Some(before.at));
    let run = Run { state: RunState::Running, attempt, started_at, ..run };
    Grant {
        time_left: run.timeout,
        run,
        steps: Vec::new(),
        following: Vec::new(),
        budgeted: None,
        ..before.clone()
    }
}

impl EndedRun {
    /// The start time of a `speculative` run is left to the store: it is the end of its predecessor.
    pub(super) fn new(grant: Grant, trace: Option<AttemptTrace>, ending: Ending, speculative: bool) -> Self {
        let stopped_ago: Option<Duration> = ending.stopped_at.map(|at| at.elapsed());
        let Ending { end, started_at, agent, entry, events, .. } = ending;
        let (state, started_at) = (end.state, (!speculative).then_some(started_at));
        let then = RunTransition::End(Finish { end, started_at, stopped_ago, release: false, agent });
        let commit = entry.into_commit(grant.fence, grant.run.id, events, then);
        Self { grant, trace, state, commit }
    }

    fn gives_up(&self) -> bool {
        matches!(&self.commit.then, RunTransition::End(finish) if finish.release)
    }
}
