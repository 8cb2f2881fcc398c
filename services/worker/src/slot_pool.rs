//! The slots of a worker, and their assignment to sessions that the store grants directly.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use remuda_domain::{Pool, SessionId, TenantId, WorkerId};
use remuda_store::{Grant, SlotProvider, SlotReservation};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tracing::Instrument as _;

use crate::{active_sessions::PendingGuard, log_spans, session::SessionServer};

/// Claims at once because of unproven messages.
const MAX_HINTED_CLAIMS: usize = 8;

/// The slots of a worker.
pub(crate) struct SlotPool {
    server: Arc<SessionServer>,
    tasks: TaskTracker,
    slots: Arc<Semaphore>,
    stop: CancellationToken,
    /// More tokens wait than there are slots: the next free slots go to them.
    backlogged: AtomicBool,
    changed: Arc<Notify>,
    /// Claims because of unproven messages.
    hinted_claims: Arc<Semaphore>,
}

impl fmt::Debug for SlotPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotPool").field("free", &self.slots.available_permits()).finish_non_exhaustive()
    }
}

impl SlotPool {
    pub(crate) fn new(server: Arc<SessionServer>, tasks: TaskTracker, stop: CancellationToken) -> Self {
        let slots = Arc::new(Semaphore::new(server.worker.options.slots as usize));
        Self {
            server,
            tasks,
            slots,
            stop,
            backlogged: AtomicBool::new(false),
            changed: Arc::default(),
            hinted_claims: Arc::new(Semaphore::new(MAX_HINTED_CLAIMS)),
        }
    }

    pub(crate) fn slots(&self) -> &Arc<Semaphore> {
        &self.slots
    }

    /// Sets whether more tokens wait than there are slots.
    pub(crate) fn set_backlogged(&self, backlogged: bool) {
        if self.backlogged.swap(backlogged, Ordering::Relaxed) != backlogged {
            self.changed.notify_one();
        }
    }

    /// Free slots that no token is waiting for.
    pub(crate) fn free_slots(&self) -> usize {
        match self.stop.is_cancelled() || self.backlogged.load(Ordering::Relaxed) {
            true => 0,
            false => self.slots.available_permits(),
        }
    }

    /// Returns when the number of free slots may have changed. Cancel-safe.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Marks a slot as occupied. Dropping the result notifies the task that offers free slots.
    pub(crate) fn occupy(&self, slot: OwnedSemaphorePermit) -> OccupiedSlot {
        OccupiedSlot { permit: Some(slot), changed: Arc::clone(&self.changed) }
    }

    /// Accepts a grant that another process made and sent here, or gives it back if there is no free slot.
    pub(crate) fn accept_grant(&self, grant: Box<Grant>) {
        let fence = grant.fence;
        if self.server.active_sessions.is_superseded(&fence) {
            return;
        }
        if let Some(reservation) = self.reserve_slot(&self.server.worker.options.pool, fence.session) {
            reservation.assign(grant);
            return;
        }
        let (server, span) = (Arc::clone(&self.server), log_spans::session_span(fence.tenant, fence.session));
        self.tasks.spawn(async move { server.decline(fence).await }.instrument(span));
    }

    /// Claims a session that the store has recorded as this worker's, unless it is active here already.
    pub(crate) fn reclaim_session(&self, tenant: TenantId, session: SessionId) {
        let Some(session_guard) = self.server.active_sessions.acquire(session) else { return };
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok().map(|slot| self.occupy(slot));
        let server = Arc::clone(&self.server);
        let claiming = async move {
            match (server.reclaim_session(tenant, session).await, slot) {
                (Some(grant), Some(_slot)) => server.serve_granted(session_guard, grant).await,
                (Some(grant), None) => server.decline(grant.fence).await,
                (None, _) => {}
            }
        };
        self.tasks.spawn(claiming.instrument(log_spans::session_span(tenant, session)));
    }

    /// Claims a session that an unproven message names, if there are free slots. The store decides whether this worker
    /// gets it. The claim takes no slot, and only a few are made at once: hints must not keep real work waiting.
    pub(crate) fn claim_hinted(self: &Arc<Self>, tenant: TenantId, session: SessionId) {
        if self.free_slots() == 0 {
            return;
        }
        let Ok(claim) = Arc::clone(&self.hinted_claims).try_acquire_owned() else { return };
        let Some(session_guard) = self.server.active_sessions.acquire(session) else { return };
        let this = Arc::clone(self);
        let claiming = async move {
            let Some(grant) = this.server.reclaim_session(tenant, session).await else { return };
            drop(claim);
            match Arc::clone(&this.slots).try_acquire_owned() {
                Ok(slot) => {
                    let _slot = this.occupy(slot);
                    this.server.serve_granted(session_guard, grant).await;
                }
                Err(_) => this.server.decline(grant.fence).await,
            }
        };
        self.tasks.spawn(claiming.instrument(log_spans::session_span(tenant, session)));
    }
}

impl SlotProvider for SlotPool {
    fn reserve_slot(&self, pool: &Pool, session: SessionId) -> Option<Box<dyn SlotReservation>> {
        if self.stop.is_cancelled() || *pool != self.server.worker.options.pool {
            return None;
        }
        let slot = self.occupy(Arc::clone(&self.slots).try_acquire_owned().ok()?);
        // Register the session before the commit: a concurrent token would otherwise be granted it again. A guard of
        // its previous runs may still exist, because the release is committed before that guard is dropped.
        let session_guard = self.server.active_sessions.acquire_or_wait(session)?;
        let (server, tasks, task_token) = (Arc::clone(&self.server), self.tasks.clone(), self.tasks.token());
        Some(Box::new(ReservedSlot { server, tasks, slot, session_guard, task_token }))
    }
}

/// An occupied slot. Dropping it notifies the task that offers free slots.
pub(crate) struct OccupiedSlot {
    permit: Option<OwnedSemaphorePermit>,
    changed: Arc<Notify>,
}

impl Drop for OccupiedSlot {
    fn drop(&mut self) {
        // Free the permit before notifying.
        self.permit = None;
        self.changed.notify_one();
    }
}

/// A slot reserved for a session, with the session's guard.
struct ReservedSlot {
    server: Arc<SessionServer>,
    tasks: TaskTracker,
    slot: OccupiedSlot,
    session_guard: PendingGuard,
    /// Makes `TaskTracker::wait` wait for the task that `assign` will spawn.
    task_token: TaskTrackerToken,
}

impl SlotReservation for ReservedSlot {
    fn worker(&self) -> WorkerId {
        self.server.id
    }

    fn assign(self: Box<Self>, grant: Box<Grant>) {
        let Self { server, tasks, slot, session_guard, task_token } = *self;
        server.worker.meters.granted();
        let span = log_spans::session_span(grant.fence.tenant, grant.fence.session);
        let serving = async move {
            let session_guard = session_guard.acquired().await;
            if let Some(session_guard) =
                session_guard.filter(|_| !server.active_sessions.is_superseded(&grant.fence))
            {
                // Boxed: the future is large, and spawning moves it.
                Box::pin(server.serve_granted(session_guard, *grant)).await;
            }
            drop(slot);
        };
        tasks.spawn(serving.instrument(span));
        drop(task_token);
    }
}
