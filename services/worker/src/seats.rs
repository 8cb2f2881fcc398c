//! Room for what the store grants by itself.

use std::{fmt, sync::Arc};

use remuda_domain::SessionId;
use remuda_store::{Grant, Seat, Seats};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tracing::Instrument as _;

use crate::{context, held::NextHold, session::SessionServer};

/// The free slots of a worker.
pub(crate) struct Room {
    server: Arc<SessionServer>,
    tasks: TaskTracker,
    slots: Arc<Semaphore>,
    stop: CancellationToken,
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("free", &self.slots.available_permits()).finish_non_exhaustive()
    }
}

impl Room {
    pub(crate) fn new(
        server: Arc<SessionServer>,
        tasks: TaskTracker,
        slots: Arc<Semaphore>,
        stop: CancellationToken,
    ) -> Self {
        Self { server, tasks, slots, stop }
    }
}

impl Seats for Room {
    fn seat(&self, session: SessionId) -> Option<Box<dyn Seat>> {
        if self.stop.is_cancelled() {
            return None;
        }
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        // From here on a token of the session waits: it would be granted the same once more. Whoever has just released the session may not
        // have let go of it yet.
        let hold = self.server.held.take_next(session)?;
        let (server, tasks, awaited) = (Arc::clone(&self.server), self.tasks.clone(), self.tasks.token());
        Some(Box::new(Reserved { server, tasks, slot, hold, awaited }))
    }
}

/// A slot, and a session in hand.
struct Reserved {
    server: Arc<SessionServer>,
    tasks: TaskTracker,
    slot: OwnedSemaphorePermit,
    hold: NextHold,
    /// Whoever waits for the end of all tasks waits for this one, which has not begun.
    awaited: TaskTrackerToken,
}

impl Seat for Reserved {
    fn take(self: Box<Self>, grant: Box<Grant>) {
        let Self { server, tasks, slot, hold, awaited } = *self;
        let span = context::of_session(grant.fence.tenant, grant.fence.session);
        let serving = async move {
            if let Some(hold) = hold.taken().await {
                server.serve_granted(hold, *grant).await;
            }
            drop(slot);
        };
        tasks.spawn(serving.instrument(span));
        drop(awaited);
    }
}
