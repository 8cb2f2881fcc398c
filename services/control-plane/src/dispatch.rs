//! Grants sessions to workers that offer room, with the commit that accepts their first runs, and sends them there.
//!
//! ```text
//!  worker ── offer: room for 12 ──► [table] ◄── seat? ── the store, in the commit that accepts a run
//!    ▲                                              │
//!    └───────── parcel: what was granted ◄──────────┘ once that is committed
//! ```
//!
//! No token is needed then, nobody has to claim, and nothing is left to be looked for. Where there is no room, tokens wake workers as ever.
//! A grant that is lost on its way is only late: the reconciler's `find_unheld` tells its owner.

mod table;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use chrono::Utc;
use remuda_domain::{
    PlaneId, Pool, SessionId, Timestamp, WorkerId,
    error::{Error, Result},
    trace::SpanId,
    worker::Signal,
};
use remuda_store::{Grant, Parcel, Seat, Seats};
use remuda_telemetry::spans::{Span, SpanKind, emit};
use remuda_trace::RunTrace;
use remuda_transport::{Carrier, Transport};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use self::table::Table;

/// Grants that may wait to be sent. Rooms are bounded, so this is for the case that nothing can be sent.
const QUEUE: usize = 16_384;
/// Grants that are sent at once.
const AT_ONCE: usize = 256;
/// When offers cannot be heard, they are listened to again after this.
const RETRY: Duration = Duration::from_secs(1);

/// What was granted to whom, on the strength of an offer with this stamp.
struct Granted {
    worker: WorkerId,
    stamp: u64,
    grant: Box<Grant>,
}

/// Who has room. Handed to the store, which asks it for seats.
pub(crate) struct Dispatch {
    me: Weak<Self>,
    table: Mutex<Table>,
    queue: mpsc::Sender<Granted>,
    /// Ends the tasks.
    _stop: DropGuard,
}

impl fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatch").finish_non_exhaustive()
    }
}

impl Dispatch {
    /// Starts to listen to offers, if the transport brings grants to workers. The tasks end when the dispatch is dropped.
    pub(crate) fn start(
        plane: PlaneId,
        tasks: &TaskTracker,
        transport: &Arc<dyn Transport>,
    ) -> Option<Arc<Self>> {
        transport.carrier()?;
        let (queue, granted) = mpsc::channel(QUEUE);
        let stop = CancellationToken::new();
        let dispatch = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            table: Mutex::default(),
            queue,
            _stop: stop.clone().drop_guard(),
        });
        let desk = Arc::downgrade(&dispatch);
        let sender = Sender { plane, transport: Arc::clone(transport), dispatch: desk.clone() };
        let listener = Listener { plane, transport: Arc::clone(transport), dispatch: desk };
        tasks.spawn(stop.run_until_cancelled_owned(listener.run()));
        tasks.spawn(sender.run(granted));
        Some(dispatch)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats for Dispatch {
    fn seat(&self, pool: &Pool, _: SessionId) -> Option<Box<dyn Seat>> {
        let dispatch = self.me.upgrade()?;
        let (worker, stamp) = self.table().reserve(pool, Instant::now())?;
        Some(Box::new(Place { dispatch, worker, stamp, taken: false }))
    }
}

/// Room for one session.
struct Place {
    dispatch: Arc<Dispatch>,
    worker: WorkerId,
    stamp: u64,
    taken: bool,
}

impl Seat for Place {
    fn worker(&self) -> WorkerId {
        self.worker
    }

