//! One open stream.

use std::{collections::HashMap, time::Duration};

use remuda_domain::{Cursor, Error, RunId, SessionId, error::Result};
use remuda_grpc::KeyValidity;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    event_source::Source,
    follow::FollowItem,
    followed_session::FollowedSession,
    session_tree::{Progress, Tree, take_until_child_start},
    shared_event::{SharedDelta, SharedEvent},
};

/// What to send next.
#[derive(Debug, PartialEq)]
pub(crate) enum Batch {
    Events(Vec<SharedEvent>),
    Deltas(Vec<SharedDelta>),
}

/// What a reader asks for.
#[derive(Debug)]
pub(crate) struct ReadRequest {
    pub session: SessionId,
    /// Only this run's events, up to its end.
    pub run: Option<RunId>,
    pub after: Cursor,
    pub deltas: bool,
    /// Also the descendant sessions, with the reader's cursors in them.
    pub tree: Option<HashMap<SessionId, Cursor>>,
}

/// What bounds the lifetime of a stream.
pub(crate) struct ReaderLifetime {
    /// Frees the reader's slot when the stream is dropped.
    pub _permit: OwnedSemaphorePermit,
    pub stop: CancellationToken,
    /// How long after the stop signal the stream ends.
    pub drain_time: Duration,
    /// Ends the stream when the caller loses access.
    pub standing: KeyValidity,
}

pub(crate) struct Reader {
    source: Source,
    /// Only this run's events, up to its end.
    run: Option<RunId>,
    /// The session that the stream is for.
    root: FollowedSession,
    /// Its descendant sessions, if requested.
    tree: Option<Tree>,
    /// Descendants have to be discovered in the store, once the session itself is read.
    discovery_pending: bool,
    lifetime: ReaderLifetime,
    /// When the stream ends because the server shuts down.
    closes_at: Option<Instant>,
    /// The run has ended. Only earlier events of descendants are still to be sent, then the pending events of the
    /// run.
    closing: bool,
    ended: bool,
}

impl Reader {
    pub(crate) async fn open(source: Source, request: ReadRequest, lifetime: ReaderLifetime) -> Result<Self> {
        let ReadRequest { session, run, after, deltas, .. } = request;
        let follower = source.follow(session, after, deltas).await?;
        let root = FollowedSession::new(follower, run.map(|run| vec![run]));
        let mut tree = request.tree.map(|cursors| Tree::new(source.clone(), (session, run), cursors, deltas));
        // Events of a run name its children, unless they lie before the cursor.
        if let Some(tree) = tree.as_mut().filter(|_| run.is_some() && after > 0) {
            tree.discover().await?;
        }
        let discovery_pending = run.is_none() && tree.is_some();
        Ok(Self {
            source,
            run,
            root,
            tree,
            discovery_pending,
            lifetime,
            closes_at: None,
            closing: false,
            ended: false,
        })
    }

