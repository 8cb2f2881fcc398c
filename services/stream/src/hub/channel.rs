//! One session in a hub, as its readers see it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use remuda_domain::{Code, Cursor, Error, SessionId, TenantId, error::Result, event::Delta};
use remuda_store::StreamEnd;
use serde::Serialize;
use tokio::{sync::Notify, time::timeout};

use super::{
    replay::WeakRead,
    ring::Ring,
    speech::{Heard, Speech},
};
use crate::shared::{Shared, SharedDelta, SharedEvent};

/// How long a reader waits for a session to be found.
const OPENING: Duration = Duration::from_secs(10);

/// Whose session.
pub(super) type Key = (TenantId, SessionId);

/// What readers are told at once.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// Contiguous.
    Events(Arc<[SharedEvent]>),
    Deltas(Arc<[SharedDelta]>),
}

/// Shared by the task that listens to a session and its readers.
pub(super) struct Channel {
    pub(super) key: Key,
    pub(super) state: Mutex<State>,
    /// Readers are woken when something was pushed, and when the standing changes.
    news: Notify,
    /// The task is woken: there is something to look at below.
    pub(super) stirred: Notify,
    /// What the store said last of the session. Taken by the task.
    pub(super) said: Mutex<Option<Said>>,
    pub(super) wants_deltas: AtomicBool,
    /// Changed under the hub's lock.
    pub(super) users: AtomicUsize,
    /// Reads that are under way, by where they begin.
    pub(super) reads: Mutex<HashMap<Cursor, WeakRead>>,
}

/// What the store says of a session.
#[derive(Clone, Copy, Debug)]
pub(super) enum Said {
    End(StreamEnd),
    /// There is no such session.
    Gone,
}

pub(super) struct State {
    standing: Standing,
    /// The last cursor that was pushed, or that the store had when the channel was opened.
    pub(super) cursor: Cursor,
    /// Pieces are listened to, or that was tried.
    hears_deltas: bool,
    ring: Ring<Item>,
    pub(super) speech: Speech,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Opening,
    Live,
    NoSession,
    Closed,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock is held leaves nothing half done: every section is a few collection operations.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Pushes what comes next of some events, and says whether there was any for readers.
    fn push_events(&mut self, events: impl IntoIterator<Item = SharedEvent>) -> bool {
        let (mut next, mut size) = (Vec::new(), 0);
        for event in events {
            if event.cursor <= self.cursor {
                continue;
            }
            if event.cursor > self.cursor + 1 {
                break;
            }
            self.cursor = event.cursor;
            self.speech.note(&event);
            if self.ring.has_readers() {
                size += json_size(&**event);
                next.push(event);
            }
        }
        let is_news = !next.is_empty();
        if is_news {
            self.ring.push(Item::Events(next.into()), size);
        }
        is_news
    }

    /// Pushes what is new of some pieces. Says whether there was any, and whether some are missing.
    fn push_deltas(&mut self, deltas: Vec<Delta>) -> (bool, bool) {
        let (mut news, mut size, mut missing) = (Vec::new(), 0, false);
        for delta in deltas {
            match self.speech.hear(delta) {
                Heard::News(delta) => {
                    size += size_of::<Delta>() + delta.text.len();
                    news.push(Arc::new(Shared::new(delta)));
                }
                Heard::Nothing => {}
                Heard::Gap => missing = true,
            }
        }
        let is_news = !news.is_empty();
        if is_news {
            self.ring.push(Item::Deltas(news.into()), size);
        }
        (is_news, missing)
    }
}

impl Channel {
    pub(super) fn new(key: Key) -> Self {
        Self {
            key,
            state: Mutex::new(State {
                standing: Standing::Opening,
                cursor: 0,
                hears_deltas: false,
                ring: Ring::new(),
                speech: Speech::default(),
            }),
            news: Notify::new(),
            stirred: Notify::new(),
            said: Mutex::default(),
            wants_deltas: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            reads: Mutex::default(),
        }
    }

    pub(super) fn standing(&self) -> Standing {
        lock(&self.state).standing
    }

    pub(super) fn stand(&self, standing: Standing) {
        lock(&self.state).standing = standing;
        self.news.notify_waiters();
    }

