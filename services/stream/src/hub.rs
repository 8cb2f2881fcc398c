//! All sessions that this process follows, each once, whatever the number of its readers.
//!
//! A session is listened to from its first reader on until a little after its last one. What happens is put into a bounded ring
//! that every reader takes from at its own pace: one that is too slow reads what it missed from the store and comes back. What gets
//! lost on the way is found by comparing all sessions with the store now and then, in one query, and read once for all readers.

mod channel;
mod looker;
mod replay;
mod ring;
mod speech;
mod upstream;

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use remuda_domain::{Cursor, SessionId, TenantId, error::Result};
use remuda_store::{Store, StreamEnd};
use remuda_transport::Transport;
use tokio::sync::{Notify, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use self::{
    channel::{Channel, Key, lock},
    upstream::Upstream,
};
pub(crate) use self::{
    channel::{Item, Membership, Seat},
    replay::{History, Read},
};
use crate::meters::{Meters, observe_sessions};

/// Reads of history at once. Others wait for their turn, so that many who come at the same time leave the store room for runs.
const REPLAYS: usize = 8;
/// The same for what live readers missed, who do not wait behind those who come.
const FILLS: usize = 4;

#[derive(Clone, Debug)]
pub(crate) struct HubOptions {
    /// Events read from the store at once.
    pub(crate) replay_batch: usize,
    /// How often what was heard is compared with the store.
    pub(crate) catch_up: Duration,
    /// How long a session is listened to after its last reader has gone.
    pub(crate) linger: Duration,
    /// How long readers may go on after the stop signal.
    pub(crate) farewell: Duration,
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Hub(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    options: HubOptions,
    channels: Mutex<HashMap<Key, Arc<Channel>>>,
    /// The last channel was closed.
    emptied: Notify,
    /// Sessions to be looked up in the store soon.
    wanted: Mutex<HashSet<Key>>,
    called: Notify,
    replays: Semaphore,
    fills: Semaphore,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Readers had time to go since the stop signal.
    over: CancellationToken,
    meters: Meters,
}

impl Hub {
    /// Works until `stop`, and a little longer if there are readers.
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
            wanted: Mutex::default(),
            called: Notify::new(),
            replays: Semaphore::new(REPLAYS),
            fills: Semaphore::new(FILLS),
            tasks: tasks.clone(),
            stop,
            over: CancellationToken::new(),
            meters: Meters::new(),
        });
        let known = Arc::downgrade(&inner);
        observe_sessions(move || Some(lock(&known.upgrade()?.channels).len()));
        tasks.spawn(looker::look(Arc::clone(&inner)));
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
        let mut channels = lock(&self.0.channels);
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
        // Under the lock: a channel is only closed while nobody uses it.
        channel.users.fetch_add(1, Ordering::AcqRel);
        drop(channels);
        if deltas && !channel.wants_deltas.swap(true, Ordering::AcqRel) {
            channel.stirred.notify_one();
        }
        Membership { channel, deltas }
    }

    /// Reads history of a session that is followed.
    pub(crate) fn read(&self, membership: &Membership, after: Cursor) -> Read {
        replay::read(&self.0, &membership.channel, after, |hub| &hub.replays)
    }

    /// Where a session's stream ends now, if the session exists.
    pub(crate) async fn end_of(&self, tenant: TenantId, session: SessionId) -> Result<Option<StreamEnd>> {
        Ok(self.0.store.last_cursors(&[(tenant, session)]).await?.first().copied())
    }

    #[cfg(test)]
    pub(crate) fn sessions(&self) -> usize {
        lock(&self.0.channels).len()
    }
}

impl Inner {
    /// Has a session looked up in the store, together with others.
    fn look_soon(&self, key: Key) {
        lock(&self.wanted).insert(key);
        self.called.notify_one();
    }

    /// Forgets a channel that nobody uses, and says whether it did.
    fn close_unused(&self, channel: &Channel) -> bool {
        let mut channels = lock(&self.channels);
        if channel.users.load(Ordering::Acquire) > 0 {
            return false;
        }
        self.remove(&mut channels, channel.key);
        true
    }

    /// Forgets a channel, whoever uses it.
    fn close(&self, channel: &Channel) {
        self.remove(&mut lock(&self.channels), channel.key);
    }

    fn remove(&self, channels: &mut HashMap<Key, Arc<Channel>>, key: Key) {
        channels.remove(&key);
        if channels.is_empty() {
            self.emptied.notify_one();
        }
    }
}
