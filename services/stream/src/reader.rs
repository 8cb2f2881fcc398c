//! One open stream.

use std::{collections::HashMap, time::Duration};

use remuda_domain::{Cursor, Error, RunId, SessionId, error::Result};
use remuda_grpc::Standing;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    follow::Followed,
    lane::Lane,
    shared::{SharedDelta, SharedEvent},
    source::Source,
    tree::{Tree, Work, up_to_a_start},
};

/// What to send next.
#[derive(Debug, PartialEq)]
pub(crate) enum Said {
    Events(Vec<SharedEvent>),
    Deltas(Vec<SharedDelta>),
}

/// What a reader asks for.
#[derive(Debug)]
pub(crate) struct Wish {
    pub session: SessionId,
    /// Only this run's events, up to its end.
    pub run: Option<RunId>,
    pub after: Cursor,
    pub deltas: bool,
    /// Also the sessions below, with where the reader stands in them.
    pub tree: Option<HashMap<SessionId, Cursor>>,
}

/// What a stream lasts as long as.
pub(crate) struct Stay {
    /// Frees the reader's place when the stream is dropped.
    pub _seat: OwnedSemaphorePermit,
    pub stop: CancellationToken,
    /// How long after the stop signal the reader goes.
    pub farewell: Duration,
    /// Whether the caller may still read.
    pub standing: Standing,
}

pub(crate) struct Reader {
    source: Source,
    /// Only this run's events, up to its end.
    run: Option<RunId>,
    /// The session that the stream is about.
    root: Lane,
    /// The sessions below it, for those who asked.
    tree: Option<Tree>,
    /// What is below has to be found in the store, once everything was read.
    to_discover: bool,
    stay: Stay,
    /// The server shuts down, and the stream ends then.
    leaves_at: Option<Instant>,
    /// The run is over, and only what others said before is still to be sent, then what is held of it.
    closing: bool,
    ended: bool,
}

impl Reader {
    pub(crate) async fn open(source: Source, wish: Wish, stay: Stay) -> Result<Self> {
        let Wish { session, run, after, deltas, .. } = wish;
        let follower = source.follow(session, after, deltas).await?;
        let root = Lane::new(follower, run.map(|run| vec![run]));
        let mut tree = wish.tree.map(|cursors| Tree::new(source.clone(), (session, run), cursors, deltas));
        // What works for a run is told by its events, unless these lie before the cursor.
        if let Some(tree) = tree.as_mut().filter(|_| run.is_some() && after > 0) {
            tree.discover().await?;
        }
        let to_discover = run.is_none() && tree.is_some();
        Ok(Self { source, run, root, tree, to_discover, stay, leaves_at: None, closing: false, ended: false })
    }