    /// Begins after this cursor.
    pub(super) fn go_live(&self, cursor: Cursor) {
        lock(&self.state).cursor = cursor;
        self.stand(Standing::Live);
    }

    pub(super) fn hear_deltas(&self) {
        lock(&self.state).hears_deltas = true;
        self.news.notify_waiters();
    }

    pub(super) fn cursor(&self) -> Cursor {
        lock(&self.state).cursor
    }

    /// Tells what comes next of some events, up to where something is missing.
    pub(super) fn push_events(&self, events: impl IntoIterator<Item = SharedEvent>) {
        if lock(&self.state).push_events(events) {
            self.news.notify_waiters();
        }
    }

    /// Goes on after a cursor whose events are no longer kept.
    pub(super) fn skip_to(&self, cursor: Cursor) {
        let mut state = lock(&self.state);
        state.cursor = state.cursor.max(cursor);
    }

    /// Tells what is new of some pieces. True if some are missing.
    pub(super) fn push_deltas(&self, deltas: Vec<Delta>) -> bool {
        let (is_news, missing) = lock(&self.state).push_deltas(deltas);
        if is_news {
            self.news.notify_waiters();
        }
        missing
    }

    /// Tells the task what the store says.
    pub(super) fn tell(&self, said: Said) {
        *lock(&self.said) = Some(said);
        self.stirred.notify_one();
    }

    /// Takes a place among the readers, once there is something to read.
    pub(super) async fn sit(self: &Arc<Self>, deltas: bool) -> Result<Seat> {
        let seated = timeout(OPENING, self.seated(deltas)).await;
        seated
            .unwrap_or_else(|_| Err(Error::unavailable("the session's events cannot be read at the moment")))
    }

    async fn seated(self: &Arc<Self>, deltas: bool) -> Result<Seat> {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Registers before the look, so that nothing in between is missed.
            news.as_mut().enable();
            {
                let mut state = lock(&self.state);
                match state.standing {
                    Standing::Live if state.hears_deltas || !deltas => {
                        let so_far = if deltas { state.speech.so_far() } else { Arc::default() };
                        let (place, base) = (state.ring.join(), state.cursor);
                        return Ok(Seat { channel: Arc::clone(self), place, base, so_far });
                    }
                    Standing::Live | Standing::Opening => {}
                    over => return Err(end_of(over)),
                }
            }
            news.await;
        }
    }
}

fn end_of(standing: Standing) -> Error {
    match standing {
        Standing::NoSession => Error::new(Code::SessionNotFound, "there is no such session").at("session"),
        _ => Error::unavailable("the server shuts down; reconnect with your last cursor"),
    }
}

/// A reader's place in a channel.
pub(crate) struct Seat {
    channel: Arc<Channel>,
    place: usize,
    /// What comes begins after this cursor.
    pub(crate) base: Cursor,
    /// What was being said when the place was taken.
    pub(crate) so_far: Arc<[SharedDelta]>,
}

impl Seat {
    /// What happened since the last call, as soon as something has; nothing if the reader was too slow and missed something.
    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Item>>> {
        loop {
            let news = self.channel.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            {
                let mut state = lock(&self.channel.state);
                match state.ring.take(&mut self.place) {
                    None => return Ok(None),
                    Some(items) if !items.is_empty() => return Ok(Some(items)),
                    Some(_) if state.standing != Standing::Live => return Err(end_of(state.standing)),
                    Some(_) => {}
                }
            }
            news.await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.channel.state).ring.leave(self.place);
    }
}

/// About how much room something takes: the length of its text.
fn json_size(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What has no text has no reader either.
    serde_json::to_writer(&mut count, value).ok();
    count.0
}

/// Who uses a channel; it is closed a little after the last one has gone.
pub(crate) struct Membership {
    pub(super) channel: Arc<Channel>,
    pub(super) deltas: bool,
}

impl Membership {
    /// Takes a place among the readers.
    pub(crate) async fn sit(&self) -> Result<Seat> {
        self.channel.sit(self.deltas).await
    }

    /// Says how far the session's events go, should that be news.
    pub(crate) fn hint(&self, end: StreamEnd) {
        self.channel.tell(Said::End(end));
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.channel.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.channel.stirred.notify_one();
        }
    }
}
