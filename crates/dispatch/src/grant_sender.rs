//! Sends committed grants to workers of other processes, in batches.

use std::{collections::HashMap, sync::Arc};

use chrono::Utc;
use parking_lot::Mutex;
use remuda_domain::{
    ControlPlaneId, Run, Timestamp, WorkerId,
    error::{Error, Result},
    trace::SpanId,
    worker::Signal,
};
use remuda_store::Grant;
use remuda_telemetry::spans::{Span, SpanKind, emit};
use remuda_trace::RunTrace;
use remuda_transport::{GrantBatch, GrantRecord, GrantTransport, Transport};
use tokio::sync::mpsc;

use crate::slot_table::SlotTable;

/// Grants that are taken from the queue together.
const MAX_BATCH: usize = 256;

/// A committed grant that waits to be sent.
pub(crate) struct QueuedGrant {
    pub(crate) worker: WorkerId,
    /// Stamp of the slot offer that the grant is based on.
    pub(crate) stamp: u64,
    pub(crate) grant: Box<Grant>,
}

pub(crate) struct GrantSender {
    pub(crate) plane: ControlPlaneId,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) table: Arc<Mutex<SlotTable>>,
}

/// Grants for one worker, in the order in which they were committed.
struct Outgoing {
    /// The oldest stamp: a grant must not seem younger than it is.
    stamp: u64,
    grants: Vec<Grant>,
}

impl GrantSender {
    /// Sends grants until the queue has no more senders.
    pub(crate) async fn run(self, mut granted: mpsc::Receiver<QueuedGrant>) {
        let mut queued = Vec::with_capacity(MAX_BATCH);
        while granted.recv_many(&mut queued, MAX_BATCH).await > 0 {
            let Some(grant_transport) = self.transport.grant_transport() else { return };
            let mut by_worker: HashMap<WorkerId, Outgoing> = HashMap::new();
            for QueuedGrant { worker, stamp, grant } in queued.drain(..) {
                let outgoing =
                    by_worker.entry(worker).or_insert_with(|| Outgoing { stamp, grants: Vec::new() });
                outgoing.stamp = stamp.min(outgoing.stamp);
                outgoing.grants.push(*grant);
            }
            for (worker, outgoing) in by_worker {
                self.send(grant_transport, worker, outgoing).await;
            }
        }
    }

    async fn send(&self, grant_transport: &dyn GrantTransport, worker: WorkerId, outgoing: Outgoing) {
        let Outgoing { stamp, grants } = outgoing;
        let limit = grant_transport.max_grant_bytes().saturating_sub(GrantBatch::OVERHEAD);
        let mut grants = grants.into_iter().map(|grant| (record(&grant), grant.run)).peekable();
        while grants.peek().is_some() {
            let (mut records, mut runs, mut size) = (Vec::new(), Vec::new(), 0);
            while let Some((record, run)) =
                grants.next_if(|(record, _)| size == 0 || size + record.encoded_len() <= limit)
            {
                size += record.encoded_len();
                records.push(record);
                runs.push(run);
            }
            let begun = Utc::now();
            let count = records.len() as u64;
            let sent = self.table.lock().count_sent(worker, count);
            let batch = GrantBatch { from: self.plane, stamp, sent, grants: records };
            let sending = match size <= limit {
                true => grant_transport.send_grants(worker, &batch).await,
                false => self.send_reclaim_signals(worker, &batch).await,
            };
            emit_spans(&runs, begun, sending.as_ref().err());
            if let Err(error) = sending {
                tracing::warn!(%worker, count, error = error.chain(),
                    "sending grants failed; the reconciler will redeliver them");
            }
        }
    }

    /// Signals the session of a grant that is too large for a message: the worker then claims it from the store.
    async fn send_reclaim_signals(&self, worker: WorkerId, batch: &GrantBatch) -> Result<()> {
        for GrantRecord { tenant, session, .. } in &batch.grants {
            let signal = Signal::ReclaimSession { tenant: *tenant, session: *session };
            self.transport.send_signal(worker, &signal).await?;
        }
        Ok(())
    }
}

fn record(grant: &Grant) -> GrantRecord {
    let fence = grant.fence;
    // A grant can always be serialized as JSON. The worker claims the session of an empty one.
    let body = serde_json::to_vec(grant).unwrap_or_default();
    GrantRecord { tenant: fence.tenant, session: fence.session, epoch: fence.epoch, body: Some(body.into()) }
}

/// Emits a span for each sent grant whose run is traced.
fn emit_spans(runs: &[Run], begun: Timestamp, failure: Option<&Error>) {
    for trace in runs.iter().map(RunTrace::of).filter(RunTrace::is_collected) {
        let span = Span::below(trace.run(), SpanId::random(), "send grant", (begun, Utc::now()));
        emit(span.kind(SpanKind::Producer).failed(failure.map(ToString::to_string)));
    }
}
