//! The turn of a session: its runs one after the other, until none waits or others want the slot.
//!
//! ```text
//!  executing   1 ──► 2 ──► 3 ──► 4 ──► 5 …        one at a time, in the order of the line
//!  saving        ╰─ 1 ──────╯╰─ 2, 3, 4 ───╯      one commit at a time, with all that ended meanwhile
//! ```
//!
//! The next run begins when the one before it is over, not when that is on the disk. What it does until then changes nothing: its
//! [gate](Gate) holds back every commit, and every call that is not read-only. So a worker that dies, or is told that the line is another
//! one than it believed, has done nothing that counts.

use std::{collections::VecDeque, future, time::Duration};

use futures::future::BoxFuture;
use remuda_domain::{Fence, Run, RunInput, RunState};
use remuda_engine::{Ending, Execution, Gate, HandOver};
use remuda_store::{Commit, Committed, Finish, Grant, Then};
use remuda_trace::AttemptEnd;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{Left, SessionServer};
use crate::{
    context,
    held::Hold,
    traced::{self, Arrival, Traced},
};

/// Runs that may have ended without being saved, while others are.
const MOST_UNSAVED: usize = 64;
/// Whoever has executed so many runs in a row wants to know what comes after the next one.
const IN_A_ROW: u32 = 3;

/// A run on its way.
struct Executing<'a> {
    gate: Gate,
    /// It was begun before those in front of it were saved.
    ahead: bool,
    abandon: CancellationToken,
    grant: Grant,
    traced: Option<Traced>,
    ended: BoxFuture<'a, Execution>,
}

/// A run that ended.
pub(super) struct Done {
    pub(super) grant: Grant,
    pub(super) traced: Option<Traced>,
    pub(super) state: RunState,
    pub(super) commit: Commit,
}

/// What became of runs that were to be saved together.
pub(super) struct Saved {
    pub(super) batch: Vec<Done>,
    pub(super) outcome: remuda_domain::error::Result<Committed>,
}

pub(super) struct Turn<'a> {
    server: &'a SessionServer,
    hold: &'a Hold,
    fence: Fence,
    /// How many runs were begun.
    begun: u32,
    /// What comes next, as far as it is known.
    line: VecDeque<Grant>,
    executing: Option<Executing<'a>>,
    /// Ended, and not being saved yet.
    done: Vec<Done>,
    saving: Option<BoxFuture<'a, Saved>>,
}

async fn outcome<T>(future: Option<&mut BoxFuture<'_, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => future::pending().await,
    }
}

impl<'a> Turn<'a> {
    pub(super) fn new(server: &'a SessionServer, hold: &'a Hold, grant: &Grant) -> Self {
        Self {
            server,
            hold,
            fence: grant.fence,
            begun: 0,
            line: VecDeque::new(),
            executing: None,
            done: Vec::new(),
            saving: None,
        }
    }

    /// `arrival` is missing where no token was needed.
    pub(super) async fn run(mut self, grant: Grant, arrival: Option<Arrival>) -> Left {
        self.begin(grant, Gate::default(), arrival);
        loop {
            let left = tokio::select! {
                biased;
                saved = outcome(self.saving.as_mut()) => {
                    self.saving = None;
                    self.saved(saved).await
                }
                execution = outcome(self.executing.as_mut().map(|it| &mut it.ended)) => {
                    self.executed(execution).await
                }
            };
            if let Some(left) = left {
                return left;
            }
        }
    }

    /// Whether the session is to be given up although runs wait: the worker drains, or others wait for its slots.
    fn is_over(&self) -> bool {
        let Self { server, .. } = self;
        server.drain.is_cancelled() || (self.begun >= server.worker.options.turn && server.is_crowded())
    }

    fn begin(&mut self, grant: Grant, gate: Gate, arrival: Option<Arrival>) {
        let (server, hold) = (self.server, self.hold);
        self.begun += 1;
        server.worker.meters.started(&grant.run);
        let traced = Traced::begin(&grant, arrival);
        let (abandon, span) = (server.abandon.child_token(), context::of_run(&grant.run));
        let ahead = !gate.is_open();
        let execution = server.execute(hold, grant.clone(), gate.clone(), abandon.clone());
        let ended = Box::pin(execution.instrument(span));
        self.executing = Some(Executing { gate, ahead, abandon, grant, traced, ended });
    }

    /// Begins with the next run of the line, if it may. Nothing waits for what is behind a run that has not been saved.
    fn go_on(&mut self) {
        let behind = self.saving.is_some() || !self.done.is_empty();
        let held_up = behind && (self.done.len() >= MOST_UNSAVED || self.is_over());
        if self.executing.is_some() || held_up {
            return;
        }
        // Agents read what those before them have said.
        let fits = |grant: &Grant| !behind || matches!(grant.run.input, RunInput::Tools(_));
        if let Some(grant) = self.line.pop_front_if(|grant| fits(grant)) {
            let gate = if behind { Gate::closed() } else { Gate::default() };
            self.begin(grant, gate, None);
        }
    }

    /// An execution came to its end.
    async fn executed(&mut self, execution: Execution) -> Option<Left> {
        let Executing { gate, ahead, grant, traced, .. } = self.executing.take()?;
        let end = traced::end_of(&execution);
        let (hand_over, then) = match execution {
            Execution::Ended(ending) => {
                self.done.push(Done::new(grant, traced, *ending, ahead));
                self.save();
                self.go_on();
                return None;
            }
            // It has written nothing: once those before it are saved, it begins anew.
            _ if !gate.is_open() => {
                self.line.clear();
                return None;
            }
            Execution::HandedOver(hand_over) => (hand_over, Then::HandOver),
            Execution::Parked(hand_over, parking) => (hand_over, Then::Park(parking)),
            Execution::Abandoned => {
                self.server.tell_trace(traced, &grant, end).await;
                return Some(self.server.let_go(self.fence).await);
            }
        };
        Some(self.part(grant, traced, *hand_over, then, end).await)
    }

