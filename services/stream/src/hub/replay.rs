//! Reads of history from the store, with limited concurrency and shared between readers.

use std::sync::Arc;

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared as SharedFuture, WeakShared},
};
use remuda_domain::{Cursor, Error, error::Result};
use remuda_store::EventSlice;
use tokio::sync::Semaphore;

use super::{Inner, channel::Channel};
use crate::shared_event::{Shared, SharedEvent};

/// Events read from the store.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) events: Vec<SharedEvent>,
    /// Cursor of the session's newest event.
    pub(crate) last_cursor: Cursor,
}

/// A single-flight read. Callers keep it between calls, so that a cancelled call can continue to wait for it.
pub(crate) type SharedRead = SharedFuture<BoxFuture<'static, Result<Arc<History>, Arc<Error>>>>;
pub(super) type WeakSharedRead = WeakShared<BoxFuture<'static, Result<Arc<History>, Arc<Error>>>>;

/// Reads the events after a cursor once `limiter` permits. Concurrent calls for the same cursor share one read.
pub(super) fn read(
    hub: &Arc<Inner>,
    channel: &Channel,
    after: Cursor,
    limiter: fn(&Inner) -> &Semaphore,
) -> SharedRead {
    let mut reads = channel.reads.lock();
    if let Some(read) = reads.get(&after).and_then(WeakShared::upgrade) {
        return read;
    }
    reads.retain(|_, read| read.upgrade().is_some());
    let (hub, (tenant, session)) = (Arc::clone(hub), channel.key);
    let tasks = hub.tasks.clone();
    let work = async move {
        // The semaphore is never closed.
        let _turn =
            limiter(&hub).acquire().await.map_err(|_| Error::internal("the read limiter is closed"))?;
        let slice = hub.store.read_events(tenant, session, after, hub.options.replay_batch).await?;
        let EventSlice { events, last_cursor } = slice;
        let events = events.into_iter().map(|event| Arc::new(Shared::new(event))).collect();
        Ok(History { events, last_cursor })
    };
    // In its own task: a reader that is not polled must not block the permit for others.
    let task = tasks.spawn(work);
    let finished = async move {
        match task.await {
            Ok(Ok(history)) => Ok(Arc::new(history)),
            Ok(Err(error)) => Err(Arc::new(error)),
            Err(error) => Err(Arc::new(Error::internal("a read of history was aborted").with_source(error))),
        }
    };
    let read = finished.boxed().shared();
    if let Some(weak) = read.downgrade() {
        reads.insert(after, weak);
    }
    read
}
