//! Reading history from the store, not too much of it at once.

use std::sync::Arc;

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared as SharedFuture, WeakShared},
};
use remuda_domain::{Cursor, Error, error::Result};
use remuda_store::EventSlice;
use tokio::sync::Semaphore;

use super::{
    Inner,
    channel::{Channel, lock},
};
use crate::shared::{Shared, SharedEvent};

/// What was read.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) events: Vec<SharedEvent>,
    /// Cursor of the newest event of the session.
    pub(crate) last_cursor: Cursor,
}

/// A read that all who want the same wait for. Kept between calls, so that one that is cut short goes on where it was.
pub(crate) type Read = SharedFuture<BoxFuture<'static, Result<Arc<History>, Arc<Error>>>>;
pub(super) type WeakRead = WeakShared<BoxFuture<'static, Result<Arc<History>, Arc<Error>>>>;

/// Reads on after a cursor, when it is one's `turn`. Who wants the same while it is being read gets the same.
pub(super) fn read(
    hub: &Arc<Inner>,
    channel: &Channel,
    after: Cursor,
    turn: fn(&Inner) -> &Semaphore,
) -> Read {
    let mut reads = lock(&channel.reads);
    if let Some(read) = reads.get(&after).and_then(WeakShared::upgrade) {
        return read;
    }
    reads.retain(|_, read| read.upgrade().is_some());
    let (hub, (tenant, session)) = (Arc::clone(hub), channel.key);
    let tasks = hub.tasks.clone();
    let work = async move {
        // Never closed.
        let _turn = turn(&hub).acquire().await.map_err(|_| Error::internal("the hub is closed"))?;
        let slice = hub.store.read_events(tenant, session, after, hub.options.replay_batch).await?;
        let EventSlice { events, last_cursor } = slice;
        let events = events.into_iter().map(|event| Arc::new(Shared::new(event))).collect();
        Ok(History { events, last_cursor })
    };
    // In a task of its own: a reader that is not asked for more must not keep the turn of others.
    let task = tasks.spawn(work);
    let finished = async move {
        match task.await {
            Ok(Ok(history)) => Ok(Arc::new(history)),
            Ok(Err(error)) => Err(Arc::new(error)),
            Err(error) => Err(Arc::new(Error::internal("a read was cut short").with_source(error))),
        }
    };
    let read = finished.boxed().shared();
    if let Some(weak) = read.downgrade() {
        reads.insert(after, weak);
    }
    read
}
