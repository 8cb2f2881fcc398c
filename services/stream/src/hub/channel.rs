//! The channel of one session: what its readers and its upstream task share.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use remuda_domain::{Code, Cursor, Error, SessionId, TenantId, error::Result, event::Delta};
use remuda_store::StreamEnd;
use serde::Serialize;
use tokio::{sync::Notify, time::timeout};

use super::{
    partial_messages::{DeltaOutcome, PartialMessages},
    replay::WeakSharedRead,
    ring::Ring,
};
use crate::shared_event::{Shared, SharedDelta, SharedEvent};

/// How long a reader waits for the session to be looked up.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Identifies a session.
pub(super) type Key = (TenantId, SessionId);

/// What readers receive in one piece.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// Contiguous.
    Events(Arc<[SharedEvent]>),
    Deltas(Arc<[SharedDelta]>),
}

/// Shared by a session's upstream task and its readers.
pub(super) struct Channel {
    pub(super) key: Key,
    pub(super) state: Mutex<State>,
    /// Wakes readers when an item was pushed or the status changed.
    changed: Notify,
    /// Wakes the upstream task to check the fields below.
    pub(super) task_wake: Notify,
    /// The last lookup in the store. Taken by the task.
    pub(super) lookup_result: Mutex<Option<LookupResult>>,
    pub(super) wants_deltas: AtomicBool,
    /// Changed under the hub's lock.
    pub(super) users: AtomicUsize,
    /// Reads under way, by start cursor.
    pub(super) reads: Mutex<HashMap<Cursor, WeakSharedRead>>,
}

/// Result of looking a session up in the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum LookupResult {
    End(StreamEnd),
    /// The session does not exist.
    Gone,
}

pub(super) struct State {
    status: ChannelStatus,
    /// The last cursor that was pushed, or that the store had when the channel was opened.
    pub(super) cursor: Cursor,
    /// The subscription to deltas is open, or was tried.
    deltas_subscribed: bool,
    ring: Ring<Item>,
    pub(super) partial_messages: PartialMessages,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelStatus {
    Opening,
    Live,
    NoSession,
    Closed,
}

impl State {
    /// Pushes the contiguous new part of some events. Returns whether readers got any.
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
            self.partial_messages.apply_event(&event);
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

    /// Pushes the new part of some deltas. Returns whether there was any, and whether some are missing.
    fn push_deltas(&mut self, deltas: Vec<Delta>) -> (bool, bool) {
        let (mut changed, mut size, mut missing) = (Vec::new(), 0, false);
        for delta in deltas {
            match self.partial_messages.apply(delta) {
                DeltaOutcome::New(delta) => {
                    size += size_of::<Delta>() + delta.text.len();
                    changed.push(Arc::new(Shared::new(delta)));
                }
                DeltaOutcome::Ignored => {}
                DeltaOutcome::Missing => missing = true,
            }
        }
        let is_news = !changed.is_empty();
        if is_news {
            self.ring.push(Item::Deltas(changed.into()), size);
        }
        (is_news, missing)
    }
}

impl Channel {
    pub(super) fn new(key: Key) -> Self {
        Self {
            key,
            state: Mutex::new(State {
                status: ChannelStatus::Opening,
                cursor: 0,
                deltas_subscribed: false,
                ring: Ring::new(),
                partial_messages: PartialMessages::default(),
            }),
            changed: Notify::new(),
            task_wake: Notify::new(),
            lookup_result: Mutex::default(),
            wants_deltas: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            reads: Mutex::default(),
        }
    }

    pub(super) fn status(&self) -> ChannelStatus {
        self.state.lock().status
    }

    pub(super) fn set_status(&self, status: ChannelStatus) {
        self.state.lock().status = status;
        self.changed.notify_waiters();
    }

    /// Starts after this cursor.
    pub(super) fn go_live(&self, cursor: Cursor) {
        self.state.lock().cursor = cursor;
        self.set_status(ChannelStatus::Live);
    }

    pub(super) fn set_deltas_subscribed(&self) {
        self.state.lock().deltas_subscribed = true;
        self.changed.notify_waiters();
    }

    pub(super) fn cursor(&self) -> Cursor {
        self.state.lock().cursor
    }

