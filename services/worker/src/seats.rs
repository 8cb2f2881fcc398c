//! Room for what the store grants by itself.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use remuda_domain::{Pool, SessionId, TenantId, WorkerId};
use remuda_store::{Grant, Seat, Seats};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
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
    /// More tokens wait than there are slots: those that become free are theirs.
    crowded: AtomicBool,
    changed: Arc<Notify>,
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("free", &self.slots.available_permits()).finish_non_exhaustive()
    }
}

impl Room {
    pub(crate) fn new(server: Arc<SessionServer>, tasks: TaskTracker, stop: CancellationToken) -> Self {
        let slots = Arc::new(Semaphore::new(server.worker.options.slots as usize));
        Self { server, tasks, slots, stop, crowded: AtomicBool::new(false), changed: Arc::default() }
    }

    pub(crate) fn slots(&self) -> &Arc<Semaphore> {
        &self.slots
    }

    /// Says whether more tokens wait than there are slots.
    pub(crate) fn set_crowded(&self, crowded: bool) {
        if self.crowded.swap(crowded, Ordering::Relaxed) != crowded {
            self.changed.notify_one();
        }
    }

    /// Slots that nobody waits for.
    pub(crate) fn free(&self) -> usize {
        match self.stop.is_cancelled() || self.crowded.load(Ordering::Relaxed) {
            true => 0,
            false => self.slots.available_permits(),
        }
    }

    /// Returns when there may be more or less room than before. Cancel-safe.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// A slot together with whoever wants to know that it is free again.
    pub(crate) fn occupy(&self, slot: OwnedSemaphorePermit) -> Slot {
        Slot { permit: Some(slot), changed: Arc::clone(&self.changed) }
    }

    /// Takes what was granted elsewhere and sent here, or gives it back if there is no room for it.
    pub(crate) fn receive(&self, grant: Box<Grant>) {
        let fence = grant.fence;
        if self.server.held.is_overtaken(&fence) {
            return;
        }
        if let Some(seat) = self.seat(&self.server.worker.options.pool, fence.session) {
            seat.take(grant);
            return;
        }
        let (server, span) = (Arc::clone(&self.server), context::of_session(fence.tenant, fence.session));
        self.tasks.spawn(async move { server.decline(fence).await }.instrument(span));
    }

    /// Claims a session that is said to be this worker's own, unless it has it in hand.
    pub(crate) fn claim_own(&self, tenant: TenantId, session: SessionId) {
        let Some(hold) = self.server.held.take(session) else { return };
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok().map(|slot| self.occupy(slot));
        let server = Arc::clone(&self.server);
        let claiming = async move {
            match (server.claim_own(tenant, session).await, slot) {
                (Some(grant), Some(_slot)) => server.serve_granted(hold, grant).await,
                (Some(grant), None) => server.decline(grant.fence).await,
                (None, _) => {}
            }
        };
        self.tasks.spawn(claiming.instrument(context::of_session(tenant, session)));
    }
}

impl Seats for Room {
    fn seat(&self, pool: &Pool, session: SessionId) -> Option<Box<dyn Seat>> {
        if self.stop.is_cancelled() || *pool != self.server.worker.options.pool {
            return None;
        }
        let slot = self.occupy(Arc::clone(&self.slots).try_acquire_owned().ok()?);
        // From here on a token of the session waits: it would be granted the same once more. Whoever has just released the session may not
        // have let go of it yet.
        let hold = self.server.held.take_next(session)?;
        let (server, tasks, awaited) = (Arc::clone(&self.server), self.tasks.clone(), self.tasks.token());
        Some(Box::new(Reserved { server, tasks, slot, hold, awaited }))
    }
}

/// A slot that is used. Whoever offers room is told when it is free again.
pub(crate) struct Slot {
    permit: Option<OwnedSemaphorePermit>,
    changed: Arc<Notify>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        // First the slot, then the word.
        self.permit = None;
        self.changed.notify_one();
    }
}

/// A slot, and a session in hand.
struct Reserved {
    server: Arc<SessionServer>,
    tasks: TaskTracker,
    slot: Slot,
    hold: NextHold,
    /// Whoever waits for the end of all tasks waits for this one, which has not begun.
    awaited: TaskTrackerToken,
}

impl Seat for Reserved {
    fn worker(&self) -> WorkerId {
        self.server.id
    }

    fn take(self: Box<Self>, grant: Box<Grant>) {
        let Self { server, tasks, slot, hold, awaited } = *self;
        server.worker.meters.granted();
        let span = context::of_session(grant.fence.tenant, grant.fence.session);
        let serving = async move {
            let hold = hold.taken().await;
            if let Some(hold) = hold.filter(|_| !server.held.is_overtaken(&grant.fence)) {
                // It is large, and tasks are moved before they begin.
                Box::pin(server.serve_granted(hold, *grant)).await;
            }
            drop(slot);
        };
        tasks.spawn(serving.instrument(span));
        drop(awaited);
    }
}
