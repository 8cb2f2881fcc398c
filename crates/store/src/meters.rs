//! What is measured of the store, and of what happens in it.

use std::{sync::Arc, time::Duration};

use remuda_domain::{Code, Pool, Run, RunState, TenantId, Timestamp, error::Result};
use remuda_telemetry::metrics::{
    self, ByTenant, Counter, Histogram, KeyValue, Labels,
    registry::{
        CANCEL_RECEIPT, FENCED_WRITES, RUN_DURATION, RUNS_ENDED, RUNS_SUBMITTED, STORE_BATCH_SIZE,
        STORE_FLUSH_DURATION, label,
    },
};

/// Runs that a transaction accepted, and that it ended without their worker: told once it is committed.
#[derive(Debug, Default)]
pub(crate) struct News {
    submitted: Vec<(&'static str, Pool, TenantId)>,
    ended: Vec<Ended>,
}

#[derive(Debug)]
struct Ended {
    kind: &'static str,
    state: RunState,
    tenant: TenantId,
    /// How long it took, if it had started.
    took: Option<Duration>,
    /// How long ago it was asked to stop, if it was by an earlier request.
    asked: Option<Duration>,
}

impl News {
    pub(crate) fn submitted(&mut self, kind: &'static str, pool: &Pool, tenant: TenantId) {
        self.submitted.push((kind, pool.clone(), tenant));
    }

    pub(crate) fn ended(&mut self, run: &Run, state: RunState, at: Timestamp) {
        let since = |then: Timestamp| (at - then).to_std().unwrap_or_default();
        self.ended.push(Ended {
            kind: run.input.kind(),
            state,
            tenant: run.tenant,
            took: run.started_at.map(since),
            asked: run.cancel.as_ref().map(|cancel| since(cancel.at)),
        });
    }

    pub(crate) fn append(&mut self, other: &mut Self) {
        self.submitted.append(&mut other.submitted);
        self.ended.append(&mut other.ended);
    }
}

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
        // So that the metric is there before the first write is refused.
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

    pub(crate) fn tell(&self, news: News) {
        for (kind, pool, tenant) in news.submitted {
            let labels = [KeyValue::new(label::KIND, kind), self.labels.pool(pool.as_str())];
            self.submitted.add(1, &tenant, &labels);
        }
        for Ended { kind, state, tenant, took, asked } in news.ended {
            let labels = [KeyValue::new(label::KIND, kind), KeyValue::new(label::STATE, state.as_str())];
            self.ended.add(1, &tenant, &labels);
            if let Some(took) = took {
                self.duration.record(took.as_secs_f64(), &labels);
            }
            if let Some(asked) = asked.filter(|_| state == RunState::Cancelled) {
                self.receipts.record(asked.as_secs_f64(), &[KeyValue::new(label::RECEIPT, "ended")]);
            }
        }
    }

    /// Counts a write of an owner that is one no longer.
    pub(crate) fn fenced<T>(&self, outcome: Result<T>) -> Result<T> {
        if matches!(&outcome, Err(error) if error.code() == Code::OwnershipLost) {
            self.fenced.add(1, &[]);
        }
        outcome
    }
}

/// What is measured of one coalescer.
#[derive(Debug)]
pub(crate) struct Batches {
    sizes: Histogram<f64>,
    durations: Histogram<f64>,
    operation: [KeyValue; 1],
}

impl Batches {
    pub(crate) fn new(operation: &'static str) -> Self {
        Self {
            sizes: metrics::histogram(&STORE_BATCH_SIZE),
            durations: metrics::histogram(&STORE_FLUSH_DURATION),
            operation: [KeyValue::new(label::OPERATION, operation)],
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a batch is small")]
    pub(crate) fn flushed(&self, requests: usize, took: Duration) {
        self.sizes.record(requests as f64, &self.operation);
        self.durations.record(took.as_secs_f64(), &self.operation);
    }
}
