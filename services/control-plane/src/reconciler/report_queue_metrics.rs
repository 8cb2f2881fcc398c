//! Reports to metrics how many sessions and runs are waiting, running and parked in the whole installation.
//!
//! Only the leading process reports them: sums over all processes would otherwise count everything several times.

use std::{
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{
    error::Result,
    execution::{BackendKind, SandboxState},
    run::ParkReason,
};
use remuda_store::{PoolDepth, Store};
use remuda_telemetry::metrics::{
    self, AsyncInstrument, KeyValue, Labels,
    registry::{
        Metric, QUEUE_OLDEST_AGE, RUNS_PARKED, RUNS_QUEUED, SANDBOXES, SESSIONS_RUNNABLE, SESSIONS_RUNNING,
        label,
    },
};
use tokio::time::Instant;

use super::{
    Term,
    background_task::{BackgroundTask, Round},
};

/// Minimum interval between reads. Metrics are hardly scraped more often.
const MIN_PACE: Duration = Duration::from_secs(5);
/// A slow read, as with a large backlog, is followed by a pause of this many times its duration, so that reads do not
/// become a load of their own.
const PAUSE_FACTOR: u32 = 20;
/// A snapshot is reported for this many paces: a process that can no longer read must not report old numbers.
const SNAPSHOT_PACES: u32 = 3;

pub(super) struct ReportQueueMetrics {
    store: Arc<dyn Store>,
    gauges: Arc<QueueGauges>,
    labels: Arc<Labels>,
    min_pace: Duration,
    pace: Duration,
}

impl ReportQueueMetrics {
    pub(super) fn new(store: Arc<dyn Store>, term: Term, interval: Duration) -> Self {
        let (min_pace, gauges) = (interval.max(MIN_PACE), QueueGauges::register(term));
        Self { store, gauges, labels: metrics::labels(), min_pace, pace: min_pace }
    }

    async fn read(&self) -> Result<QueueSnapshot> {
        let (pools, parked, sandboxes) = tokio::try_join!(
            self.store.queue_depths(),
            self.store.count_parked(),
            self.store.count_sandboxes()
        )?;
        Ok(QueueSnapshot::new(&pools, &parked, &sandboxes, &self.labels))
    }
}

#[async_trait]
impl BackgroundTask for ReportQueueMetrics {
    fn name(&self) -> &'static str {
        "tell_queues"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let begun = Instant::now();
        let snapshot = self.read().await?;
        self.pace = self.min_pace.max(begun.elapsed() * PAUSE_FACTOR);
        self.gauges.set(snapshot, Instant::now() + self.pace * SNAPSHOT_PACES);
        Ok(Round::default())
    }
}

/// Gauges that report the last snapshot until it expires.
#[derive(Debug)]
struct QueueGauges {
    term: Term,
    snapshot: Mutex<Option<(QueueSnapshot, Instant)>>,
}

impl QueueGauges {
    /// Registers the gauges. They report for as long as the returned value exists.
    fn register(term: Term) -> Arc<Self> {
        let gauges = Arc::new(Self { term, snapshot: Mutex::default() });
        let pools: [(&Metric, PoolValue); 4] = [
            (&SESSIONS_RUNNABLE, |pool| pool.runnable),
            (&SESSIONS_RUNNING, |pool| pool.running),
            (&RUNS_QUEUED, |pool| pool.queued),
            (&QUEUE_OLDEST_AGE, |pool| pool.oldest),
        ];
        for (metric, value) in pools {
            observe(metric, &gauges, move |snapshot, gauge| {
                for pool in &snapshot.pools {
                    gauge.observe(value(pool), std::slice::from_ref(&pool.name));
                }
            });
        }
        observe(&RUNS_PARKED, &gauges, |snapshot, gauge| {
            snapshot.parked.iter().for_each(|(labels, count)| gauge.observe(*count, labels));
        });
        observe(&SANDBOXES, &gauges, |snapshot, gauge| {
            snapshot.sandboxes.iter().for_each(|(labels, count)| gauge.observe(*count, labels));
        });
        gauges
    }

    fn set(&self, snapshot: QueueSnapshot, until: Instant) {
        *self.lock() = Some((snapshot, until));
    }

