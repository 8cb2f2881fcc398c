//! One of the sessions that a stream follows.

use std::collections::VecDeque;

use remuda_domain::{Code, Cursor, EventBody, RunId, SessionId, TenantId, error::Result};
use remuda_store::Store;

use crate::{
    follow::{FollowItem, Follower, TrimmedRange},
    shared_event::{SharedDelta, SharedEvent},
};

pub(crate) struct FollowedSession {
    follower: Follower,
    /// Only events of these runs; of the whole session if `None`.
    runs: Option<Vec<RunId>>,
    /// Runs whose ends are still to come.
    awaited: Vec<RunId>,
    /// The end of an awaited run may lie before the cursor, so its event may never come.
    end_unverified: bool,
    /// Events that were read and wait to be sent.
    pending: VecDeque<SharedEvent>,
    /// Trimmed history before them that was not reported to the reader yet.
    trimmed: Option<TrimmedRange>,
    /// The cursor of the last event sent, or the reader's start cursor.
    sent: Cursor,
    /// Everything up to here must be sent before the stream may end.
    final_cursor: Option<Cursor>,
}

impl FollowedSession {
    /// Follows these runs, or the whole session.
    pub(crate) fn new(follower: Follower, runs: Option<Vec<RunId>>) -> Self {
        let sent = follower.cursor();
        Self {
            follower,
            runs,
            awaited: Vec::new(),
            end_unverified: false,
            pending: VecDeque::new(),
            trimmed: None,
            sent,
            final_cursor: None,
        }
    }

    pub(crate) fn session(&self) -> SessionId {
        self.follower.session()
    }

    /// The position of a reader that received everything sent.
    pub(crate) fn sent(&self) -> Cursor {
        self.sent
    }

    /// Follows this run too, until it ends.
    pub(crate) fn follow_run(&mut self, run: RunId) {
        if !self.awaited.contains(&run) {
            self.awaited.push(run);
            self.end_unverified = true;
        }
        let Some(runs) = &mut self.runs else { return };
        if !runs.contains(&run) {
            runs.push(run);
            // Events of this run may have been skipped.
            self.pending.clear();
            self.follower.rewind(self.sent);
        }
    }

    /// Whether there is something to send or to read, rather than only to wait for.
    pub(crate) fn is_busy(&self) -> bool {
        !self.pending.is_empty() || self.unreported_trim().is_some() || !self.follower.is_live()
    }

    /// Whether no more events are expected.
    pub(crate) fn is_over(&self) -> bool {
        // Runs have no events after their ends. A whole session may have continued with other runs.
        self.awaited.is_empty() && self.pending.is_empty() && (self.runs.is_some() || self.follower.is_live())
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next event to send.
    pub(crate) fn peek(&self) -> Option<&SharedEvent> {
        self.pending.front()
    }

    pub(crate) fn pop(&mut self) -> Option<SharedEvent> {
        let event = self.pending.pop_front()?;
        self.sent = event.cursor;
        if event.body.terminal_state().is_some() {
            self.awaited.retain(|run| Some(*run) != event.run);
        }
        Some(event)
    }

    /// Reads on, or waits for new events. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<FollowItem> {
        self.follower.next().await
    }

    /// Whether the store has unread events. If so, they come next.
    pub(crate) async fn has_more(&mut self) -> Result<bool> {
        self.follower.has_more().await
    }

    /// Queues the events that the reader wants.
    pub(crate) fn queue_events(&mut self, events: Vec<SharedEvent>) {
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
            self.pending.push_back(event);
        }
        if self.runs.is_none() && self.pending.is_empty() {
            self.sent = self.follower.cursor();
        }
        // A run whose first event is present lacks nothing.
        let is_first = |event: &SharedEvent| matches!(event.body, EventBody::RunQueued { .. });
        if self.runs.is_some() && self.pending.front().is_some_and(is_first) {
            self.trimmed = None;
        }
    }

    /// Records that history before the next event has been trimmed.
    pub(crate) fn set_trimmed(&mut self, trimmed: TrimmedRange) {
        self.trimmed = Some(trimmed);
    }

    /// Trimmed history that must be reported before the pending events. When only runs are followed, only once an
    /// event shows that others of its run are missing.
    pub(crate) fn unreported_trim(&self) -> Option<TrimmedRange> {
        self.trimmed.filter(|_| self.runs.is_none() || self.has_pending())
    }

    /// Trimmed history, whether or not it concerned the reader.
    pub(crate) fn trimmed(&self) -> Option<TrimmedRange> {
        self.trimmed
    }

    /// Queues the snapshot that reports the trimmed history, before all pending events.
    pub(crate) fn report_trim(&mut self, snapshot: SharedEvent) {
        self.trimmed = None;
        self.pending.push_front(snapshot);
    }

    /// Keeps the deltas of the runs that the reader wants.
    pub(crate) fn filter_deltas(&self, mut deltas: Vec<SharedDelta>) -> Vec<SharedDelta> {
        if let Some(runs) = &self.runs {
            deltas.retain(|delta| runs.contains(&delta.run));
        }
        deltas
    }

    /// Whether everything was read, and an awaited run may still have ended before.
    pub(crate) fn needs_end_check(&self) -> bool {
        self.end_unverified && !self.is_busy()
    }

    /// Checks whether awaited runs ended before the events that were read.
    pub(crate) async fn check_ended_runs(&mut self, store: &dyn Store, tenant: TenantId) -> Result<()> {
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
        // A run may have ended after the last read event; then its event is still to come.
        if ended.is_empty() || !self.follower.has_more().await? {
            self.awaited.retain(|run| !ended.contains(run));
            self.end_unverified = false;
        }
        Ok(())
    }

    /// Whether everything was sent that existed at the first call. What is missing is read next.
    pub(crate) async fn is_drained(&mut self) -> Result<bool> {
        let final_cursor = match self.final_cursor {
            Some(cursor) => cursor,
            None => *self.final_cursor.insert(self.follower.end().await?),
        };
        Ok(self.follower.cursor() >= final_cursor && self.pending.is_empty())
    }
}
