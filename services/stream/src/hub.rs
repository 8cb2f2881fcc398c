//! The hub: follows each session once in this process, for all of its readers.
//!
//! A session is followed from its first reader until a little after its last one. Live events go into a bounded ring
//! from which every reader takes at its own pace. A reader that is too slow reads from the store what it missed, and
//! attaches again. Lost live events are detected by comparing all sessions with the store periodically, in one query,
//! and read once for all readers.

mod channel;
mod cursor_lookup;
mod partial_messages;
mod replay;
mod ring;
mod upstream;

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use remuda_domain::{Cursor, SessionId, TenantId, error::Result};
use remuda_store::{Store, StreamEnd};
use remuda_transport::Transport;
use tokio::sync::{Notify, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use self::{
    channel::{Channel, Key},
    upstream::Upstream,
};
pub(crate) use self::{
    channel::{ChannelReader, Item, Membership},
    replay::{History, SharedRead},
};
use crate::meters::{Meters, observe_sessions};

/// Concurrent reads of history. More wait in a queue, so that a crowd of new readers leaves the store capacity for
/// runs.
const MAX_REPLAYS: usize = 8;
/// Concurrent reads of events that live readers missed. Separate, so that live readers do not wait behind new ones.
const MAX_GAP_READS: usize = 4;

#[derive(Clone, Debug)]
pub(crate) struct HubOptions {
    /// Events per read from the store.
    pub(crate) replay_batch: usize,
    /// How often sessions are compared with the store.
    pub(crate) catch_up: Duration,
    /// How long a session is followed after its last reader has gone.
    pub(crate) linger: Duration,
    /// How long readers may continue after the stop signal.
    pub(crate) drain_time: Duration,
}

/// All followed sessions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Hub(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    options: HubOptions,
    channels: Mutex<HashMap<Key, Arc<Channel>>>,
    /// The last channel was closed.
    emptied: Notify,
    /// Sessions to look up in the store soon.
    lookups: Mutex<HashSet<Key>>,
    lookup_requested: Notify,
    replays: Semaphore,
    gap_reads: Semaphore,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Readers have had their time to close after the stop signal.
    shutdown: CancellationToken,
    meters: Meters,
}

impl Hub {
    /// Runs until `stop`, and a little longer if there are readers.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
        options: HubOptions,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let inner = Arc::new(Inner {
            store,
            transport,
            options,
            channels: Mutex::default(),
            emptied: Notify::new(),
            lookups: Mutex::default(),
            lookup_requested: Notify::new(),
            replays: Semaphore::new(MAX_REPLAYS),
            gap_reads: Semaphore::new(MAX_GAP_READS),
            tasks: tasks.clone(),
            stop,
            shutdown: CancellationToken::new(),
            meters: Meters::new(),
        });
        let weak = Arc::downgrade(&inner);
        observe_sessions(move || Some(weak.upgrade()?.channels.lock().len()));
        tasks.spawn(cursor_lookup::run_cursor_lookups(Arc::clone(&inner)));
        Self(inner)
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.0.store.as_ref()
    }

    pub(crate) fn meters(&self) -> &Meters {
        &self.0.meters
    }

    /// Follows a session for one more reader.
    pub(crate) fn join(&self, tenant: TenantId, session: SessionId, deltas: bool) -> Membership {
        let key = (tenant, session);
        let mut channels = self.0.channels.lock();
        let channel = match channels.entry(key) {
            Entry::Occupied(entry) => Arc::clone(entry.get()),
            Entry::Vacant(entry) => {
                let channel = Arc::clone(entry.insert(Arc::new(Channel::new(key))));
                let upstream = Upstream::new(Arc::clone(&self.0), Arc::clone(&channel));
                let span = tracing::error_span!("stream", %session, %tenant);
                self.0.tasks.spawn(upstream.run().instrument(span));
                channel
            }
        };
        // Under the lock: a channel is only closed while it has no users.
        channel.users.fetch_add(1, Ordering::AcqRel);
        drop(channels);
        if deltas && !channel.wants_deltas.swap(true, Ordering::AcqRel) {
            channel.task_wake.notify_one();
        }
        Membership { channel, deltas }
    }

    /// Reads history of a followed session.
    pub(crate) fn read(&self, membership: &Membership, after: Cursor) -> SharedRead {
        replay::read(&self.0, &membership.channel, after, |hub| &hub.replays)
    }

    /// The current end of a session's stream, if the session exists.
    pub(crate) async fn stream_end(&self, tenant: TenantId, session: SessionId) -> Result<Option<StreamEnd>> {
        Ok(self.0.store.last_cursors(&[(tenant, session)]).await?.first().copied())
    }

    #[cfg(test)]
    pub(crate) fn sessions(&self) -> usize {
        self.0.channels.lock().len()
    }
}

impl Inner {
    /// Requests a lookup of the session in the store, batched with others.
    fn request_lookup(&self, key: Key) {
        self.lookups.lock().insert(key);
        self.lookup_requested.notify_one();
    }

    /// Removes a channel without users. Returns whether it did.
    fn close_unused(&self, channel: &Channel) -> bool {
        let mut channels = self.channels.lock();
        if channel.users.load(Ordering::Acquire) > 0 {
            return false;
        }
        self.remove(&mut channels, channel.key);
        true
    }

    /// Removes a channel even if it has users.
    fn close(&self, channel: &Channel) {
        self.remove(&mut self.channels.lock(), channel.key);
    }

    fn remove(&self, channels: &mut HashMap<Key, Arc<Channel>>, key: Key) {
        channels.remove(&key);
        if channels.is_empty() {
            self.emptied.notify_one();
        }
    }
}
