//! What is to be measured, and on what.

use std::path::PathBuf;

use super::Scenario;
use crate::{
    collector::Collector,
    load::Pace,
    seed::{IDLE_POOL, Seed},
    stage::{Mode, Setting},
};

/// More sessions than this are not made one by one.
const MADE_BY_CALLS: usize = 10_000;
/// The pool that the worker takes from.
const WORKED_POOL: &str = "default";

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) scenario: Scenario,
    pub(crate) mode: Mode,
    pub(crate) pace: Pace,
    pub(crate) sessions: usize,
    /// Sessions are seeded, and the servers start on a database that has them.
    pub(crate) seeded: bool,
    /// Runs that are queued before.
    pub(crate) queued: u64,
    /// Sessions that these are spread over, unless they are what is worked on.
    pub(crate) queued_sessions: u64,
    pub(crate) seconds: u64,
    pub(crate) warm_up: u64,
    pub(crate) slots: u32,
    pub(crate) nats: Option<PathBuf>,
}

impl Plan {
    /// The usual measurement of a scenario.
    pub(crate) fn new(scenario: Scenario, mode: Mode) -> Self {
        Self {
            scenario,
            mode,
            pace: Pace::Closed { clients: 256 },
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

    pub(super) fn setting(&self, collector: &Collector) -> Setting {
        Setting { slots: self.slots, nats: self.nats.clone(), ..Setting::same_profile() }
            .with("REMUDA_TELEMETRY__OTLP_ENDPOINT", collector.endpoint.as_str())
            .with("REMUDA_TELEMETRY__OTLP_METRICS", "false")
            // Only those runs are traced whose clients ask for it.
            .with("REMUDA_TELEMETRY__SAMPLE_RATIO", "0")
    }

    /// The sessions that runs go to, if they are to be there before.
    pub(super) fn session_seed(&self) -> Option<Seed> {
        let seeded = self.seeded || self.sessions > MADE_BY_CALLS || self.scenario == Scenario::Backlog;
        let queued = if self.scenario == Scenario::Backlog { self.queued } else { 0 };
        seeded.then_some(Seed { sessions: self.sessions as u64, queued, pool: WORKED_POOL })
    }

    /// Runs that wait all the time, for workers that do not come.
    pub(super) fn waiting_seed(&self) -> Option<Seed> {
        let sessions = self.queued_sessions.clamp(1, self.queued.max(1));
        let waits = self.queued > 0 && self.scenario != Scenario::Backlog;
        waits.then_some(Seed { sessions, queued: self.queued, pool: IDLE_POOL })
    }

    /// How hard is tried.
    pub(super) fn load(&self) -> String {
        match self.pace {
            Pace::Closed { clients: 1 } => "1 client".to_owned(),
            Pace::Closed { clients } => format!("{clients} clients"),
            Pace::Open { per_second } => format!("{per_second:.0} runs/s wanted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_many_sessions_are_seeded() {
        let noop = Plan::new(Scenario::Noop, Mode::Split);
        assert_eq!((noop.session_seed(), noop.waiting_seed()), (None, None));
        let many = Plan::new(Scenario::ManySessions, Mode::Split).session_seed();
        assert_eq!(many.map(|seed| (seed.sessions, seed.queued)), Some((1_000_000, 0)));
    }

    #[test]
    fn queued_runs_are_worked_off_by_a_backlog_alone() {
        let waiting = Plan { queued: 500, ..Plan::new(Scenario::Noop, Mode::Split) };
        let seed = Seed { sessions: 500, queued: 500, pool: IDLE_POOL };
        assert_eq!((waiting.session_seed(), waiting.waiting_seed()), (None, Some(seed)));
        let backlog = Plan::new(Scenario::Backlog, Mode::Split);
        let seed = Seed { sessions: 10_000, queued: 1_000_000, pool: WORKED_POOL };
        assert_eq!((backlog.session_seed(), backlog.waiting_seed()), (Some(seed), None));
    }
}
