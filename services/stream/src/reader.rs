//! One open stream.

use std::sync::Arc;

use remuda_domain::{Error, Event, RunId, TenantId, error::Result, event::Delta};
use remuda_store::Store;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::{
    deltas::Deltas,
    follow::{Followed, Follower},
};

/// What to send next.
#[derive(Debug, PartialEq)]
pub(crate) enum Said {
    Events(Vec<Event>),
    Deltas(Vec<Delta>),
}

pub(crate) struct Reader {
    store: Arc<dyn Store>,
    tenant: TenantId,
    /// Only this run's events, up to its end.
    run: Option<RunId>,
    follower: Follower,
    /// Only for those who asked.
    deltas: Option<Deltas>,
    stop: CancellationToken,
    ended: bool,
    /// Frees the reader's place when the stream is dropped.
    _seat: OwnedSemaphorePermit,
}

/// What woke a reader.
enum Woken {
    Stopped,
    Followed(Result<Followed>),
    Deltas(Vec<Delta>),
}

impl Reader {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        tenant: TenantId,
        run: Option<RunId>,
        (follower, deltas): (Follower, Option<Deltas>),
        stop: CancellationToken,
        seat: OwnedSemaphorePermit,
    ) -> Self {
        Self { store, tenant, run, follower, deltas, stop, ended: false, _seat: seat }
    }

    /// What to send next; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Said>> {
        while !self.ended {
            let outcome = match self.woken().await {
                Woken::Stopped => {
                    Err(Error::unavailable("the server shuts down; reconnect with your last cursor"))
                }
                Woken::Deltas(deltas) => return Some(Ok(Said::Deltas(deltas))),
                Woken::Followed(Ok(Followed::Events(events))) => Ok(self.select(events)),
                Woken::Followed(Ok(Followed::CaughtUp)) => self.end_if_finished().await.map(|()| Vec::new()),
                Woken::Followed(Err(error)) => Err(error),
            };
            match outcome {
                Ok(events) if events.is_empty() => {}
                Ok(events) => return Some(Ok(Said::Events(events))),
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    async fn woken(&mut self) -> Woken {
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
            () = self.stop.cancelled() => Woken::Stopped,
            followed = self.follower.next() => Woken::Followed(followed),
            deltas = deltas => Woken::Deltas(deltas),
        }
    }

    /// Keeps what the reader wants; a run's terminal event is its last.
    fn select(&mut self, events: Vec<Event>) -> Vec<Event> {
        if let Some(deltas) = &mut self.deltas {
            deltas.note(&events);
        }
        let Some(run) = self.run else { return events };
        let wanted: Vec<Event> = events.into_iter().filter(|event| event.run == Some(run)).collect();
        self.ended = wanted.iter().any(|event| event.body.terminal_state().is_some());
        wanted
    }

    /// A reader that starts after the terminal event would wait for ever.
    async fn end_if_finished(&mut self) -> Result<()> {
        if let Some(run) = self.run {
            let seen_all = self.store.get_run(self.tenant, run).await?.state.is_terminal();
            // The end may have come after the replay; then its event is still on its way.
            self.ended = seen_all && !self.follower.has_more().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
