//! Metrics of a worker.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use remuda_domain::{Run, RunState, Timestamp, error::Result};
use remuda_store::{Claim, Committed, Grant};
use remuda_telemetry::metrics::{
    self, ByTenant, Counter, Histogram, KeyValue,
    registry::{
        CANCEL_RECEIPT, CLAIMS, QUEUE_WAIT, RUN_DURATION, RUNS_ENDED, RUNS_STARTED, WORKER_BUSY,
        WORKER_LIVES_LOST, WORKER_SLOTS, label,
    },
};

use crate::WorkerOptions;

#[derive(Debug)]
pub(crate) struct Meters {
    started: Counter<u64>,
    waited: Histogram<f64>,
    ended: ByTenant<u64>,
    duration: Histogram<f64>,
    receipts: Histogram<f64>,
    claims: Counter<u64>,
    leases_lost: Counter<u64>,
    pool: KeyValue,
    busy: Arc<AtomicU32>,
}

impl Meters {
    pub(crate) fn new(options: &WorkerOptions) -> Self {
        let pool = KeyValue::new(label::POOL, options.pool.as_str().to_owned());
        let leases_lost = metrics::counter(&WORKER_LIVES_LOST);
        // Register the metric before the first lease is lost.
        leases_lost.add(0, &[]);
        let busy = Arc::new(AtomicU32::new(0));
        let (slots, labels) = (f64::from(options.slots), [pool.clone()]);
        metrics::observe(&WORKER_SLOTS, move |gauge| gauge.observe(slots, &labels));
        let (used, labels) = (Arc::clone(&busy), [pool.clone()]);
        metrics::observe(&WORKER_BUSY, move |gauge| {
            gauge.observe(f64::from(used.load(Ordering::Relaxed)), &labels);
        });
        Self {
            started: metrics::counter(&RUNS_STARTED),
            waited: metrics::histogram(&QUEUE_WAIT),
            ended: ByTenant::new(metrics::counter(&RUNS_ENDED), metrics::labels()),
            duration: metrics::histogram(&RUN_DURATION),
            receipts: metrics::histogram(&CANCEL_RECEIPT),
            claims: metrics::counter(&CLAIMS),
            leases_lost,
            pool,
            busy,
        }
    }

    /// Counts a slot as busy until the guard is dropped.
    pub(crate) fn busy(&self) -> BusyGuard {
        self.busy.fetch_add(1, Ordering::Relaxed);
        BusyGuard(Arc::clone(&self.busy))
    }

    pub(crate) fn busy_slots(&self) -> u32 {
        self.busy.load(Ordering::Relaxed)
    }

    pub(crate) fn claimed(&self, claim: &Result<Claim>) {
        let result = match claim {
            Ok(Claim::Granted(_)) => "granted",
            Ok(Claim::Refused { .. }) => "refused",
            Ok(Claim::NothingToDo | Claim::OtherPool) => "nothing_to_do",
            Ok(Claim::Reclaimed(_)) => "taken_back",
            Err(_) => "error",
        };
        self.claims.add(1, &[KeyValue::new(label::RESULT, result)]);
    }

    /// Counts a session that was granted directly, without a claim.
    pub(crate) fn granted(&self) {
        self.claims.add(1, &[KeyValue::new(label::RESULT, "granted")]);
    }

    pub(crate) fn record_lost_lease(&self) {
        self.leases_lost.add(1, &[]);
    }

    pub(crate) fn started(&self, run: &Run) {
        self.started.add(1, &[KeyValue::new(label::KIND, run.input.kind()), self.pool.clone()]);
        if let Some(started_at) = run.started_at.filter(|_| run.attempt <= 1) {
            let waited = between(run.created_at, started_at);
            self.waited.record(waited.as_secs_f64(), std::slice::from_ref(&self.pool));
        }
    }

    /// Records a run whose end this worker committed; the store records all other ends. Both times are the
    /// database's.
    pub(crate) fn ended(&self, grant: &Grant, state: RunState, committed: &Committed) {
        let terminal = committed.events.iter().filter(|event| event.run == Some(grant.run.id));
        let terminal = terminal.into_iter().find(|event| event.body.terminal_state().is_some());
        let state = terminal.and_then(|event| event.body.terminal_state()).unwrap_or(state);
        let run = &grant.run;
        let labels =
            [KeyValue::new(label::KIND, run.input.kind()), KeyValue::new(label::STATE, state.as_str())];
        self.ended.add(1, &grant.fence.tenant, &labels);
        if let (Some(started_at), Some(event)) = (run.started_at, terminal) {
            self.duration.record(between(started_at, event.at).as_secs_f64(), &labels);
        }
    }

    /// Records how long a cancel request took to be delivered, to stop the run and to end it.
    pub(crate) fn stopped(&self, run: &Run) {
        let Some(cancel) = &run.cancel else { return };
        let times =
            [("delivered", cancel.delivered_at), ("stopped", cancel.stopped_at), ("ended", run.finished_at)];
        for (receipt, at) in times {
            if let Some(at) = at {
                let took = between(cancel.at, at);
                self.receipts.record(took.as_secs_f64(), &[KeyValue::new(label::RECEIPT, receipt)]);
            }
        }
    }
}

fn between(earlier: Timestamp, later: Timestamp) -> Duration {
    (later - earlier).to_std().unwrap_or_default()
}

/// A busy slot.
#[derive(Debug)]
pub(crate) struct BusyGuard(Arc<AtomicU32>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
