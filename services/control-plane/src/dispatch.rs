//! The dispatcher: assigns sessions to workers with free slots in the transaction that accepts their first runs, and sends
//! the grants.
//!
//! ```text
//!  worker ── slot offer: 12 slots ──► [slot table] ◄── reserve_slot ── the store, in the submit transaction
//!    ▲                                                      │
//!    └──────────────── grant batch ◄────────────────────────┘ after the commit
//! ```
//!
//! Such a session needs no token and no claim. If no slot is free, a token wakes a worker instead. A lost grant is only
//! delayed: the reconciler task `redeliver_lost_grants` signals the owner.

mod slot_table;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use chrono::Utc;
use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{
    ControlPlaneId, Pool, SessionId, Timestamp, WorkerId,
    error::{Error, Result},
    trace::SpanId,
    worker::Signal,
};
use remuda_store::{Grant, GrantBatch, SlotProvider, SlotReservation};
use remuda_telemetry::spans::{Span, SpanKind, emit};
use remuda_trace::RunTrace;
use remuda_transport::{GrantTransport, Transport};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use self::slot_table::SlotTable;

/// Grants that may wait to be sent. Offered slots are bounded, so the queue only fills while the transport is down.
const QUEUE: usize = 16_384;
/// Grants that are taken from the queue together.
const MAX_BATCH: usize = 256;
/// Pause before the subscription to slot offers is opened again after it failed.
const RETRY: Duration = Duration::from_secs(1);

/// A committed grant that waits to be sent.
struct QueuedGrant {
    worker: WorkerId,
    /// Stamp of the slot offer that the grant is based on.
    stamp: u64,
    grant: Box<Grant>,
}

/// Provides the store with free slots of workers.
pub(crate) struct Dispatch {
    me: Weak<Self>,
    table: Mutex<SlotTable>,
    queue: mpsc::Sender<QueuedGrant>,
    /// Ends the tasks.
    _stop: DropGuard,
}

impl fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatch").finish_non_exhaustive()
    }
}

impl Dispatch {
    /// Subscribes to slot offers, if the transport can carry grants. The tasks end when the dispatcher is dropped.
    pub(crate) fn start(
        plane: ControlPlaneId,
        tasks: &TaskTracker,
        transport: &Arc<dyn Transport>,
    ) -> Option<Arc<Self>> {
        transport.grant_transport()?;
        let (queue, granted) = mpsc::channel(QUEUE);
        let stop = CancellationToken::new();
        let dispatch = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            table: Mutex::default(),
            queue,
            _stop: stop.clone().drop_guard(),
        });
        let weak = Arc::downgrade(&dispatch);
        let sender = GrantSender { plane, transport: Arc::clone(transport), dispatch: weak.clone() };
        let listener = OfferListener { plane, transport: Arc::clone(transport), dispatch: weak };
        tasks.spawn(stop.run_until_cancelled_owned(listener.run()));
        tasks.spawn(sender.run(granted));
        Some(dispatch)
    }

    fn table(&self) -> MutexGuard<'_, SlotTable> {
        self.table.lock()
    }
}

impl SlotProvider for Dispatch {
    fn reserve_slot(&self, pool: &Pool, _: SessionId) -> Option<Box<dyn SlotReservation>> {
        let dispatch = self.me.upgrade()?;
        let (worker, stamp) = self.table().reserve(pool, Instant::now())?;
        Some(Box::new(WorkerReservation { dispatch, worker, stamp, assigned: false }))
    }
}

/// A reserved slot of a worker. Dropping it without an assignment frees the slot.
struct WorkerReservation {
    dispatch: Arc<Dispatch>,
    worker: WorkerId,
    stamp: u64,
    assigned: bool,
}

impl SlotReservation for WorkerReservation {
    fn worker(&self) -> WorkerId {
        self.worker
    }

    fn assign(mut self: Box<Self>, grant: Box<Grant>) {
        self.assigned = true;
        let session = grant.fence.session;
        let queued = QueuedGrant { worker: self.worker, stamp: self.stamp, grant };
        if self.dispatch.queue.try_send(queued).is_err() {
            tracing::warn!(%session, "grant queue full; the reconciler will redeliver the grant");
        }
    }
}

