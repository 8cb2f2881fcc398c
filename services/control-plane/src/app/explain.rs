//! Explains why a run has not ended: its reason, what it waits for, and an estimate.

mod diagnosis;
mod estimate;
mod format;
mod waits;

use remuda_domain::{
    Run, RunId, RunState, Timestamp,
    error::Result,
    identity::Principal,
    session::Owner,
    step::{Step, StepWork},
};
use remuda_store::{QueuePosition, RunDiagnostics};

use self::{
    diagnosis::{Diagnosis, diagnose, wake_up_due},
    estimate::estimate,
};
pub use self::{estimate::Estimate, waits::Wait};
use super::App;

/// Stored name of the background task that wakes sessions whose wake-up was lost.
const WAKE_SESSIONS: &str = "wake_sessions";

/// An explanation, for programs (`reason`) and for people (`message`, `hint`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub state: RunState,
    pub reason: &'static str,
    pub message: String,
    /// Id of a run or worker, or name of a pool.
    pub waits_for: String,
    /// How many runs of its session are ahead.
    pub position: i64,
    /// Position in its pool, if a worker could take the run.
    pub place: Option<PoolPosition>,
    pub hint: String,
    /// When the run entered its state.
    pub since: Option<Timestamp>,
    pub step: Option<CurrentStep>,
    /// Progress of a cancellation request, oldest first.
    pub receipts: Vec<Receipt>,
    /// What a parked run waits for.
    pub waits: Vec<Wait>,
    /// When the run starts, resumes or ends. `None` for a run that has ended.
    pub estimate: Option<Estimate>,
}

/// The position of a session among those of its pool that a worker could take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPosition {
    pub pool: String,
    pub place: QueuePosition,
    pub slots: u32,
    pub free_slots: u32,
}

/// The latest step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentStep {
    pub index: u32,
    pub kind: &'static str,
    /// The tool, or the model.
    pub name: String,
    pub started_at: Timestamp,
    pub finished_at: Option<Timestamp>,
}

impl From<&Step> for CurrentStep {
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

/// One stage of a cancellation request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub name: &'static str,
    pub at: Timestamp,
}

impl App {
    pub async fn explain(&self, caller: &Principal, run: RunId) -> Result<Explanation> {
        let diagnostics = self.store.diagnostics(caller.tenant, run).await?;
        let waits = self.waits(&diagnostics).await?;
        let mut woken_at = None;
        if wake_up_due(&diagnostics).is_some() {
            let tasks = self.store.list_tasks().await?;
            woken_at =
                tasks.iter().find(|task| task.last.name == WAKE_SESSIONS).map(|task| task.last.started_at);
        }
        Ok(explain(&diagnostics, waits, woken_at))
    }
}

fn explain(diagnostics: &RunDiagnostics, waits: Vec<Wait>, woken_at: Option<Timestamp>) -> Explanation {
    let RunDiagnostics { run, head, estimate_inputs, .. } = diagnostics;
    let Diagnosis { reason, message, waits_for, hint } = diagnose(diagnostics, &waits, woken_at);
    let place = |place| PoolPosition {
        pool: head.pool.to_string(),
        place,
        slots: estimate_inputs.slots,
        free_slots: diagnostics.free_slots,
    };
    // With runs of the same session ahead, the session's position says nothing about this run.
    let is_free = diagnostics.ahead == 0 && !matches!(head.owner, Owner::Alive { .. });
    Explanation {
        state: run.state,
        reason,
        message,
        waits_for,
        position: diagnostics.ahead,
        place: estimate_inputs.place.filter(|_| is_free).map(place),
        hint,
        since: since(run),
        step: estimate_inputs.step.as_ref().map(CurrentStep::from),
        receipts: receipts(run),
        estimate: estimate(diagnostics, &waits),
        waits,
    }
}

/// When a run entered its state.
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
