//! When which fault comes.

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

/// The part of the time after which nothing more happens, so that recovery can be measured.
const ACTIVE: f64 = 0.8;
/// The part at the beginning in which nothing happens yet, so that there is something to compare with.
const LEAD_IN: f64 = 0.08;
/// The quiet time after a fault, as a part of the fault's own: a quarter of the whole.
const QUIET: f64 = 1.0 / 3.0;
/// A fault that is planned to end just in time may begin a moment late.
const SLACK: Duration = Duration::from_secs(1);

/// One fault of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedFault {
    /// When it begins, from the start of the schedule; later if the one before it takes longer than expected.
    pub at: Duration,
    pub kind: FaultKind,
    /// What its own decisions, such as whom it hits, are drawn from.
    pub seed: u64,
}

impl PlannedFault {
    /// See [`FaultKind::inject`].
    pub async fn inject(&self, cluster: &Cluster) -> Result<FaultRecord> {
        self.kind.inject(cluster, &mut StdRng::seed_from_u64(self.seed)).await
    }

    /// When it is expected to be over.
    fn ends(&self) -> Duration {
        self.at + self.kind.expected()
    }
}

/// A random sequence of faults that is the same for the same seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FaultSchedule {
    /// Faults of one lane never overlap.
    lanes: Vec<Vec<PlannedFault>>,
    /// No fault is to go on after this.
    active: Duration,
}

impl FaultSchedule {
    /// Spreads faults of these kinds over so many seconds: one at a time, each kind at least once if the time allows it, about
    /// a quarter of the time between them quiet, and the last fifth altogether.
    #[must_use]
    pub fn new(seed: u64, kinds: &[FaultKind], seconds: u64) -> Self {
        let total = Duration::from_secs(seconds);
        let active = total.mul_f64(ACTIVE);
        let lane = lay_out(&mut StdRng::seed_from_u64(seed), kinds, total.mul_f64(LEAD_IN), active);
        Self { lanes: vec![lane], active }
    }

    /// Adds a second sequence, whose faults come while others are under way.
    #[must_use]
    pub fn with_overlap(mut self, seed: u64, kinds: &[FaultKind]) -> Self {
        let lead_in = self.lanes.iter().flatten().map(|fault| fault.at).min().unwrap_or_default();
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(1));
        self.lanes.push(lay_out(&mut rng, kinds, lead_in, self.active));
        self
    }

    /// All faults, in the order in which they are planned.
    #[must_use]
    pub fn faults(&self) -> Vec<PlannedFault> {
        let mut faults: Vec<PlannedFault> = self.lanes.iter().flatten().copied().collect();
        faults.sort_by_key(|fault| fault.at);
        faults
    }

    /// Injects them, beginning now, and gives each when it is over. One that would come so late that it could disturb the quiet end
    /// is left out.
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

/// Plans faults from `begin` on, so that the last is over at `end`.
fn lay_out(rng: &mut StdRng, kinds: &[FaultKind], begin: Duration, end: Duration) -> Vec<PlannedFault> {
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
            Some(place) => due.remove(place),
            // What is still due never fits any more.
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

/// Less quiet than usual if each kind has its turn only so.
fn quiet_share(kinds: &[FaultKind], room: Duration) -> f64 {
    let needed: Duration = kinds.iter().map(|kind| kind.expected()).sum();
    if needed.is_zero() || room <= needed {
        return QUIET;
    }
    // Quiet times are random: up to half as long again as planned.
    let left = (room - needed).div_duration_f64(needed) / 1.5;
    left.min(QUIET)
}

impl FaultKind {
    /// About how long it takes, healing included, on a machine with little to spare.
    fn expected(self) -> Duration {
        Duration::from_millis(match self {
            Self::StreamKill | Self::NatsRestart | Self::NatsKill | Self::NatsWipe | Self::WorkerKill => 2500,
            Self::ControlPlaneKill | Self::PostgresRestart => 3500,
            Self::NatsSettings | Self::CutWorkerNats | Self::CutWorkerPostgres => 4000,
            Self::SlowLinks | Self::WorkerStall => 5500,
            Self::WorkerDrain => 6000,
            Self::PostgresPause => 10_500,
            Self::ClockJump => 12_000,
        })
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