    /// What to send next; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Said>> {
        let (stop, standing) = (self.stay.stop.clone(), self.stay.standing.clone());
        while !self.ended {
            if stop.is_cancelled() {
                self.leaves_at.get_or_insert_with(|| Instant::now() + self.stay.farewell);
            }
            let leaves_at = self.leaves_at;
            let stopped = async {
                match leaves_at {
                    // Not all at once: they come back as one wave otherwise.
                    Some(at) => sleep_until(at).await,
                    None => stop.cancelled().await,
                }
            };
            let outcome = tokio::select! {
                biased;
                () = stopped => match leaves_at {
                    Some(_) => Err(Error::unavailable("the server shuts down; reconnect with your last cursor")),
                    None => Ok(None),
                },
                refusal = standing.lost() => Err(refusal),
                outcome = self.advance() => outcome,
            };
            match outcome {
                Ok(None) => {}
                Ok(Some(said)) => return Some(Ok(self.measured(said))),
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    fn measured(&self, said: Said) -> Said {
        if let Said::Events(events) = &said {
            self.source.hub.meters().gave(events.len());
        }
        said
    }

    /// The session that the stream is about.
    pub(crate) fn session(&self) -> SessionId {
        self.root.session()
    }

    /// What can be sent without waiting for anything to happen; `None` when that is nothing.
    pub(crate) async fn at_hand(&mut self) -> Option<Result<Said>> {
        while !self.ended && !self.is_live() {
            match self.advance().await {
                Ok(None) => {}
                Ok(Some(said)) => return Some(Ok(self.measured(said))),
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// Whether it only waits for what happens next.
    fn is_live(&self) -> bool {
        !self.root.is_busy()
    }

    /// Whether everything was said.
    pub(crate) fn is_over(&self) -> bool {
        self.ended
    }

    /// Whether the run that it is about is over: what it has still to say is in the store.
    pub(crate) async fn run_is_over(&mut self) -> Result<bool> {
        let Some(run) = self.run else { return Ok(false) };
        Ok(self.source.store().get_run(self.source.tenant, run).await?.state.is_terminal())
    }

    /// One step on. Cancel-safe.
    async fn advance(&mut self) -> Result<Option<Said>> {
        if let Some(tree) = &mut self.tree {
            match tree.work().await? {
                Work::Said(said) => return Ok(Some(said)),
                Work::Done => return Ok(None),
                Work::Nothing if !self.closing => {}
                Work::Nothing => {
                    if tree.has_said_all().await? {
                        self.ended = true;
                        return Ok(self.rest());
                    }
                    return Ok(None);
                }
            }
            if self.to_discover && !self.root.is_busy() {
                tree.discover().await?;
                self.to_discover = false;
                return Ok(None);
            }
        }
        if let Some(gap) = self.root.open_gap() {
            let snapshot = self.source.snapshot(self.root.session(), self.run, gap).await?;
            self.root.close_gap(snapshot);
        }
        if self.root.has_held() {
            return Ok(some(self.release()));
        }
        let followed = if self.root.is_busy() {
            self.root.next().await?
        } else {
            let tree = self.tree.as_mut();
            let below = async {
                match tree {
                    Some(tree) => tree.listen().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                followed = self.root.next() => followed?,
                said = below => return said,
            }
        };
        match followed {
            Followed::Deltas(deltas) => {
                let wanted = self.root.wanted(deltas);
                Ok((!wanted.is_empty()).then_some(Said::Deltas(wanted)))
            }
            Followed::Events(events) => {
                self.root.accept(events);
                Ok(None)
            }
            Followed::Trimmed(gap) => {
                self.root.note_gap(gap);
                Ok(None)
            }
            Followed::CaughtUp => self.caught_up().await,
        }
    }

    /// What can be sent of the session itself; a run's terminal event is its last.
    fn release(&mut self) -> Vec<SharedEvent> {
        let run = self.run;
        let is_last = |event: &SharedEvent| run.is_some() && event.body.terminal_state().is_some();
        let Some(tree) = &mut self.tree else {
            let events: Vec<SharedEvent> = std::iter::from_fn(|| self.root.pop()).collect();
            self.ended = events.iter().any(is_last);
            return events;
        };
        let events = up_to_a_start(&mut self.root, |event| !is_last(event));
        if let Some(event) = events.last() {
            tree.hear(event);
        }
        self.closing = self.root.peek().is_some_and(is_last);
        events
    }

    fn rest(&mut self) -> Option<Said> {
        some(std::iter::from_fn(|| self.root.pop()).collect())
    }

    async fn caught_up(&mut self) -> Result<Option<Said>> {
        // A reader that starts after the terminal event would wait for ever.
        let Some(run) = self.run else { return Ok(None) };
        let seen_all = self.source.store().get_run(self.source.tenant, run).await?.state.is_terminal();
        // The end may have come after the replay; then its event is still on its way.
        if !seen_all || self.root.has_more().await? {
            return Ok(None);
        }
        if let Some(gap) = self.root.gap() {
            let snapshot = self.source.snapshot(self.root.session(), Some(run), gap).await?;
            self.root.close_gap(snapshot);
        }
        self.closing = true;
        if self.tree.is_some() {
            return Ok(None);
        }
        self.ended = true;
        Ok(self.rest())
    }
}

fn some(events: Vec<SharedEvent>) -> Option<Said> {
    (!events.is_empty()).then_some(Said::Events(events))
}

#[cfg(test)]
mod ends_tests;
#[cfg(test)]
mod hub_tests;
#[cfg(test)]
mod lab;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tree_tests;