    /// What to send next; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Batch>> {
        let (stop, standing) = (self.lifetime.stop.clone(), self.lifetime.standing.clone());
        while !self.ended {
            if stop.is_cancelled() {
                self.closes_at.get_or_insert_with(|| Instant::now() + self.lifetime.drain_time);
            }
            let closes_at = self.closes_at;
            let stopped = async {
                match closes_at {
                    // Spread out, so that clients do not all reconnect at once.
                    Some(at) => sleep_until(at).await,
                    None => stop.cancelled().await,
                }
            };
            let outcome = tokio::select! {
                biased;
                () = stopped => match closes_at {
                    Some(_) => Err(Error::unavailable("the server is shutting down; reconnect with your last cursor")),
                    None => Ok(None),
                },
                refusal = standing.ended() => Err(refusal),
                outcome = self.advance() => outcome,
            };
            match outcome {
                Ok(None) => {}
                Ok(Some(batch)) => return Some(Ok(self.counted(batch))),
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    fn counted(&self, batch: Batch) -> Batch {
        if let Batch::Events(events) = &batch {
            self.source.hub.meters().sent(events.len());
        }
        batch
    }

    /// The session that the stream is for.
    pub(crate) fn session(&self) -> SessionId {
        self.root.session()
    }

    /// What can be sent without waiting for new events; `None` if there is nothing.
    pub(crate) async fn next_available(&mut self) -> Option<Result<Batch>> {
        while !self.ended && !self.is_live() {
            match self.advance().await {
                Ok(None) => {}
                Ok(Some(batch)) => return Some(Ok(self.counted(batch))),
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// Whether it only waits for new events.
    fn is_live(&self) -> bool {
        !self.root.is_busy()
    }

    /// Whether everything was sent.
    pub(crate) fn is_over(&self) -> bool {
        self.ended
    }

    /// Whether its run has ended: then its remaining events are in the store.
    pub(crate) async fn run_is_over(&mut self) -> Result<bool> {
        let Some(run) = self.run else { return Ok(false) };
        Ok(self.source.store().get_run(self.source.tenant, run).await?.state.is_terminal())
    }

    /// Makes one step. Cancel-safe.
    async fn advance(&mut self) -> Result<Option<Batch>> {
        if let Some(tree) = &mut self.tree {
            match tree.work().await? {
                Progress::Batch(batch) => return Ok(Some(batch)),
                Progress::More => return Ok(None),
                Progress::Idle if !self.closing => {}
                Progress::Idle => {
                    if tree.is_drained().await? {
                        self.ended = true;
                        return Ok(self.take_rest());
                    }
                    return Ok(None);
                }
            }
            if self.discovery_pending && !self.root.is_busy() {
                tree.discover().await?;
                self.discovery_pending = false;
                return Ok(None);
            }
        }
        if let Some(trimmed) = self.root.unreported_trim() {
            let snapshot = self.source.snapshot(self.root.session(), self.run, trimmed).await?;
            self.root.report_trim(snapshot);
        }
        if self.root.has_pending() {
            return Ok(non_empty(self.take_sendable()));
        }
        let item = if self.root.is_busy() {
            self.root.next().await?
        } else {
            let tree = self.tree.as_mut();
            let below = async {
                match tree {
                    Some(tree) => tree.wait().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                item = self.root.next() => item?,
                batch = below => return batch,
            }
        };
        match item {
            FollowItem::Deltas(deltas) => {
                let wanted = self.root.filter_deltas(deltas);
                Ok((!wanted.is_empty()).then_some(Batch::Deltas(wanted)))
            }
            FollowItem::Events(events) => {
                self.root.queue_events(events);
                Ok(None)
            }
            FollowItem::Trimmed(trimmed) => {
                self.root.set_trimmed(trimmed);
                Ok(None)
            }
            FollowItem::CaughtUp => self.caught_up().await,
        }
    }

    /// Takes the session's events that can be sent now. A run's terminal event is its last.
    fn take_sendable(&mut self) -> Vec<SharedEvent> {
        let run = self.run;
        let is_last = |event: &SharedEvent| run.is_some() && event.body.terminal_state().is_some();
        let Some(tree) = &mut self.tree else {
            let events: Vec<SharedEvent> = std::iter::from_fn(|| self.root.pop()).collect();
            self.ended = events.iter().any(is_last);
            return events;
        };
        let events = take_until_child_start(&mut self.root, |event| !is_last(event));
        if let Some(event) = events.last() {
            tree.on_event(event);
        }
        self.closing = self.root.peek().is_some_and(is_last);
        events
    }

    fn take_rest(&mut self) -> Option<Batch> {
        non_empty(std::iter::from_fn(|| self.root.pop()).collect())
    }

    async fn caught_up(&mut self) -> Result<Option<Batch>> {
        // A reader that starts after the terminal event would wait forever.
        let Some(run) = self.run else { return Ok(None) };
        let seen_all = self.source.store().get_run(self.source.tenant, run).await?.state.is_terminal();
        // The run may have ended after the replay; then its event is still to come.
        if !seen_all || self.root.has_more().await? {
            return Ok(None);
        }
        if let Some(trimmed) = self.root.trimmed() {
            let snapshot = self.source.snapshot(self.root.session(), Some(run), trimmed).await?;
            self.root.report_trim(snapshot);
        }
        self.closing = true;
        if self.tree.is_some() {
            return Ok(None);
        }
        self.ended = true;
        Ok(self.take_rest())
    }
}

fn non_empty(events: Vec<SharedEvent>) -> Option<Batch> {
    (!events.is_empty()).then_some(Batch::Events(events))
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod hub_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod start_and_end_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tree_tests;
