//! The plan of a measurement: scenario, load, and seeded data.

use std::path::PathBuf;

use super::Scenario;
use crate::{
    collector::Collector,
    database_seed::{IDLE_POOL, Seed},
    deployment::{DeploymentOptions, Mode},
    load::LoadModel,
};

/// More sessions than this are written into the database instead of created by calls.
const MADE_BY_CALLS: usize = 10_000;
/// The pool that the worker serves.
const WORKED_POOL: &str = "default";

#[derive(Clone, Debug)]
pub(crate) struct BenchPlan {
    pub(crate) scenario: Scenario,
    pub(crate) mode: Mode,
    pub(crate) model: LoadModel,
    pub(crate) sessions: usize,
    /// Whether the sessions are written into the database before the servers start.
    pub(crate) seeded: bool,
    /// Runs that are queued before the measurement.
    pub(crate) queued: u64,
    /// Sessions that the queued runs are spread over, unless the scenario executes them.
    pub(crate) queued_sessions: u64,
    pub(crate) seconds: u64,
    pub(crate) warm_up: u64,
    pub(crate) slots: u32,
    pub(crate) nats: Option<PathBuf>,
}

impl BenchPlan {
    /// The default measurement of a scenario.
    pub(crate) fn new(scenario: Scenario, mode: Mode) -> Self {
        Self {
            scenario,
            mode,
            model: LoadModel::Closed { clients: 256 },
            sessions: scenario.sessions(),
            seeded: scenario == Scenario::ManySessions,
            queued: scenario.queued(),
            queued_sessions: 10_000,
            seconds: 10,
            warm_up: 3,
            slots: 256,
            nats: None,
        }
    }

    pub(super) fn options(&self, collector: &Collector) -> DeploymentOptions {
        DeploymentOptions { slots: self.slots, nats: self.nats.clone(), ..DeploymentOptions::same_profile() }
            .with("REMUDA_TELEMETRY__OTLP_ENDPOINT", collector.endpoint.as_str())
            .with("REMUDA_TELEMETRY__OTLP_METRICS", "false")
            // Only runs whose clients send a sampled traceparent are traced.
            .with("REMUDA_TELEMETRY__SAMPLE_RATIO", "0")
    }

    /// The sessions of the load, if they are seeded.
    pub(super) fn session_seed(&self) -> Option<Seed> {
        let seeded = self.seeded || self.sessions > MADE_BY_CALLS || self.scenario == Scenario::Backlog;
        let queued = if self.scenario == Scenario::Backlog { self.queued } else { 0 };
        seeded.then_some(Seed { sessions: self.sessions as u64, queued, pool: WORKED_POOL })
    }

    /// Runs that stay queued in a pool without workers.
    pub(super) fn waiting_seed(&self) -> Option<Seed> {
        let sessions = self.queued_sessions.clamp(1, self.queued.max(1));
        let waits = self.queued > 0 && self.scenario != Scenario::Backlog;
        waits.then_some(Seed { sessions, queued: self.queued, pool: IDLE_POOL })
    }

    /// The load in words.
    pub(super) fn load(&self) -> String {
        match self.model {
            LoadModel::Closed { clients: 1 } => "1 client".to_owned(),
            LoadModel::Closed { clients } => format!("{clients} clients"),
            LoadModel::Open { per_second } => format!("{per_second:.0} runs/s wanted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_many_sessions_are_seeded() {
        let noop = BenchPlan::new(Scenario::Noop, Mode::Split);
        assert_eq!((noop.session_seed(), noop.waiting_seed()), (None, None));
        let many = BenchPlan::new(Scenario::ManySessions, Mode::Split).session_seed();
        assert_eq!(many.map(|seed| (seed.sessions, seed.queued)), Some((1_000_000, 0)));
    }

    #[test]
    fn only_backlog_executes_the_queued_runs() {
        let waiting = BenchPlan { queued: 500, ..BenchPlan::new(Scenario::Noop, Mode::Split) };
        let seed = Seed { sessions: 500, queued: 500, pool: IDLE_POOL };
        assert_eq!((waiting.session_seed(), waiting.waiting_seed()), (None, Some(seed)));
        let backlog = BenchPlan::new(Scenario::Backlog, Mode::Split);
        let seed = Seed { sessions: 10_000, queued: 1_000_000, pool: WORKED_POOL };
        assert_eq!((backlog.session_seed(), backlog.waiting_seed()), (Some(seed), None));
    }
}
