//! One session among those that a stream follows.

use std::collections::VecDeque;

use remuda_domain::{Code, Cursor, EventBody, RunId, SessionId, TenantId, error::Result};
use remuda_store::Store;

use crate::{
    follow::{Followed, Follower, Gap},
    shared::{SharedDelta, SharedEvent},
};

pub(crate) struct Lane {
    follower: Follower,
    /// Only the events of these runs; all of the session's when missing.
    runs: Option<Vec<RunId>>,
    /// Runs whose ends are still to come.
    awaited: Vec<RunId>,
    /// The end of an awaited run may lie before the cursor, so that its event never comes.
    unsure: bool,
    /// Events that were read and wait to be sent.
    held: VecDeque<SharedEvent>,
    /// History before them that is no longer kept, and of which the reader was not told.
    gap: Option<Gap>,
    /// The cursor of the last event that was sent, or where the reader stood.
    sent: Cursor,
    /// Everything up to here is to be sent before the stream may end.
    last_call: Option<Cursor>,
}

impl Lane {
    /// A lane of these runs, or of a whole session.
    pub(crate) fn new(follower: Follower, runs: Option<Vec<RunId>>) -> Self {
        let sent = follower.cursor();
        Self {
            follower,
            runs,
            awaited: Vec::new(),
            unsure: false,
            held: VecDeque::new(),
            gap: None,
            sent,
            last_call: None,
        }
    }

    pub(crate) fn session(&self) -> SessionId {
        self.follower.session()
    }

    /// Where a reader stands who got what was sent.
    pub(crate) fn sent(&self) -> Cursor {
        self.sent
    }

    /// Follows the session for this run too, until the run ends.
    pub(crate) fn follow_run(&mut self, run: RunId) {
        if !self.awaited.contains(&run) {
            self.awaited.push(run);
            self.unsure = true;
        }
        let Some(runs) = &mut self.runs else { return };
        if !runs.contains(&run) {
            runs.push(run);
            // Events of this run may have been passed over.
            self.held.clear();
            self.follower.rewind(self.sent);
        }
    }

    /// Whether it has something to send or to read, rather than to wait for.
    pub(crate) fn is_busy(&self) -> bool {
        !self.held.is_empty() || self.open_gap().is_some() || !self.follower.is_live()
    }

    /// Whether nothing more is expected.
    pub(crate) fn is_over(&self) -> bool {
        // Of some runs nothing comes after their ends; others may have gone on in the session.
        self.awaited.is_empty() && self.held.is_empty() && (self.runs.is_some() || self.follower.is_live())
    }

    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// The next event to send.
    pub(crate) fn peek(&self) -> Option<&SharedEvent> {
        self.held.front()
    }

    pub(crate) fn pop(&mut self) -> Option<SharedEvent> {
        let event = self.held.pop_front()?;
        self.sent = event.cursor;
        if event.body.terminal_state().is_some() {
            self.awaited.retain(|run| Some(*run) != event.run);
        }
        Some(event)
    }

    /// Reads on, or waits for what happens next. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Followed> {
        self.follower.next().await
    }

    /// Whether the store has events that were not read. If so, they come next.
    pub(crate) async fn has_more(&mut self) -> Result<bool> {
        self.follower.has_more().await
    }

    /// Takes events that were read: what the reader wants of them is to be sent.
    pub(crate) fn accept(&mut self, events: Vec<SharedEvent>) {
        for event in events {
            let wanted = match &self.runs {
                Some(runs) => event.run.is_some_and(|run| runs.contains(&run)),
                None => true,
            };
            if !wanted {
                continue;
            }
            match (&event.body, event.run) {
                (EventBody::RunQueued { .. }, Some(run)) if !self.awaited.contains(&run) => {
                    self.awaited.push(run);
                }
                _ => {}
            }
            self.held.push_back(event);
        }
        if self.runs.is_none() && self.held.is_empty() {
            self.sent = self.follower.cursor();
        }
        // A run whose first event is there lacks nothing.
        let is_first = |event: &SharedEvent| matches!(event.body, EventBody::RunQueued { .. });
        if self.runs.is_some() && self.held.front().is_some_and(is_first) {
            self.gap = None;
        }
    }

    /// Notes that history before what comes next is no longer kept.
    pub(crate) fn note_gap(&mut self, gap: Gap) {
        self.gap = Some(gap);
    }

    /// What the reader has to be told of before what is held. Of a lane of runs, only once an event shows that it lacks others.
    pub(crate) fn open_gap(&self) -> Option<Gap> {
        self.gap.filter(|_| self.runs.is_none() || self.has_held())
    }

    /// The history that is missing, whether or not something of it mattered.
    pub(crate) fn gap(&self) -> Option<Gap> {
        self.gap
    }

    /// Takes what tells of the gap, to be sent before all else.
    pub(crate) fn close_gap(&mut self, snapshot: SharedEvent) {
        self.gap = None;
        self.held.push_front(snapshot);
    }

    /// Pieces of the runs that the reader wants.
    pub(crate) fn wanted(&self, mut deltas: Vec<SharedDelta>) -> Vec<SharedDelta> {
        if let Some(runs) = &self.runs {
            deltas.retain(|delta| runs.contains(&delta.run));
        }
        deltas
    }

    /// Whether everything was read, and yet an awaited run may have ended.
    pub(crate) fn is_unsure(&self) -> bool {
        self.unsure && !self.is_busy()
    }

    /// Looks whether awaited runs have ended before what was read.
    pub(crate) async fn look_at_runs(&mut self, store: &dyn Store, tenant: TenantId) -> Result<()> {
        let mut ended = Vec::new();
        for run in &self.awaited {
            let is_over = match store.get_run(tenant, *run).await {
                Ok(run) => run.state.is_terminal(),
                Err(error) if error.code() == Code::RunNotFound => true,
                Err(error) => return Err(error),
            };
            if is_over {
                ended.push(*run);
            }
        }
        // An end may have come after what was read; then its event is still on its way.
        if ended.is_empty() || !self.follower.has_more().await? {
            self.awaited.retain(|run| !ended.contains(run));
            self.unsure = false;
        }
        Ok(())
    }

    /// Whether everything was sent that had happened when this was asked first. What is missing is read next.
    pub(crate) async fn has_said_all(&mut self) -> Result<bool> {
        let last_call = match self.last_call {
            Some(cursor) => cursor,
            None => *self.last_call.insert(self.follower.end().await?),
        };
        Ok(self.follower.cursor() >= last_call && self.held.is_empty())
    }
}