    /// Gives a run back, and the session with it.
    async fn part(
        &mut self,
        grant: Grant,
        traced: Option<Traced>,
        hand_over: HandOver,
        then: Then,
        end: AttemptEnd,
    ) -> Left {
        let giving = self.server.give_back(&grant, hand_over, then, traced.as_ref());
        let given = giving.instrument(context::of_run(&grant.run)).await;
        let end = match &given {
            Ok(committed) => traced::end_as_committed(end, committed, &grant),
            Err(_) => AttemptEnd::Abandoned,
        };
        self.server.tell_trace(traced, &grant, end).await;
        match given {
            Ok(_) => Left::Released,
            Err(error) => {
                tracing::warn!(run = %grant.run.id, error = error.chain(), "what became of a run was not taken");
                self.server.let_go(self.fence).await
            }
        }
    }

    /// Saves what ended, unless that is being done already.
    fn save(&mut self) {
        if self.saving.is_some() || self.done.is_empty() {
            return;
        }
        // What holds more than steps and events comes first in a commit of its own.
        let behind = self.done.iter().skip(1).take_while(|done| done.commit.is_small_end()).count();
        let mut batch: Vec<Done> = self.done.drain(..=behind).collect();
        let give_up = self.is_over() && self.done.is_empty();
        let in_a_row = !give_up && self.begun >= IN_A_ROW;
        let wanted = if in_a_row { (2 * batch.len() + 2).min(MOST_UNSAVED) } else { 0 };
        if let Some(Then::End(finish)) = batch.last_mut().map(|done| &mut done.commit.then) {
            finish.give_up = give_up;
        }
        let saving = self.server.save(batch, u32::try_from(wanted).unwrap_or(0));
        self.saving = Some(Box::pin(saving));
    }

    /// The store has decided about what ended.
    async fn saved(&mut self, saved: Saved) -> Option<Left> {
        let Saved { batch, outcome } = saved;
        let count = batch.len();
        let gave_up = batch.last().is_some_and(|done| done.gives_up());
        let committed = match outcome {
            Ok(committed) => committed,
            Err(error) => {
                let run = batch.first().map(|done| done.grant.run.id);
                tracing::warn!(?run, error = error.chain(), "what became of a run was not taken");
                for Done { grant, traced, .. } in batch {
                    self.server.tell_trace(traced, &grant, AttemptEnd::Abandoned).await;
                }
                self.forget().await;
                return Some(self.server.let_go(self.fence).await);
            }
        };
        for Done { grant, traced, state, .. } in batch.into_iter().take(committed.ended) {
            let end = traced::end_as_committed(AttemptEnd::Ended(state), &committed, &grant);
            self.server.tell_trace(traced, &grant, end).await;
        }
        let Some(next) = committed.next else {
            self.forget().await;
            // What was not taken waits, too.
            let idle = !gave_up && committed.ended == count;
            return Some(if idle { Left::Idle } else { Left::Released });
        };
        self.line_up(*next, committed.ended < count).await;
        self.save();
        if let (None, Some(executing)) = (&self.saving, &self.executing) {
            executing.gate.open();
        }
        self.go_on();
        None
    }

    /// Takes over the line as the store knows it, less what was begun already.
    async fn line_up(&mut self, mut next: Grant, cut_short: bool) {
        let following = std::mem::take(&mut next.following);
        let behind: Vec<Grant> = following.into_iter().map(|run| behind(&next, run)).collect();
        let mut line: VecDeque<Grant> = std::iter::once(next).chain(behind).collect();
        let executing = self.executing.as_ref().map(|it| it.grant.run.id);
        let begun: Vec<_> = self.done.iter().map(|done| done.grant.run.id).chain(executing).collect();
        let as_believed = begun.iter().zip(&line).all(|(begun, known)| *begun == known.run.id);
        if cut_short || !as_believed {
            self.forget().await;
        } else {
            line.drain(..begun.len().min(line.len()));
        }
        self.line = line;
    }

    /// Drops what was done ahead of time: the line is another one.
    async fn forget(&mut self) {
        self.line.clear();
        self.done.clear();
        if let Some(executing) = self.executing.take() {
            executing.abandon.cancel();
            executing.ended.await;
        }
    }
}

/// A run that comes behind a granted one, as if it had been granted as well.
fn behind(before: &Grant, run: Run) -> Grant {
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

impl Done {
    /// Of a run that was begun `ahead` only the store can say when that was: where the one before it ended.
    pub(super) fn new(grant: Grant, traced: Option<Traced>, ending: Ending, ahead: bool) -> Self {
        let stopped_ago: Option<Duration> = ending.stopped_at.map(|at| at.elapsed());
        let Ending { end, started_at, agent, entry, events, .. } = ending;
        let (state, started_at) = (end.state, (!ahead).then_some(started_at));
        let then = Then::End(Finish { end, started_at, stopped_ago, give_up: false, agent });
        let commit = entry.into_commit(grant.fence, grant.run.id, events, then);
        Self { grant, traced, state, commit }
    }

    fn gives_up(&self) -> bool {
        matches!(&self.commit.then, Then::End(finish) if finish.give_up)
    }
}
