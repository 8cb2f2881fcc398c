//! Metrics of the store: runs, fenced writes, batch sizes and flush durations.

use std::{sync::Arc, time::Duration};

use remuda_domain::{Code, Pool, Run, RunState, TenantId, Timestamp, error::Result};
use remuda_telemetry::metrics::{
    self, ByTenant, Counter, Histogram, KeyValue, Labels,
    registry::{
        CANCEL_RECEIPT, FENCED_WRITES, RUN_DURATION, RUNS_ENDED, RUNS_SUBMITTED, STORE_BATCH_SIZE,
        STORE_FLUSH_DURATION, label,
    },
};

/// Metric updates of one transaction, recorded after its commit: accepted runs, and runs that ended without their
/// worker.
#[derive(Debug, Default)]
pub(crate) struct MetricUpdates {
    submitted: Vec<(&'static str, Pool, TenantId)>,
    ended: Vec<EndedRunMetric>,
}

#[derive(Debug)]
struct EndedRunMetric {
    kind: &'static str,
    state: RunState,
    tenant: TenantId,
    /// Time since its start, if it had started.
    elapsed: Option<Duration>,
    /// Time since its cancellation was requested, if an earlier request did so.
    since_cancel: Option<Duration>,
}

impl MetricUpdates {
    pub(crate) fn submitted(&mut self, kind: &'static str, pool: &Pool, tenant: TenantId) {
        self.submitted.push((kind, pool.clone(), tenant));
    }

    pub(crate) fn ended(&mut self, run: &Run, state: RunState, at: Timestamp) {
        let since = |then: Timestamp| (at - then).to_std().unwrap_or_default();
        self.ended.push(EndedRunMetric {
            kind: run.input.kind(),
            state,
            tenant: run.tenant,
            elapsed: run.started_at.map(since),
            since_cancel: run.cancel.as_ref().map(|cancel| since(cancel.at)),
        });
    }
}

/// The instruments of one store.
#[derive(Debug)]
pub(crate) struct Meters {
    labels: Arc<Labels>,
    submitted: ByTenant<u64>,
    ended: ByTenant<u64>,
    duration: Histogram<f64>,
    receipts: Histogram<f64>,
    fenced: Counter<u64>,
}

impl Meters {
    pub(crate) fn new() -> Self {
        let (labels, fenced) = (metrics::labels(), metrics::counter(&FENCED_WRITES));
        // Exports the metric before the first fenced write.
        fenced.add(0, &[]);
        Self {
            submitted: ByTenant::new(metrics::counter(&RUNS_SUBMITTED), Arc::clone(&labels)),
            ended: ByTenant::new(metrics::counter(&RUNS_ENDED), Arc::clone(&labels)),
            duration: metrics::histogram(&RUN_DURATION),
            receipts: metrics::histogram(&CANCEL_RECEIPT),
            fenced,
            labels,
        }
    }

    pub(crate) fn record(&self, updates: MetricUpdates) {
        for (kind, pool, tenant) in updates.submitted {
            let labels = [KeyValue::new(label::KIND, kind), self.labels.pool(pool.as_str())];
            self.submitted.add(1, &tenant, &labels);
        }
        for EndedRunMetric { kind, state, tenant, elapsed, since_cancel } in updates.ended {
            let labels = [KeyValue::new(label::KIND, kind), KeyValue::new(label::STATE, state.as_str())];
            self.ended.add(1, &tenant, &labels);
            if let Some(elapsed) = elapsed {
                self.duration.record(elapsed.as_secs_f64(), &labels);
            }
            if let Some(since_cancel) = since_cancel.filter(|_| state == RunState::Cancelled) {
                self.receipts.record(since_cancel.as_secs_f64(), &[KeyValue::new(label::RECEIPT, "ended")]);
            }
        }
    }

    /// Counts a write that was rejected because its ownership was lost.
    pub(crate) fn count_fenced<T>(&self, outcome: Result<T>) -> Result<T> {
        if matches!(&outcome, Err(error) if error.code() == Code::OwnershipLost) {
            self.fenced.add(1, &[]);
        }
        outcome
    }
}

/// Batch sizes and flush durations of one coalescer.
#[derive(Debug)]
pub(crate) struct FlushMeter {
    sizes: Histogram<f64>,
    durations: Histogram<f64>,
    operation: [KeyValue; 1],
}

impl FlushMeter {
    pub(crate) fn new(operation: &'static str) -> Self {
        Self {
            sizes: metrics::histogram(&STORE_BATCH_SIZE),
            durations: metrics::histogram(&STORE_FLUSH_DURATION),
            operation: [KeyValue::new(label::OPERATION, operation)],
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a batch is small")]
    pub(crate) fn flushed(&self, requests: usize, elapsed: Duration) {
        self.sizes.record(requests as f64, &self.operation);
        self.durations.record(elapsed.as_secs_f64(), &self.operation);
    }
}