    fn take(mut self: Box<Self>, grant: Box<Grant>) {
        self.taken = true;
        let session = grant.fence.session;
        let granted = Granted { worker: self.worker, stamp: self.stamp, grant };
        if self.dispatch.queue.try_send(granted).is_err() {
            tracing::warn!(%session, "a grant could not be sent; its worker will be told");
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.dispatch.table();
        if self.taken { table.grant(self.worker, Instant::now()) } else { table.give_back(self.worker) }
    }
}

/// Hears what workers offer.
struct Listener {
    plane: PlaneId,
    transport: Arc<dyn Transport>,
    dispatch: Weak<Dispatch>,
}

impl Listener {
    async fn run(self) {
        loop {
            if let Err(error) = self.listen().await {
                tracing::debug!(error = error.chain(), "offers of workers cannot be heard at the moment");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn listen(&self) -> Result<()> {
        let Some(carrier) = self.transport.carrier() else { return Ok(()) };
        let mut offers = carrier.subscribe_offers().await?;
        while let Some(offer) = offers.next().await {
            let Some(dispatch) = self.dispatch.upgrade() else { return Ok(()) };
            dispatch.table().offered(&offer, self.plane, Instant::now());
        }
        Ok(())
    }
}

/// Sends what was granted, as much at once as there is.
struct Sender {
    plane: PlaneId,
    transport: Arc<dyn Transport>,
    dispatch: Weak<Dispatch>,
}

impl Sender {
    async fn run(self, mut granted: mpsc::Receiver<Granted>) {
        let mut batch = Vec::with_capacity(AT_ONCE);
        while granted.recv_many(&mut batch, AT_ONCE).await > 0 {
            // The oldest stamp of each parcel: a grant must not look younger than it is.
            let mut by_worker: HashMap<WorkerId, (u64, Vec<Grant>)> = HashMap::new();
            for Granted { worker, stamp, grant } in batch.drain(..) {
                let (oldest, grants) = by_worker.entry(worker).or_insert((stamp, Vec::new()));
                *oldest = stamp.min(*oldest);
                grants.push(*grant);
            }
            let Some(carrier) = self.transport.carrier() else { return };
            for (worker, (stamp, grants)) in by_worker {
                self.send(carrier, worker, stamp, grants).await;
            }
        }
    }

    async fn send(&self, carrier: &dyn Carrier, worker: WorkerId, stamp: u64, grants: Vec<Grant>) {
        let limit = carrier.max_parcel();
        let mut parts = vec![grants];
        while let Some(mut grants) = parts.pop() {
            let Some(dispatch) = self.dispatch.upgrade() else { return };
            let (count, begun) = (grants.len(), Utc::now());
            let sent = dispatch.table().sent_to(worker) + count as u64;
            let parcel = Parcel { from: self.plane, stamp, sent, grants };
            let sending = match serde_json::to_vec(&parcel) {
                Ok(bytes) if bytes.len() <= limit => carrier.send_parcel(worker, bytes.into()).await,
                Ok(_) if count > 1 => {
                    grants = parcel.grants;
                    parts.push(grants.split_off(count / 2));
                    parts.push(grants);
                    continue;
                }
                Ok(_) => self.send_word(worker, &parcel).await,
                Err(error) => Err(Error::internal("cannot write grants").with_source(error)),
            };
            dispatch.table().sent(worker, count as u64);
            tell_traces(&parcel, begun, sending.as_ref().err());
            if let Err(error) = sending {
                tracing::warn!(%worker, count, error = error.chain(), "grants could not be sent; their worker will be told");
            }
        }
    }

    /// Too much for one message: the worker is told what is its own, and asks the store.
    async fn send_word(&self, worker: WorkerId, parcel: &Parcel) -> Result<()> {
        for grant in &parcel.grants {
            let signal = Signal::Yours { tenant: grant.fence.tenant, session: grant.fence.session };
            self.transport.send_signal(worker, &signal).await?;
        }
        Ok(())
    }
}

/// Tells of what was sent, as far as traces of its runs are collected.
fn tell_traces(parcel: &Parcel, begun: Timestamp, failure: Option<&Error>) {
    for trace in parcel.grants.iter().map(|grant| RunTrace::of(&grant.run)).filter(RunTrace::is_collected) {
        let span = Span::below(trace.run(), SpanId::random(), "send grant", (begun, Utc::now()));
        emit(span.kind(SpanKind::Producer).failed(failure.map(ToString::to_string)));
    }
}
