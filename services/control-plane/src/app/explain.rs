//! Why is this run not finished?

mod answers;
mod estimate;
mod waits;
mod words;

use remuda_domain::{
    Run, RunId, RunState, Timestamp,
    error::Result,
    identity::Principal,
    session::Owner,
    step::{Step, StepWork},
};
use remuda_store::{Place, Situation};

use self::{
    answers::{Answer, answer, wake_up_due},
    estimate::estimate,
};
pub use self::{estimate::Estimate, waits::Wait};
use super::App;

/// The background task that wakes sessions whose wake-up was lost.
const WAKE_SESSIONS: &str = "wake_sessions";

/// The answer, for programs (`reason`) and for people (`message`, `hint`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub state: RunState,
    pub reason: &'static str,
    pub message: String,
    /// A run, a worker or a pool.
    pub waits_for: String,
    /// In its session.
    pub position: i64,
    /// Among the sessions of its pool, when a worker could take it.
    pub place: Option<PoolPlace>,
    pub hint: String,
    /// Since when it is as it is.
    pub since: Option<Timestamp>,
    pub step: Option<StepGlance>,
    /// What has become of a request to stop the run, oldest first.
    pub receipts: Vec<Receipt>,
    /// What a parked run waits for.
    pub waits: Vec<Wait>,
    /// When it starts, goes on or ends; nothing for one that is over.
    pub estimate: Option<Estimate>,
}

/// A place among the sessions of a pool that a worker could take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlace {
    pub pool: String,
    pub place: Place,
    pub slots: u32,
    pub free_slots: u32,
}

/// A step as far as it says what a run is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepGlance {
    pub index: u32,
    pub kind: &'static str,
    /// The tool, or the model.
    pub name: String,
    pub started_at: Timestamp,
    pub finished_at: Option<Timestamp>,
}

impl From<&Step> for StepGlance {
    fn from(step: &Step) -> Self {
        let name = match &step.work {
            StepWork::ToolCall { call, .. } => call.tool.clone(),
            StepWork::ModelCall { request, .. } => request.model_name.clone(),
        };
        Self {
            index: step.index,
            kind: step.work.kind(),
            name,
            started_at: step.started_at,
            finished_at: step.finished_at.filter(|_| step.is_finished()),
        }
    }
}

/// One stage of a request to stop a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub name: &'static str,
    pub at: Timestamp,
}

impl App {
    pub async fn explain(&self, caller: &Principal, run: RunId) -> Result<Explanation> {
        let situation = self.store.situation(caller.tenant, run).await?;
        let waits = self.waits(&situation).await?;
        let mut woken_at = None;
        if wake_up_due(&situation).is_some() {
            let tasks = self.store.list_tasks().await?;
            woken_at =
                tasks.iter().find(|task| task.last.name == WAKE_SESSIONS).map(|task| task.last.started_at);
        }
        Ok(explain(&situation, waits, woken_at))
    }
}

fn explain(situation: &Situation, waits: Vec<Wait>, woken_at: Option<Timestamp>) -> Explanation {
    let Situation { run, head, outlook, .. } = situation;
    let Answer { reason, message, waits_for, hint } = answer(situation, &waits, woken_at);
    let place = |place| PoolPlace {
        pool: head.pool.to_string(),
        place,
        slots: outlook.slots,
        free_slots: situation.free_slots,
    };
    // Behind others of its session, a place of the session is not one of the run.
    let is_free = situation.ahead == 0 && !matches!(head.owner, Owner::Alive { .. });
    Explanation {
        state: run.state,
        reason,
        message,
        waits_for,
        position: situation.ahead,
        place: outlook.place.filter(|_| is_free).map(place),
        hint,
        since: since(run),
        step: outlook.step.as_ref().map(StepGlance::from),
        receipts: receipts(run),
        estimate: estimate(situation, &waits),
        waits,
    }
}

/// Since when a run is as it is.
fn since(run: &Run) -> Option<Timestamp> {
    match run.state {
        RunState::Queued => Some(run.created_at),
        RunState::Running => run.started_at,
        RunState::Parked => run.parked.map(|parked| parked.at),
        RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::TimedOut => run.finished_at,
    }
}

fn receipts(run: &Run) -> Vec<Receipt> {
    let Some(cancel) = &run.cancel else { return Vec::new() };
    let stages = [
        ("requested", Some(cancel.at)),
        ("delivered", cancel.delivered_at),
        ("stopped", cancel.stopped_at),
        ("released", run.finished_at),
    ];
    stages.into_iter().filter_map(|(name, at)| Some(Receipt { name, at: at? })).collect()
}

#[cfg(test)]
mod tests;