    /// Pushes the new part of some events, up to the first gap.
    pub(super) fn push_events(&self, events: impl IntoIterator<Item = SharedEvent>) {
        if self.state.lock().push_events(events) {
            self.changed.notify_waiters();
        }
    }

    /// Continues after a cursor up to which events have been trimmed.
    pub(super) fn skip_to(&self, cursor: Cursor) {
        let mut state = self.state.lock();
        state.cursor = state.cursor.max(cursor);
    }

    /// Pushes the new part of some deltas. Returns whether some are missing.
    pub(super) fn push_deltas(&self, deltas: Vec<Delta>) -> bool {
        let (is_news, missing) = self.state.lock().push_deltas(deltas);
        if is_news {
            self.changed.notify_waiters();
        }
        missing
    }

    /// Passes a lookup result to the task.
    pub(super) fn deliver_lookup(&self, lookup_result: LookupResult) {
        *self.lookup_result.lock() = Some(lookup_result);
        self.task_wake.notify_one();
    }

    /// Attaches a reader, once the channel is live.
    pub(super) async fn attach(self: &Arc<Self>, deltas: bool) -> Result<ChannelReader> {
        let seated = timeout(OPEN_TIMEOUT, self.attach_when_live(deltas)).await;
        seated.unwrap_or_else(|_| Err(Error::unavailable("cannot read the session's events at the moment")))
    }

    async fn attach_when_live(self: &Arc<Self>, deltas: bool) -> Result<ChannelReader> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before the check, so that no change in between is missed.
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                match state.status {
                    ChannelStatus::Live if state.deltas_subscribed || !deltas => {
                        let partial_text =
                            if deltas { state.partial_messages.snapshot() } else { Arc::default() };
                        let (position, base) = (state.ring.join(), state.cursor);
                        return Ok(ChannelReader { channel: Arc::clone(self), position, base, partial_text });
                    }
                    ChannelStatus::Live | ChannelStatus::Opening => {}
                    status => return Err(status_error(status)),
                }
            }
            changed.await;
        }
    }
}

fn status_error(status: ChannelStatus) -> Error {
    match status {
        ChannelStatus::NoSession => {
            Error::new(Code::SessionNotFound, "there is no such session").at("session")
        }
        _ => Error::unavailable("the server is shutting down; reconnect with your last cursor"),
    }
}

/// A reader's position in the ring of a channel.
pub(crate) struct ChannelReader {
    channel: Arc<Channel>,
    position: usize,
    /// Items start after this cursor.
    pub(crate) base: Cursor,
    /// The text of messages under way when the reader attached.
    pub(crate) partial_text: Arc<[SharedDelta]>,
}

impl ChannelReader {
    /// Items since the last call. Waits until there are some. `None` if the reader was too slow and missed some.
    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Item>>> {
        loop {
            let changed = self.channel.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.channel.state.lock();
                match state.ring.take(&mut self.position) {
                    None => return Ok(None),
                    Some(items) if !items.is_empty() => return Ok(Some(items)),
                    Some(_) if state.status != ChannelStatus::Live => return Err(status_error(state.status)),
                    Some(_) => {}
                }
            }
            changed.await;
        }
    }
}

impl Drop for ChannelReader {
    fn drop(&mut self) {
        self.channel.state.lock().ring.leave(self.position);
    }
}

/// Approximate size of a value: the length of its JSON.
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
    // Values that cannot be serialized are not sent either.
    serde_json::to_writer(&mut count, value).ok();
    count.0
}

/// Keeps a channel in use. The channel is closed a little after its last membership is dropped.
pub(crate) struct Membership {
    pub(super) channel: Arc<Channel>,
    pub(super) deltas: bool,
}

impl Membership {
    /// Attaches a reader.
    pub(crate) async fn attach(&self) -> Result<ChannelReader> {
        self.channel.attach(self.deltas).await
    }

    /// Reports the end of the session's stream, in case it is newer than what the channel has.
    pub(crate) fn hint(&self, end: StreamEnd) {
        self.channel.deliver_lookup(LookupResult::End(end));
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.channel.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.channel.task_wake.notify_one();
        }
    }
}