    /// Reports the snapshot, or drops it if it is too old or this process no longer leads.
    fn report(
        &self,
        gauge: &dyn AsyncInstrument<f64>,
        observe: impl Fn(&QueueSnapshot, &dyn AsyncInstrument<f64>),
    ) {
        let mut snapshot = self.lock();
        match &*snapshot {
            Some((snapshot, until)) if self.term.is_held() && Instant::now() < *until => {
                observe(snapshot, gauge);
            }
            _ => *snapshot = None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(QueueSnapshot, Instant)>> {
        self.snapshot.lock()
    }
}

fn observe(
    metric: &Metric,
    gauges: &Arc<QueueGauges>,
    observe: impl Fn(&QueueSnapshot, &dyn AsyncInstrument<f64>) + Send + Sync + 'static,
) {
    let gauges: Weak<QueueGauges> = Arc::downgrade(gauges);
    metrics::observe(metric, move |gauge| {
        if let Some(gauges) = gauges.upgrade() {
            gauges.report(gauge, &observe);
        }
    });
}

/// The values to report, read at one time.
#[derive(Debug)]
struct QueueSnapshot {
    pools: Vec<PoolValues>,
    parked: Vec<([KeyValue; 1], f64)>,
    sandboxes: Vec<([KeyValue; 2], f64)>,
}

/// Selects one value of a pool.
type PoolValue = fn(&PoolValues) -> f64;

#[derive(Debug, PartialEq)]
struct PoolValues {
    name: KeyValue,
    runnable: f64,
    running: f64,
    queued: f64,
    /// In seconds.
    oldest: f64,
}

impl QueueSnapshot {
    fn new(
        depths: &[PoolDepth],
        parked: &[(ParkReason, u64)],
        sandboxes: &[(BackendKind, SandboxState, u64)],
        labels: &Labels,
    ) -> Self {
        let now = SystemTime::now();
        let mut pools: Vec<PoolValues> = Vec::new();
        for depth in depths {
            let age = depth.oldest_runnable_at.and_then(|at| now.duration_since(at.into()).ok());
            let pool = PoolValues {
                name: labels.pool(depth.pool.as_str()),
                runnable: number(depth.runnable_sessions),
                running: number(depth.running_sessions),
                queued: number(depth.queued_runs),
                oldest: age.unwrap_or_default().as_secs_f64(),
            };
            // Pools beyond the label limit share one label: add them up.
            match pools.iter_mut().find(|it| it.name == pool.name) {
                Some(other) => other.add(&pool),
                None => pools.push(pool),
            }
        }
        let parked = ParkReason::ALL.map(|reason| {
            let count = parked.iter().find(|(it, _)| *it == reason).map_or(0, |(_, count)| *count);
            ([KeyValue::new(label::REASON, reason.as_str())], number(count))
        });
        let recorded = BackendKind::ALL.into_iter().filter(|kind| kind.has_instances());
        let known = recorded.flat_map(|backend| SandboxState::ALL.map(|state| (backend, state)));
        let sandboxes = known.map(|(backend, state)| {
            let found = sandboxes.iter().find(|(kind, it, _)| (*kind, *it) == (backend, state));
            let labels = [
                KeyValue::new(label::BACKEND, backend.as_str()),
                KeyValue::new(label::STATE, state.as_str()),
            ];
            (labels, number(found.map_or(0, |(_, _, count)| *count)))
        });
        Self { pools, parked: parked.into(), sandboxes: sandboxes.collect() }
    }
}

impl PoolValues {
    fn add(&mut self, other: &Self) {
        self.runnable += other.runnable;
        self.running += other.running;
        self.queued += other.queued;
        self.oldest = self.oldest.max(other.oldest);
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact up to more rows than a table holds")]
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use remuda_domain::Timestamp;

    use super::*;

    fn depth(pool: &str, runnable: u64, waited: Option<Duration>) -> PoolDepth {
        PoolDepth {
            pool: pool.parse().unwrap(),
            runnable_sessions: runnable,
            running_sessions: 1,
            queued_runs: 2 * runnable,
            oldest_runnable_at: waited.map(|waited| Timestamp::from(SystemTime::now() - waited)),
        }
    }

    #[test]
    fn pools_beyond_the_label_limit_are_added_up() {
        let minute = Duration::from_secs(60);
        let all = [depth("a", 1, None), depth("b", 2, Some(minute)), depth("c", 3, Some(minute / 2))];
        let snapshot = QueueSnapshot::new(&all, &[], &[], &Labels::new(false, 1));
        let [a, other] = snapshot.pools.as_slice() else { panic!("{snapshot:?}") };
        assert_eq!((a.name.value.to_string(), a.runnable, a.oldest), ("a".to_owned(), 1.0, 0.0));
        assert_eq!(other.name.value.to_string(), "other");
        assert_eq!((other.runnable, other.running, other.queued), (5.0, 2.0, 10.0));
        assert!((60.0..90.0).contains(&other.oldest), "{other:?}");
    }

    #[test]
    fn zero_counts_are_reported_too() {
        let parked = [(ParkReason::Approval, 3)];
        let sandboxes = [(BackendKind::Docker, SandboxState::Paused, 2)];
        let snapshot = QueueSnapshot::new(&[], &parked, &sandboxes, &Labels::default());
        let pair = |label: &KeyValue, count: &f64| (label.value.to_string(), *count);
        let parked: Vec<_> = snapshot.parked.iter().map(|([reason], count)| pair(reason, count)).collect();
        assert_eq!(parked.len(), ParkReason::ALL.len());
        assert!(
            parked.contains(&("approval".to_owned(), 3.0)) && parked.contains(&("budget".to_owned(), 0.0))
        );
        let sandboxes: Vec<_> =
            snapshot.sandboxes.iter().map(|([_, state], count)| pair(state, count)).collect();
        assert!(
            sandboxes.contains(&("paused".to_owned(), 2.0))
                && sandboxes.contains(&("active".to_owned(), 0.0))
        );
    }
}