impl Drop for WorkerReservation {
    fn drop(&mut self) {
        let mut table = self.dispatch.table();
        if self.assigned { table.confirm(self.worker, Instant::now()) } else { table.cancel(self.worker) }
    }
}

/// Receives slot offers of workers.
struct OfferListener {
    plane: ControlPlaneId,
    transport: Arc<dyn Transport>,
    dispatch: Weak<Dispatch>,
}

impl OfferListener {
    async fn run(self) {
        loop {
            if let Err(error) = self.listen().await {
                tracing::debug!(error = error.chain(), "subscribing to slot offers failed; retrying");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn listen(&self) -> Result<()> {
        let Some(grant_transport) = self.transport.grant_transport() else { return Ok(()) };
        let mut offers = grant_transport.subscribe_offers().await?;
        while let Some(offer) = offers.next().await {
            let Some(dispatch) = self.dispatch.upgrade() else { return Ok(()) };
            dispatch.table().record_offer(&offer, self.plane, Instant::now());
        }
        Ok(())
    }
}

/// Sends queued grants in batches, one per worker.
struct GrantSender {
    plane: ControlPlaneId,
    transport: Arc<dyn Transport>,
    dispatch: Weak<Dispatch>,
}

impl GrantSender {
    async fn run(self, mut granted: mpsc::Receiver<QueuedGrant>) {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        while granted.recv_many(&mut batch, MAX_BATCH).await > 0 {
            // The oldest stamp of each batch: a grant must not seem younger than it is.
            let mut by_worker: HashMap<WorkerId, (u64, Vec<Grant>)> = HashMap::new();
            for QueuedGrant { worker, stamp, grant } in batch.drain(..) {
                let (oldest, grants) = by_worker.entry(worker).or_insert((stamp, Vec::new()));
                *oldest = stamp.min(*oldest);
                grants.push(*grant);
            }
            let Some(grant_transport) = self.transport.grant_transport() else { return };
            for (worker, (stamp, grants)) in by_worker {
                self.send(grant_transport, worker, stamp, grants).await;
            }
        }
    }

    async fn send(
        &self,
        grant_transport: &dyn GrantTransport,
        worker: WorkerId,
        stamp: u64,
        grants: Vec<Grant>,
    ) {
        let limit = grant_transport.max_grant_bytes();
        let mut parts = vec![grants];
        while let Some(mut grants) = parts.pop() {
            let Some(dispatch) = self.dispatch.upgrade() else { return };
            let (count, begun) = (grants.len(), Utc::now());
            let sent = dispatch.table().sent_count(worker) + count as u64;
            let batch = GrantBatch { from: self.plane, stamp, sent, grants };
            let sending = match serde_json::to_vec(&batch) {
                Ok(bytes) if bytes.len() <= limit => grant_transport.send_grants(worker, bytes.into()).await,
                Ok(_) if count > 1 => {
                    grants = batch.grants;
                    parts.push(grants.split_off(count / 2));
                    parts.push(grants);
                    continue;
                }
                Ok(_) => self.send_reclaim_signals(worker, &batch).await,
                Err(error) => Err(Error::internal("cannot write grants").with_source(error)),
            };
            dispatch.table().record_sent(worker, count as u64);
            emit_spans(&batch, begun, sending.as_ref().err());
            if let Err(error) = sending {
                tracing::warn!(%worker, count, error = error.chain(),
                    "sending grants failed; the reconciler will redeliver them");
            }
        }
    }

    /// Signals the sessions of grants that are too large for one message: the worker then claims them from the store.
    async fn send_reclaim_signals(&self, worker: WorkerId, batch: &GrantBatch) -> Result<()> {
        for grant in &batch.grants {
            let signal = Signal::ReclaimSession { tenant: grant.fence.tenant, session: grant.fence.session };
            self.transport.send_signal(worker, &signal).await?;
        }
        Ok(())
    }
}

/// Emits a span for each sent grant whose run is traced.
fn emit_spans(batch: &GrantBatch, begun: Timestamp, failure: Option<&Error>) {
    for trace in batch.grants.iter().map(|grant| RunTrace::of(&grant.run)).filter(RunTrace::is_collected) {
        let span = Span::below(trace.run(), SpanId::random(), "send grant", (begun, Utc::now()));
        emit(span.kind(SpanKind::Producer).failed(failure.map(ToString::to_string)));
    }
}
