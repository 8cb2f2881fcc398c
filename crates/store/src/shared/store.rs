//! The store type: pools, coalescers and shared state. The trait implementations are in the sibling modules.

use std::{future::Future, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use remuda_domain::{
    Appended, Error, Event, Run, SessionId, TenantId, WorkerId, error::Result, event::NewEvent,
};
use remuda_telemetry::metrics::{
    self, KeyValue,
    registry::{STORE_CONNECTIONS, label},
};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::{
    dialect::{self, DbPool, Writer},
    flush, overview,
    ownership::RunnableCheck,
    runs::RunRead,
};
use crate::{
    Claim, Commit, Committed, Counts, NewRun, Options, SharedCache, SlotProvider, Submitted,
    coalesce::Coalescer,
    disk_room::DiskRoom,
    error::json,
    meters::{Meters, MetricUpdates},
    pending_counters::PendingCounters,
    row_writes::Chunk,
    rows::LockedHead,
    runnable_queue::RunnableQueue,
    shared_text::SharedText,
};

/// What every function of the store needs.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// For writes.
    pub(crate) writer: Writer,
    /// For reads.
    pub(crate) reader: DbPool,
    pub(crate) idempotency_ttl: Duration,
    pub(crate) max_pending: i64,
    pub(crate) max_lost_attempts: u32,
    pub(crate) meters: Arc<Meters>,
    /// Counters to add to the database, see [`Counts`](crate::Counts).
    pub(crate) counters: Arc<PendingCounters>,
    /// Cached snapshot of the runnable sessions, for queue positions.
    pub(crate) runnable_queue: Arc<SharedCache<RunnableQueue>>,
    /// Free slots of workers.
    pub(crate) slots: Arc<dyn SlotProvider>,
    pub(crate) disk_room: Arc<DiskRoom>,
}

impl Context {
    pub(crate) fn new(writer: DbPool, reader: DbPool, options: &Options) -> Self {
        Self {
            writer: Writer::from(writer),
            reader,
            idempotency_ttl: options.idempotency_ttl,
            max_pending: options.max_pending,
            max_lost_attempts: options.max_lost_attempts,
            meters: Arc::new(Meters::new()),
            counters: Arc::default(),
            runnable_queue: Arc::default(),
            slots: Arc::clone(&options.slots),
            disk_room: Arc::default(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ClaimRequest {
    pub(crate) tenant: TenantId,
    pub(crate) session: SessionId,
    pub(crate) worker: WorkerId,
}

/// The calls that share transactions with concurrent calls.
#[derive(Debug)]
pub(crate) struct Coalescers {
    pub(crate) submits: Coalescer<NewRun, Submitted>,
    pub(crate) claims: Coalescer<ClaimRequest, Claim>,
    pub(crate) commits: Coalescer<Commit, Committed>,
    pub(crate) run_reads: Coalescer<RunRead, Run>,
    pub(crate) runnable_checks: Coalescer<RunnableCheck, bool>,
}

/// Metrics and counters to record after a batch was committed.
#[derive(Debug, Default)]
pub(crate) struct PostCommit {
    pub(crate) metrics: MetricUpdates,
    pub(crate) counts: Counts,
}

impl PostCommit {
    pub(crate) fn apply(self, context: &Context) {
        context.meters.record(self.metrics);
        context.counters.add(self.counts);
    }
}

#[derive(Debug)]
pub(crate) struct SqlStore {
    pub(crate) context: Context,
    pub(crate) coalescers: Coalescers,
    tracker: TaskTracker,
}

impl SqlStore {
    pub(crate) fn new(context: Context) -> Self {
        let tracker = TaskTracker::new();
        observe_connections(&context);
        Self { coalescers: flush::start(&context, &tracker), context, tracker }
    }

    /// Runs a change to completion even if the caller goes away: a gRPC handler is dropped when its client disconnects,
    /// and a transaction dropped midway would have to be rolled back by the pool.
    pub(crate) fn run_to_completion<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send {
        self.run_boxed(Box::pin(change))
    }

    /// Boxed, so that the compiler generates the code of a task once and not for each kind of change.
    async fn run_boxed<T: Send + 'static>(&self, change: BoxFuture<'static, Result<T>>) -> Result<T> {
        let (done, result) = oneshot::channel();
        let task: BoxFuture<'static, ()> =
            Box::pin(async move { drop(done.send(change.await)) }.in_current_span());
        self.tracker.spawn(task);
        let done = result.await.map_err(|error| Error::internal("store task aborted").with_source(error))?;
        self.context.disk_room.observe(done)
    }

    /// Flushes the counters in the background, so that a lease renewal does not wait for it.
    pub(crate) fn flush_counters_in_background(&self) {
        let context = self.context.clone();
        self.tracker.spawn(async move { overview::flush_counters(&context).await });
    }
}

/// Exports the number of connections for the lifetime of the process.
fn observe_connections(context: &Context) {
    let writer = dialect::writer_pool(&context.writer).cloned();
    let pools: Vec<DbPool> = writer.into_iter().chain([context.reader.clone()]).collect();
    metrics::observe(&STORE_CONNECTIONS, move |connections| {
        let (mut open, mut idle) = (0, 0);
        for pool in &pools {
            open += pool.size();
            idle += u32::try_from(pool.num_idle()).unwrap_or(u32::MAX);
        }
        let state = |state| [KeyValue::new(label::STATE, state)];
        connections.observe(f64::from(idle), &state("idle"));
        connections.observe(f64::from(open.saturating_sub(idle)), &state("used"));
    });
}

/// Assigns cursors to new events and creates the row that stores them.
pub(crate) fn append(locked: &mut LockedHead, events: Vec<NewEvent>) -> Result<(Appended, Option<Chunk>)> {
    if events.is_empty() {
        return Ok((Appended::default(), None));
    }
    let head = &mut locked.head;
    let first = head.take_cursors(events.len());
    let placed: Vec<Event> =
        (first..).zip(events).map(|(cursor, event)| event.at_cursor(head.session, cursor)).collect();
    let json: Arc<str> = json(&placed)?.into();
    let chunk = Chunk {
        session_id: head.session.as_uuid(),
        last_cursor: head.last_cursor,
        chunk: SharedText(Arc::clone(&json)),
        previous: None,
        landmark: None,
    };
    Ok((Appended::stored(placed, json), Some(chunk)))
}
