//! Following a session's events.
//!
//! Live events are only a hint that there is more: they may come twice, out of order, or not at all. A [`Follower`]
//! listens first, replays from the store, and then takes from the live source exactly what comes next. A hole is filled
//! from the store; so is silence, now and then.

use std::{sync::Arc, time::Duration};

use remuda_domain::{Code, Cursor, Error, Event, SessionId, TenantId, error::Result};
use remuda_store::Store;
use remuda_transport::{EventSource, Transport};
use tokio::time::{Instant, sleep_until};

/// One reader's way through a session.
pub struct Follower {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    tenant: TenantId,
    session: SessionId,
    /// The last cursor handed out.
    cursor: Cursor,
    live: Option<Box<dyn EventSource>>,
    /// The store may have more than was handed out.
    behind: bool,
    batch: usize,
    catch_up: Duration,
    next_look: Instant,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower")
            .field("session", &self.session)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

/// What following gives.
#[derive(Debug, PartialEq)]
pub enum Followed {
    /// The next events, contiguous with those before.
    Events(Vec<Event>),
    /// Everything that is in the store has been handed out.
    CaughtUp,
}

impl Follower {
    /// Starts after `after`. Fails with `session_not_found`, and with `cursor_out_of_range` for a cursor from the future.
    pub async fn start(
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
        tenant: TenantId,
        session: SessionId,
        after: Cursor,
        (batch, catch_up): (usize, Duration),
    ) -> Result<Self> {
        if after < 0 {
            return Err(Error::invalid("after_cursor", "expected 0 or more"));
        }
        let last = store.read_events(tenant, session, after, 1).await?.last_cursor;
        if after > last {
            let message = format!("the newest event has cursor {last}");
            return Err(Error::new(Code::CursorOutOfRange, message).at("after_cursor"));
        }
        let next_look = Instant::now() + catch_up;
        Ok(Self {
            store,
            transport,
            tenant,
            session,
            cursor: after,
            live: None,
            behind: true,
            batch,
            catch_up,
            next_look,
        })
    }

    /// The next events, as soon as there are some. Cancel-safe.
    pub async fn next(&mut self) -> Result<Followed> {
        loop {
            if self.live.is_none() {
                // Listening comes before reading: what happens in between is seen by one of them.
                self.live = Some(self.transport.subscribe_events(self.tenant, self.session).await?);
                self.behind = true;
            }
            if self.behind {
                return self.replay().await;
            }
            let Some(live) = self.live.as_mut() else { continue };
            let arrived = tokio::select! {
                arrived = live.next() => arrived,
                () = sleep_until(self.next_look) => {
                    self.behind = true;
                    continue;
                }
            };
            match arrived {
                None => self.live = None,
                Some(events) => {
                    if let Some(next) = self.contiguous(events) {
                        return Ok(Followed::Events(next));
                    }
                }
            }
        }
    }

    /// Whether it only waits for what happens next. Else [`next`](Self::next) is about to read, and should be let finish:
    /// calls that are cut short again and again would never get anywhere.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live.is_some() && !self.behind
    }

    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The last cursor handed out.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Where the session's stream ends now. What was not handed out of it comes next.
    pub async fn end(&mut self) -> Result<Cursor> {
        let last = self.store.read_events(self.tenant, self.session, self.cursor, 1).await?.last_cursor;
        self.behind = last > self.cursor;
        Ok(last)
    }

    /// Whether the store has events that were not handed out. If so, they come next.
    pub async fn has_more(&mut self) -> Result<bool> {
        Ok(self.end().await? > self.cursor)
    }

    /// Goes back to a cursor that was handed out before: what came after it comes again.
    pub fn rewind(&mut self, cursor: Cursor) {
        if cursor < self.cursor {
            self.cursor = cursor;
            self.behind = true;
        }
    }

    async fn replay(&mut self) -> Result<Followed> {
        let slice = self.store.read_events(self.tenant, self.session, self.cursor, self.batch).await?;
        let Some(last) = slice.events.last() else {
            self.behind = false;
            self.next_look = Instant::now() + self.catch_up;
            return Ok(Followed::CaughtUp);
        };
        self.cursor = last.cursor;
        self.behind = self.cursor < slice.last_cursor;
        Ok(Followed::Events(slice.events))
    }

    /// The part of a live batch that comes next, if it starts right after what was handed out.
    fn contiguous(&mut self, events: Vec<Event>) -> Option<Vec<Event>> {
        let new: Vec<Event> = events.into_iter().filter(|event| event.cursor > self.cursor).collect();
        let expected = self.cursor + 1;
        let first = new.first()?.cursor;
        let unbroken = new.windows(2).all(|pair| pair[1].cursor == pair[0].cursor + 1);
        if first != expected || !unbroken {
            self.behind = true;
            return None;
        }
        self.cursor = new.last()?.cursor;
        self.next_look = Instant::now() + self.catch_up;
        Some(new)
    }
}
