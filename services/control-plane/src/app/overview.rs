//! The data of a live view of the fleet, in one response.

use std::sync::Arc;

use remuda_domain::{Error, RunState, Timestamp, error::Result, identity::Operator, session::Owner};
use remuda_store::{FleetView, PoolView, RunSummary};

use super::{App, CurrentStep};

/// How many sessions are counted at most: about a tenth of a second of database time.
const MAX_SESSIONS: u32 = 10_000;
/// The longest list of runs.
const MAX_RUNS: u32 = 100;
const DEFAULT_RUNS: u32 = 20;

/// The fleet, and the runs of one tenant.
#[derive(Clone, Debug)]
pub struct Overview {
    pub fleet: Arc<FleetView>,
    pub running: Vec<RunOverview>,
    pub waiting: Vec<RunOverview>,
}

/// A run of a list, with the reason for its state.
#[derive(Clone, Debug)]
pub struct RunOverview {
    pub summary: RunSummary,
    /// The same code as in an explanation.
    pub reason: &'static str,
    /// The reason in a few words.
    pub why: String,
    pub since: Timestamp,
    pub step: Option<CurrentStep>,
}

impl App {
    /// Returns the whole fleet, and the runs of the named tenant. Without a name: of the caller's own tenant, if it acts
    /// for one.
    pub async fn overview(&self, caller: &Operator, tenant: &str, limit: u32) -> Result<Overview> {
        let limit = match limit {
            0 => DEFAULT_RUNS,
            1..=MAX_RUNS => limit,
            _ => return Err(Error::invalid("limit", format!("expected 1 to {MAX_RUNS}"))),
        };
        let tenant = self.named_tenant(caller, tenant).await?;
        let runs = async {
            let Some(tenant) = tenant else { return Ok(Default::default()) };
            tokio::try_join!(
                self.store.longest_running(tenant.id, limit),
                self.store.longest_waiting(tenant.id, limit)
            )
        };
        let (fleet, (running, waiting)) =
            tokio::try_join!(self.fleet.get(self.store.fleet_view(MAX_SESSIONS)), runs)?;
        let line = |summary| run_overview(summary, &fleet);
        let (running, waiting) =
            (running.into_iter().map(line).collect(), waiting.into_iter().map(line).collect());
        Ok(Overview { fleet, running, waiting })
    }
}

fn run_overview(summary: RunSummary, fleet: &FleetView) -> RunOverview {
    let (reason, why) = why(&summary, fleet.pools.iter().find(|view| view.stats.pool == summary.pool));
    let since = match summary.state {
        RunState::Running => summary.started_at,
        _ => summary.parked.map(|parked| parked.at),
    };
    RunOverview {
        reason,
        why,
        since: since.unwrap_or(summary.created_at),
        step: summary.step.as_ref().map(CurrentStep::from),
        summary,
    }
}

/// The reason for a run's state, as a code and in a few words.
fn why(summary: &RunSummary, pool: Option<&PoolView>) -> (&'static str, String) {
    let (workers, slots, busy, draining) =
        pool.map_or((0, 0, 0, 0), |it| (it.stats.workers, it.stats.slots, it.busy, it.draining));
    if let Some(parked) = summary.parked {
        return ("parked", format!("parked: {}", parked.reason.as_str()));
    }
    match (summary.state, summary.owner) {
        (RunState::Running, Owner::Alive { .. }) if summary.cancelling => {
            ("cancelling", "being stopped".to_owned())
        }
        (RunState::Running, Owner::Alive { .. }) => ("executing", String::new()),
        (_, _) if summary.ahead > 0 => {
            let runs = if summary.ahead == 1 { "run" } else { "runs" };
            ("behind_other_runs", format!("behind {} {runs}", summary.ahead))
        }
        (_, Owner::Alive { .. }) => ("starting", "its worker takes it next".to_owned()),
        (_, Owner::Expired { .. }) => ("owner_lost", "its worker was lost".to_owned()),
        (_, Owner::Nobody) if workers == 0 && draining > 0 => {
            ("workers_draining", "all workers are draining".to_owned())
        }
        (_, Owner::Nobody) if workers == 0 => ("no_worker", "no worker".to_owned()),
        (_, Owner::Nobody) => {
            let wait = if busy >= slots { "all slots busy" } else { "about to be taken" };
            match (summary.attempt, summary.lost_attempts) {
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
