//! Tells metrics what is waiting, running and parked in the whole installation.
//!
//! One process tells it, the one that leads: whoever adds up what processes tell would count everything several times otherwise.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
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
    task::{BackgroundTask, Round},
};

/// Looks are never closer than this, and nobody looks at graphs more often.
const PACE: Duration = Duration::from_secs(5);
/// A look that takes long, because very much is waiting, is followed by a pause so many times as long: it may not become a load of its own.
const PAUSES: u32 = 20;
/// What was seen is told for so many paces: whoever cannot look any more knows nothing.
const LASTS: u32 = 3;

pub(super) struct TellQueues {
    store: Arc<dyn Store>,
    standing: Arc<Standing>,
    labels: Arc<Labels>,
    least: Duration,
    pace: Duration,
}

impl TellQueues {
    pub(super) fn new(store: Arc<dyn Store>, term: Term, interval: Duration) -> Self {
        let (least, standing) = (interval.max(PACE), Standing::observed(term));
        Self { store, standing, labels: metrics::labels(), least, pace: least }
    }

    async fn look(&self) -> Result<Seen> {
        let (pools, parked, sandboxes) = tokio::try_join!(
            self.store.queue_depths(),
            self.store.count_parked(),
            self.store.count_sandboxes()
        )?;
        Ok(Seen::new(&pools, &parked, &sandboxes, &self.labels))
    }
}

#[async_trait]
impl BackgroundTask for TellQueues {
    fn name(&self) -> &'static str {
        "tell_queues"
    }

    fn pace(&self) -> Duration {
        self.pace
    }

    async fn round(&mut self) -> Result<Round> {
        let begun = Instant::now();
        let seen = self.look().await?;
        self.pace = self.least.max(begun.elapsed() * PAUSES);
        self.standing.set(seen, Instant::now() + self.pace * LASTS);
        Ok(Round::default())
    }
}

/// What the last look saw, for those who ask in between.
#[derive(Debug)]
struct Standing {
    term: Term,
    seen: Mutex<Option<(Seen, Instant)>>,
}

impl Standing {
    /// Tells what is seen from now on, for as long as it exists.
    fn observed(term: Term) -> Arc<Self> {
        let standing = Arc::new(Self { term, seen: Mutex::default() });
        let pools: [(&Metric, Number); 4] = [
            (&SESSIONS_RUNNABLE, |pool| pool.runnable),
            (&SESSIONS_RUNNING, |pool| pool.running),
            (&RUNS_QUEUED, |pool| pool.queued),
            (&QUEUE_OLDEST_AGE, |pool| pool.oldest),
        ];
        for (metric, number) in pools {
            observe(metric, &standing, move |seen, gauge| {
                for pool in &seen.pools {
                    gauge.observe(number(pool), std::slice::from_ref(&pool.name));
                }
            });
        }
        observe(&RUNS_PARKED, &standing, |seen, gauge| {
            seen.parked.iter().for_each(|(labels, count)| gauge.observe(*count, labels));
        });
        observe(&SANDBOXES, &standing, |seen, gauge| {
            seen.sandboxes.iter().for_each(|(labels, count)| gauge.observe(*count, labels));
        });
        standing
    }

    fn set(&self, seen: Seen, until: Instant) {
        *self.lock() = Some((seen, until));
    }

