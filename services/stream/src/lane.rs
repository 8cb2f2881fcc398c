//! One session among those that a stream follows.

use std::collections::VecDeque;

use remuda_domain::{
    Code, Cursor, Event, EventBody, RunId, SessionId, TenantId, error::Result, event::Delta,
};
use remuda_store::Store;

use crate::{
    deltas::Deltas,
    follow::{Followed, Follower},
};

/// What a session has to say.
pub(crate) enum Heard {
    Followed(Followed),
    Deltas(Vec<Delta>),
}

pub(crate) struct Lane {
    follower: Follower,
    deltas: Option<Deltas>,
    /// Only the events of these runs; all of the session's when missing.
    runs: Option<Vec<RunId>>,
    /// Runs whose ends are still to come.
    awaited: Vec<RunId>,
    /// The end of an awaited run may lie before the cursor, so that its event never comes.
    unsure: bool,
    /// Events that were read and wait to be sent.
    held: VecDeque<Event>,
    /// The cursor of the last event that was sent, or where the reader stood.
    sent: Cursor,
    /// Everything up to here is to be sent before the stream may end.
    last_call: Option<Cursor>,
}

impl Lane {
    /// A lane of these runs, or of a whole session.
    pub(crate) fn new(follower: Follower, deltas: Option<Deltas>, runs: Option<Vec<RunId>>) -> Self {
        let sent = follower.cursor();
        Self {
            follower,
            deltas,
            runs,
            awaited: Vec::new(),
            unsure: false,
            held: VecDeque::new(),
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
        !self.held.is_empty() || !self.follower.is_live()
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
    pub(crate) fn peek(&self) -> Option<&Event> {
        self.held.front()
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        let event = self.held.pop_front()?;
        self.sent = event.cursor;
        if event.body.terminal_state().is_some() {
            self.awaited.retain(|run| Some(*run) != event.run);
        }
        Some(event)
    }

    /// Reads on. Is to be let finish if the lane [is busy](Self::is_busy), and is cancel-safe if it is not.
    pub(crate) async fn read(&mut self) -> Result<Followed> {
        self.follower.next().await
    }

    /// Waits for what happens next. Cancel-safe.
    pub(crate) async fn listen(&mut self) -> Result<Heard> {
        // A flood of deltas must not keep events from being read.
        let deltas = self.deltas.as_mut().filter(|_| self.follower.is_live());
        let deltas = async {
            match deltas {
                Some(deltas) => deltas.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            followed = self.follower.next() => Ok(Heard::Followed(followed?)),
            deltas = deltas => Ok(Heard::Deltas(deltas)),
        }
    }

    /// Whether the store has events that were not read. If so, they come next.
    pub(crate) async fn has_more(&mut self) -> Result<bool> {
        self.follower.has_more().await
    }

    /// Takes events that were read: what the reader wants of them is to be sent.
    pub(crate) fn accept(&mut self, events: Vec<Event>) {
        if let Some(deltas) = &mut self.deltas {
            deltas.note(&events);
        }
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
    }

    /// Pieces of the runs that the reader wants.
    pub(crate) fn wanted(&self, mut deltas: Vec<Delta>) -> Vec<Delta> {
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
