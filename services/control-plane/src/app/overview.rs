//! What a live view shows, in one answer.

use std::sync::Arc;

use remuda_domain::{Error, RunState, Timestamp, error::Result, identity::Principal, session::Owner};
use remuda_store::{FleetView, Glance, PoolView};

use super::{App, StepGlance};

/// Sessions that are counted: about a tenth of a second of a database's time.
const MOST_SESSIONS: u32 = 10_000;
/// Runs that a list may hold.
const MOST_RUNS: u32 = 100;
const DEFAULT_RUNS: u32 = 20;

/// The fleet, and the caller's own runs.
#[derive(Clone, Debug)]
pub struct Overview {
    pub fleet: Arc<FleetView>,
    pub running: Vec<RunLine>,
    pub waiting: Vec<RunLine>,
}

/// A run of a list, with why it is where it is.
#[derive(Clone, Debug)]
pub struct RunLine {
    pub glance: Glance,
    /// As in an explanation.
    pub reason: &'static str,
    /// The same in a few words.
    pub why: String,
    pub since: Timestamp,
    pub step: Option<StepGlance>,
}

impl App {
    /// The fleet is shown to whoever may operate it; runs only to their own tenant.
    pub async fn overview(&self, caller: &Principal, limit: u32) -> Result<Overview> {
        let limit = match limit {
            0 => DEFAULT_RUNS,
            1..=MOST_RUNS => limit,
            _ => return Err(Error::invalid("limit", format!("expected 1 to {MOST_RUNS}"))),
        };
        let tenant = caller.tenant;
        let (fleet, running, waiting) = tokio::try_join!(
            self.fleet.get(self.store.fleet_view(MOST_SESSIONS)),
            self.store.longest_running(tenant, limit),
            self.store.longest_waiting(tenant, limit)
        )?;
        let line = |glance| run_line(glance, &fleet);
        let (running, waiting) =
            (running.into_iter().map(line).collect(), waiting.into_iter().map(line).collect());
        Ok(Overview { fleet, running, waiting })
    }
}

fn run_line(glance: Glance, fleet: &FleetView) -> RunLine {
    let (reason, why) = why(&glance, fleet.pools.iter().find(|view| view.stats.pool == glance.pool));
    let since = match glance.state {
        RunState::Running => glance.started_at,
        _ => glance.parked.map(|parked| parked.at),
    };
    RunLine {
        reason,
        why,
        since: since.unwrap_or(glance.created_at),
        step: glance.step.as_ref().map(StepGlance::from),
        glance,
    }
}

/// Why a run is where it is, as a code and in a few words.
fn why(glance: &Glance, pool: Option<&PoolView>) -> (&'static str, String) {
    let (workers, slots, busy, draining) =
        pool.map_or((0, 0, 0, 0), |it| (it.stats.workers, it.stats.slots, it.busy, it.draining));
    if let Some(parked) = glance.parked {
        return ("parked", format!("parked: {}", parked.reason.as_str()));
    }
    match (glance.state, glance.owner) {
        (RunState::Running, Owner::Alive { .. }) if glance.cancelling => {
            ("cancelling", "being stopped".to_owned())
        }
        (RunState::Running, Owner::Alive { .. }) => ("executing", String::new()),
        (_, _) if glance.ahead > 0 => {
            let runs = if glance.ahead == 1 { "run" } else { "runs" };
            ("behind_other_runs", format!("behind {} {runs}", glance.ahead))
        }
        (_, Owner::Alive { .. }) => ("starting", "its worker takes it next".to_owned()),
        (_, Owner::Expired { .. }) => ("owner_lost", "its worker was lost".to_owned()),
        (_, Owner::Nobody) if workers == 0 && draining > 0 => {
            ("workers_draining", "all workers are draining".to_owned())
        }
        (_, Owner::Nobody) if workers == 0 => ("no_worker", "no worker".to_owned()),
        (_, Owner::Nobody) => {
            let wait = if busy >= slots { "all slots busy" } else { "about to be taken" };
            match (glance.attempt, glance.lost_attempts) {
                (0, 0) => ("waiting_for_worker", wait.to_owned()),
                (_, 0) => ("handed_over", format!("handed over, {wait}")),
                (_, _) => ("attempt_lost", format!("lost its worker, {wait}")),
            }
        }
    }
}

#[cfg(test)]
#[path = "overview_tests.rs"]
mod tests;
