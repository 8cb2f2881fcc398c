//! A reproducible schedule of faults.

use std::time::Duration;

use anyhow::Result;
use futures::{Stream, StreamExt as _, stream};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _, seq::SliceRandom as _};
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use crate::{
    cluster::Cluster,
    fault::{FaultKind, FaultRecord},
};

/// The share of the time in which faults occur; none occur after it, so that recovery can be measured.
const ACTIVE_SHARE: f64 = 0.8;
/// The share at the beginning without faults, for comparison.
const QUIET_START: f64 = 0.08;
/// The quiet time after a fault relative to the fault's duration: a quarter of the total.
const QUIET_SHARE: f64 = 1.0 / 3.0;
/// How late a fault that is planned to end just in time may begin.
const SLACK: Duration = Duration::from_secs(1);

/// One fault of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedFault {
    /// When it begins, from the start of the schedule; later if the previous one takes longer than expected.
    pub at: Duration,
    pub kind: FaultKind,
    /// The seed of its own random choices, such as its target.
    pub seed: u64,
}

impl PlannedFault {
    /// See [`FaultKind::inject`].
    pub async fn inject(&self, cluster: &Cluster) -> Result<FaultRecord> {
        self.kind.inject(cluster, &mut StdRng::seed_from_u64(self.seed)).await
    }

    /// When it is expected to be healed.
    fn ends(&self) -> Duration {
        self.at + self.kind.expected()
    }
}

/// A random sequence of faults, determined by its seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FaultSchedule {
    /// Faults of one lane never overlap.
    lanes: Vec<Vec<PlannedFault>>,
    /// No fault may last beyond this.
    active: Duration,
}

impl FaultSchedule {
    /// Spreads faults of these kinds over this many seconds: one at a time, each kind at least once if the time allows it. About a
    /// quarter of the active time is quiet, and the last fifth entirely.
    #[must_use]
    pub fn new(seed: u64, kinds: &[FaultKind], seconds: u64) -> Self {
        let total = Duration::from_secs(seconds);
        let active = total.mul_f64(ACTIVE_SHARE);
        let lane = plan_lane(&mut StdRng::seed_from_u64(seed), kinds, total.mul_f64(QUIET_START), active);
        Self { lanes: vec![lane], active }
    }

    /// Adds a second sequence whose faults overlap with the first.
    #[must_use]
    pub fn with_overlap(mut self, seed: u64, kinds: &[FaultKind]) -> Self {
        let lead_in = self.lanes.iter().flatten().map(|fault| fault.at).min().unwrap_or_default();
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(1));
        self.lanes.push(plan_lane(&mut rng, kinds, lead_in, self.active));
        self
    }

    /// All faults, in planned order.
    #[must_use]
    pub fn faults(&self) -> Vec<PlannedFault> {
        let mut faults: Vec<PlannedFault> = self.lanes.iter().flatten().copied().collect();
        faults.sort_by_key(|fault| fault.at);
        faults
    }

    /// Injects the faults from now on and yields each when it is healed. Skips a fault that would disturb the quiet end.
    pub fn inject<'a>(&'a self, cluster: &'a Cluster) -> impl Stream<Item = Result<FaultRecord>> + 'a {
        let begun = Instant::now();
        let lanes = self.lanes.iter().map(|lane| {
            let due = stream::iter(lane).filter_map(move |fault| async move {
                sleep_until(begun + fault.at).await;
                (begun.elapsed() + fault.kind.expected() <= self.active + SLACK).then_some(fault)
            });
            Box::pin(due.then(|fault| fault.inject(cluster)))
        });
        stream::select_all(lanes)
    }
}

/// Plans faults from `begin` on so that the last is healed by `end`.
fn plan_lane(rng: &mut StdRng, kinds: &[FaultKind], begin: Duration, end: Duration) -> Vec<PlannedFault> {
    let mut due: Vec<FaultKind> = kinds.to_vec();
    due.sort_unstable();
    due.dedup();
    due.shuffle(rng);
    let quiet = quiet_share(&due, end.saturating_sub(begin));
    let mut at = begin;
    let mut faults: Vec<PlannedFault> = Vec::new();
    loop {
        let fits = |kind: &FaultKind| at + kind.expected() <= end;
        let kind = match due.iter().rposition(fits) {
            Some(index) => due.remove(index),
            // The kinds that are still due do not fit any more.
            None => {
                let fitting: Vec<FaultKind> = kinds.iter().copied().filter(fits).collect();
                let Some(kind) = fitting.choose(rng) else { return faults };
                *kind
            }
        };
        let fault = PlannedFault { at, kind, seed: rng.random() };
        at = fault.ends() + kind.expected().mul_f64(quiet * rng.random_range(0.5..1.5));
        faults.push(fault);
    }
}

/// The quiet share, reduced if otherwise not every kind would fit.
fn quiet_share(kinds: &[FaultKind], room: Duration) -> f64 {
    let needed: Duration = kinds.iter().map(|kind| kind.expected()).sum();
    if needed.is_zero() || room <= needed {
        return QUIET_SHARE;
    }
    // Quiet times are random: up to 1.5 times as long as planned.
    let left = (room - needed).div_duration_f64(needed) / 1.5;
    left.min(QUIET_SHARE)
}

impl FaultKind {
    /// The approximate duration, including healing, on a slow machine.
    fn expected(self) -> Duration {
        Duration::from_millis(match self {
            Self::StreamKill | Self::NatsRestart | Self::NatsKill | Self::NatsWipe | Self::WorkerKill => 2500,
            Self::ControlPlaneKill | Self::PostgresRestart => 3500,
            Self::NatsSettings | Self::CutWorkerNats | Self::CutWorkerPostgres => 4000,
            Self::SlowLinks | Self::WorkerStall => 5500,
            Self::WorkerDrain => 6000,
            Self::PostgresFull => 7000,
            Self::PostgresPause => 10_500,
            Self::ClockJump => 12_000,
        })
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
