//! The store itself: pools, coalescers, and the trait's calls handed to the functions that do them.

use std::{future::Future, sync::Arc, time::Duration};

use remuda_domain::{
    Appended, Error, Event, Run, SessionId, TenantId, WorkerId, error::Result, event::NewEvent,
};
use remuda_telemetry::metrics::{
    self, KeyValue,
    registry::{STORE_CONNECTIONS, label},
};
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::{
    dialect::{self, DbPool, Writer},
    flush, overview,
    ownership::SessionLook,
    runs::RunLook,
};
use crate::{
    Claim, Commit, Committed, Counts, Kept, NewRun, Options, Submitted,
    coalesce::Coalescer,
    error::json,
    line::Line,
    meters::{Meters, News},
    post::Post,
    rows::LockedHead,
    tally::Tally,
    written::Chunk,
};

/// What every function of the store needs.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// For whoever writes.
    pub(crate) writer: Writer,
    /// For everything else.
    pub(crate) reader: DbPool,
    pub(crate) idempotency_ttl: Duration,
    pub(crate) max_pending: i64,
    pub(crate) max_lost_attempts: u32,
    pub(crate) meters: Arc<Meters>,
    /// What happened through this store, for [`Counts`](crate::Counts).
    pub(crate) tally: Arc<Tally>,
    /// Who waits for a worker, for all who ask for a place.
    pub(crate) line: Arc<Kept<Line>>,
    /// Who stands by.
    pub(crate) post: Post,
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
            tally: Arc::default(),
            line: Arc::default(),
            post: Post::default(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ClaimRequest {
    pub(crate) tenant: TenantId,
    pub(crate) session: SessionId,
    pub(crate) worker: WorkerId,
}

/// Calls that share transactions with others.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) submits: Coalescer<NewRun, Submitted>,
    pub(crate) claims: Coalescer<ClaimRequest, Claim>,
    pub(crate) commits: Coalescer<Commit, Committed>,
    pub(crate) run_looks: Coalescer<RunLook, Run>,
    pub(crate) session_looks: Coalescer<SessionLook, bool>,
}

/// What is to be told of a batch once it is committed.
#[derive(Debug, Default)]
pub(crate) struct Aftermath {
    pub(crate) news: News,
    pub(crate) counts: Counts,
}

impl Aftermath {
    pub(crate) fn tell(self, context: &Context) {
        context.meters.tell(self.news);
        context.tally.add(self.counts);
    }
}

#[derive(Debug)]
pub(crate) struct SqlStore {
    pub(crate) context: Context,
    pub(crate) lanes: Lanes,
    tracker: TaskTracker,
}

impl SqlStore {
    pub(crate) fn new(context: Context) -> Self {
        let tracker = TaskTracker::new();
        observe_connections(&context);
        Self { lanes: flush::start(&context, &tracker), context, tracker }
    }

    /// Runs a change to its end even if the caller goes away: a gRPC handler is dropped when its client hangs up, and a
    /// transaction dropped midway would be left to the pool.
    pub(crate) async fn to_the_end<T, F>(&self, change: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let task = self.tracker.spawn(change.in_current_span());
        task.await.map_err(|error| Error::internal("a change was cut short").with_source(error))?
    }

    /// Writes down what was counted, without anybody waiting for it: a lease must not end over it.
    pub(crate) fn count_meanwhile(&self) {
        let context = self.context.clone();
        self.tracker.spawn(async move { overview::write_tally(&context).await });
    }
}

/// Tells how many connections there are, for as long as the process lives.
fn observe_connections(context: &Context) {
    let writer = dialect::own_pool(&context.writer).cloned();
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

/// Gives new events their cursors and makes the row that stores them.
pub(crate) fn append(locked: &mut LockedHead, events: Vec<NewEvent>) -> Result<(Appended, Option<Chunk>)> {
    if events.is_empty() {
        return Ok((Appended::default(), None));
    }
    let head = &mut locked.head;
    let first = head.take_cursors(events.len());
    let placed: Vec<Event> =
        (first..).zip(events).map(|(cursor, event)| event.at_cursor(head.session, cursor)).collect();
    let json: Arc<str> = json(&placed)?.into();
    let chunk =
        Chunk { session: head.session.as_uuid(), last_cursor: head.last_cursor, json: Arc::clone(&json) };
    Ok((Appended::stored(placed, json), Some(chunk)))
}
