//! One open stream.

use std::collections::HashMap;

use remuda_domain::{Cursor, Error, Event, RunId, SessionId, error::Result, event::Delta};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::{
    follow::Followed,
    lane::{Heard, Lane},
    tree::{Source, Tree, Work, up_to_a_start},
};

/// What to send next.
#[derive(Debug, PartialEq)]
pub(crate) enum Said {
    Events(Vec<Event>),
    Deltas(Vec<Delta>),
}

/// What a reader asks for.
pub(crate) struct Wish {
    pub session: SessionId,
    /// Only this run's events, up to its end.
    pub run: Option<RunId>,
    pub after: Cursor,
    pub deltas: bool,
    /// Also the sessions below, with where the reader stands in them.
    pub tree: Option<HashMap<SessionId, Cursor>>,
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
    stop: CancellationToken,
    /// The run is over, and only what others said before is still to be sent, then what is held of it.
    closing: bool,
    ended: bool,
    /// Frees the reader's place when the stream is dropped.
    _seat: OwnedSemaphorePermit,
}

impl Reader {
    pub(crate) async fn open(
        source: Source,
        wish: Wish,
        stop: CancellationToken,
        seat: OwnedSemaphorePermit,
    ) -> Result<Self> {
        let Wish { session, run, after, .. } = wish;
        // Before the events: a message whose beginning is seen is then heard from there on.
        let deltas = if wish.deltas { Some(source.deltas(session, run).await) } else { None };
        let follower = source.follow(session, after).await?;
        let root = Lane::new(follower, deltas, run.map(|run| vec![run]));
        let mut tree =
            wish.tree.map(|cursors| Tree::new(source.clone(), (session, run), cursors, wish.deltas));
        // What works for a run is told by its events, unless these lie before the cursor.
        if let Some(tree) = tree.as_mut().filter(|_| run.is_some() && after > 0) {
            tree.discover().await?;
        }
        let to_discover = run.is_none() && tree.is_some();
        Ok(Self { source, run, root, tree, to_discover, stop, closing: false, ended: false, _seat: seat })
    }

    /// What to send next; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Said>> {
        let stop = self.stop.clone();
        while !self.ended {
            let outcome = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    Err(Error::unavailable("the server shuts down; reconnect with your last cursor"))
                }
                outcome = self.advance() => outcome,
            };
            match outcome {
                Ok(None) => {}
                Ok(Some(said)) => return Some(Ok(said)),
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// One step on. Cancel-safe.
    async fn advance(&mut self) -> Result<Option<Said>> {
        if let Some(tree) = &mut self.tree {
            match tree.work().await? {
                Work::Events(events) => return Ok(Some(Said::Events(events))),
                Work::Done => return Ok(None),
                Work::Nothing if !self.closing => {}
                Work::Nothing => {
                    if tree.has_said_all().await? {
                        self.ended = true;
                        return Ok(some(std::iter::from_fn(|| self.root.pop()).collect()));
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
        if self.root.has_held() {
            return Ok(some(self.release()));
        }
        let heard = if self.root.is_busy() {
            Heard::Followed(self.root.read().await?)
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
                heard = self.root.listen() => heard?,
                said = below => return said,
            }
        };
        match heard {
            Heard::Deltas(deltas) => return Ok(Some(Said::Deltas(deltas))),
            Heard::Followed(Followed::Events(events)) => self.root.accept(events),
            Heard::Followed(Followed::CaughtUp) => self.caught_up().await?,
        }
        Ok(None)
    }

    /// What can be sent of the session itself; a run's terminal event is its last.
    fn release(&mut self) -> Vec<Event> {
        let run = self.run;
        let is_last = |event: &Event| run.is_some() && event.body.terminal_state().is_some();
        let Some(tree) = &mut self.tree else {
            let events: Vec<Event> = std::iter::from_fn(|| self.root.pop()).collect();
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

    async fn caught_up(&mut self) -> Result<()> {
        // A reader that starts after the terminal event would wait for ever.
        if let Some(run) = self.run {
            let store = &self.source.store;
            let seen_all = store.get_run(self.source.tenant, run).await?.state.is_terminal();
            // The end may have come after the replay; then its event is still on its way.
            if seen_all && !self.root.has_more().await? {
                self.closing = true;
                self.ended = self.tree.is_none();
            }
        }
        Ok(())
    }
}

fn some(events: Vec<Event>) -> Option<Said> {
    (!events.is_empty()).then_some(Said::Events(events))
}

#[cfg(test)]
mod lab;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tree_tests;
