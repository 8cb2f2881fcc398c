//! Free slots of workers in other processes: estimated from their offers, filled by grant batches.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use remuda_domain::{ControlPlaneId, Pool, SessionId, WorkerId, error::Result};
use remuda_store::{Grant, SlotProvider, SlotReservation};
use remuda_transport::Transport;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::{
    AttachedSlots, Slots,
    grant_sender::{GrantSender, QueuedGrant},
    slot_table::SlotTable,
};

/// Grants that may wait to be sent. Offered slots are bounded, so the queue only fills while the transport is down.
const QUEUE: usize = 16_384;
/// Pause before the subscription to slot offers is opened again after it failed.
const RETRY: Duration = Duration::from_secs(1);

/// Slots that workers of other processes offer to this control plane. Cheap to clone.
#[derive(Clone)]
pub struct RemoteSlots {
    table: Arc<Mutex<SlotTable>>,
    queue: mpsc::Sender<QueuedGrant>,
}

/// Keeps offers coming in. When this is dropped, no more sessions are granted to workers of other processes.
#[derive(Debug)]
pub struct ServedOffers {
    _attached: AttachedSlots,
    _stop: DropGuard,
}

impl fmt::Debug for RemoteSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSlots").finish_non_exhaustive()
    }
}

impl RemoteSlots {
    /// Listens to slot offers and attaches the slots, if the transport can carry grants. Ends when the result is
    /// dropped.
    pub fn serve(
        plane: ControlPlaneId,
        slots: &Slots,
        transport: &Arc<dyn Transport>,
        tasks: &TaskTracker,
    ) -> Option<ServedOffers> {
        transport.grant_transport()?;
        let (queue, granted) = mpsc::channel(QUEUE);
        let remote = Self { table: Arc::default(), queue };
        let stop = CancellationToken::new();
        let sender =
            GrantSender { plane, transport: Arc::clone(transport), table: Arc::clone(&remote.table) };
        let listener = listen(plane, Arc::clone(transport), Arc::clone(&remote.table));
        tasks.spawn(stop.clone().run_until_cancelled_owned(listener));
        // Ends when the queue has no more senders and is empty.
        tasks.spawn(sender.run(granted));
        Some(ServedOffers { _attached: slots.attach(Arc::new(remote)), _stop: stop.drop_guard() })
    }
}

impl SlotProvider for RemoteSlots {
    fn reserve_slot(&self, pool: &Pool, _: SessionId) -> Option<Box<dyn SlotReservation>> {
        let (worker, stamp) = self.table.lock().reserve(pool, Instant::now())?;
        Some(Box::new(RemoteReservation { slots: self.clone(), worker, stamp, assigned: false }))
    }
}

/// A reserved slot of a worker. Dropping it without an assignment frees the slot.
struct RemoteReservation {
    slots: RemoteSlots,
    worker: WorkerId,
    stamp: u64,
    assigned: bool,
}

impl SlotReservation for RemoteReservation {
    fn worker(&self) -> WorkerId {
        self.worker
    }

    fn assign(mut self: Box<Self>, grant: Box<Grant>) {
        self.assigned = true;
        let session = grant.fence.session;
        let queued = QueuedGrant { worker: self.worker, stamp: self.stamp, grant };
        if self.slots.queue.try_send(queued).is_err() {
            tracing::warn!(%session, "grant queue full; the reconciler will redeliver the grant");
        }
    }
}

impl Drop for RemoteReservation {
    fn drop(&mut self) {
        let mut table = self.slots.table.lock();
        if self.assigned { table.confirm(self.worker, Instant::now()) } else { table.cancel(self.worker) }
    }
}

/// Records slot offers of workers, forever.
async fn listen(plane: ControlPlaneId, transport: Arc<dyn Transport>, table: Arc<Mutex<SlotTable>>) {
    loop {
        if let Err(error) = receive_offers(plane, &*transport, &table).await {
            tracing::debug!(error = error.chain(), "subscribing to slot offers failed; retrying");
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn receive_offers(
    plane: ControlPlaneId,
    transport: &dyn Transport,
    table: &Mutex<SlotTable>,
) -> Result<()> {
    let Some(grant_transport) = transport.grant_transport() else { return Ok(()) };
    let mut offers = grant_transport.subscribe_offers().await?;
    while let Some(offer) = offers.next().await {
        table.lock().record_offer(&offer, plane, Instant::now());
    }
    Ok(())
}