    /// Forgets what a former leader saw, and what is too old.
    fn tell(&self, gauge: &dyn AsyncInstrument<f64>, what: impl Fn(&Seen, &dyn AsyncInstrument<f64>)) {
        let mut seen = self.lock();
        match &*seen {
            Some((seen, until)) if self.term.is_held() && Instant::now() < *until => what(seen, gauge),
            _ => *seen = None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Seen, Instant)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn observe(
    metric: &Metric,
    standing: &Arc<Standing>,
    what: impl Fn(&Seen, &dyn AsyncInstrument<f64>) + Send + Sync + 'static,
) {
    let standing: Weak<Standing> = Arc::downgrade(standing);
    metrics::observe(metric, move |gauge| {
        if let Some(standing) = standing.upgrade() {
            standing.tell(gauge, &what);
        }
    });
}

#[derive(Debug)]
struct Seen {
    pools: Vec<Pool>,
    parked: Vec<([KeyValue; 1], f64)>,
    sandboxes: Vec<([KeyValue; 2], f64)>,
}

/// What of a pool is told.
type Number = fn(&Pool) -> f64;

#[derive(Debug, PartialEq)]
struct Pool {
    name: KeyValue,
    runnable: f64,
    running: f64,
    queued: f64,
    /// In seconds.
    oldest: f64,
}

impl Seen {
    fn new(
        depths: &[PoolDepth],
        parked: &[(ParkReason, u64)],
        sandboxes: &[(BackendKind, SandboxState, u64)],
        labels: &Labels,
    ) -> Self {
        let now = SystemTime::now();
        let mut pools: Vec<Pool> = Vec::new();
        for depth in depths {
            let age = depth.oldest_runnable_at.and_then(|at| now.duration_since(at.into()).ok());
            let pool = Pool {
                name: labels.pool(depth.pool.as_str()),
                runnable: number(depth.runnable_sessions),
                running: number(depth.running_sessions),
                queued: number(depth.queued_runs),
                oldest: age.unwrap_or_default().as_secs_f64(),
            };
            // Those that have no name of their own are told as one.
            match pools.iter_mut().find(|it| it.name == pool.name) {
                Some(other) => other.add(&pool),
                None => pools.push(pool),
            }
        }
        let parked = ParkReason::ALL.map(|reason| {
            let count = parked.iter().find(|(it, _)| *it == reason).map_or(0, |(_, count)| *count);
            ([KeyValue::new(label::REASON, reason.as_str())], number(count))
        });
        // Commands of the worker's own user are on no record.
        let known = SandboxState::ALL.map(|state| (BackendKind::Docker, state));
        let sandboxes = known.map(|(backend, state)| {
            let found = sandboxes.iter().find(|(kind, it, _)| (*kind, *it) == (backend, state));
            let labels = [
                KeyValue::new(label::BACKEND, backend.as_str()),
                KeyValue::new(label::STATE, state.as_str()),
            ];
            (labels, number(found.map_or(0, |(_, _, count)| *count)))
        });
        Self { pools, parked: parked.into(), sandboxes: sandboxes.into() }
    }
}

impl Pool {
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

    fn depth(pool: &str, runnable: u64, waits: Option<Duration>) -> PoolDepth {
        PoolDepth {
            pool: pool.parse().unwrap(),
            runnable_sessions: runnable,
            running_sessions: 1,
            queued_runs: 2 * runnable,
            oldest_runnable_at: waits.map(|waits| Timestamp::from(SystemTime::now() - waits)),
        }
    }

    #[test]
    fn pools_without_a_name_of_their_own_are_added_up() {
        let minute = Duration::from_secs(60);
        let all = [depth("a", 1, None), depth("b", 2, Some(minute)), depth("c", 3, Some(minute / 2))];
        let seen = Seen::new(&all, &[], &[], &Labels::new(false, 1));
        let [a, other] = seen.pools.as_slice() else { panic!("{seen:?}") };
        assert_eq!((a.name.value.to_string(), a.runnable, a.oldest), ("a".to_owned(), 1.0, 0.0));
        assert_eq!(other.name.value.to_string(), "other");
        assert_eq!((other.runnable, other.running, other.queued), (5.0, 2.0, 10.0));
        assert!((60.0..90.0).contains(&other.oldest), "{other:?}");
    }

    #[test]
    fn what_there_is_none_of_is_told_too() {
        let parked = [(ParkReason::Approval, 3)];
        let sandboxes = [(BackendKind::Docker, SandboxState::Paused, 2)];
        let seen = Seen::new(&[], &parked, &sandboxes, &Labels::default());
        let told = |label: &KeyValue, count: &f64| (label.value.to_string(), *count);
        let parked: Vec<_> = seen.parked.iter().map(|([reason], count)| told(reason, count)).collect();
        assert_eq!(parked.len(), ParkReason::ALL.len());
        assert!(
            parked.contains(&("approval".to_owned(), 3.0)) && parked.contains(&("budget".to_owned(), 0.0))
        );
        let sandboxes: Vec<_> = seen.sandboxes.iter().map(|([_, state], count)| told(state, count)).collect();
        assert!(
            sandboxes.contains(&("paused".to_owned(), 2.0))
                && sandboxes.contains(&("active".to_owned(), 0.0))
        );
    }
}
