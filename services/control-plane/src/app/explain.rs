//! Why is this run not finished?

mod waits;

use remuda_domain::{
    Run, RunId, RunState, Timestamp, WorkerId,
    error::Result,
    identity::Principal,
    run::{CancelRequest, ParkReason},
    session::Owner,
};
use remuda_store::Situation;

pub use self::waits::Wait;
use super::App;

/// The answer, for programs (`reason`) and for people (`message`, `hint`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub state: RunState,
    pub reason: &'static str,
    pub message: String,
    /// A run, a worker or a pool.
    pub waits_for: String,
    pub position: i64,
    pub hint: String,
    /// What has become of a request to stop the run, oldest first.
    pub receipts: Vec<Receipt>,
    /// What a parked run waits for.
    pub waits: Vec<Wait>,
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
        Ok(explain(&situation, waits))
    }
}

/// The reason, what it waits for, and what to say.
struct Answer {
    reason: &'static str,
    message: String,
    waits_for: String,
    hint: String,
}

impl Answer {
    fn new(reason: &'static str, message: impl Into<String>, waits_for: &dyn ToString) -> Self {
        Self { reason, message: message.into(), waits_for: waits_for.to_string(), hint: String::new() }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: hint.into(), ..self }
    }
}

fn explain(situation: &Situation, waits: Vec<Wait>) -> Explanation {
    let run = &situation.run;
    let answer = match run.state {
        RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::TimedOut => finished(run),
        RunState::Parked => parked(run, &waits),
        RunState::Running => running(situation),
        RunState::Queued => queued(situation),
    };
    Explanation {
        state: run.state,
        reason: answer.reason,
        message: answer.message,
        waits_for: answer.waits_for,
        position: situation.ahead,
        hint: answer.hint,
        receipts: receipts(run),
        waits,
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

fn finished(run: &Run) -> Answer {
    let cause = run.failure.as_ref().map(|failure| format!(": {}", failure.message)).unwrap_or_default();
    Answer::new("finished", format!("the run is {}{cause}", run.state), &"")
}

fn parked(run: &Run, waits: &[Wait]) -> Answer {
    let message = match run.parked.map(|parked| parked.reason) {
        Some(ParkReason::Approval) => "the run waits for a person to decide",
        Some(ParkReason::Children) => "the run waits for runs of child sessions to end",
        Some(ParkReason::Budget) => "the run waits for a budget to be raised",
        Some(ParkReason::External) | None => "the run waits for something outside",
    };
    // What a person can do comes before what only has to be waited for.
    let first = waits.iter().find(|wait| wait.kind != "child").or(waits.first());
    let waits_for = first.map(|wait| wait.id.as_str()).unwrap_or_default();
    let hint = first.filter(|wait| wait.kind != "child").map(|wait| wait.hint.clone());
    Answer::new("parked", message, &waits_for).hint(hint.unwrap_or_default())
}

fn running(situation: &Situation) -> Answer {
    let Situation { run, head, workers, .. } = situation;
    match head.owner {
        Owner::Alive { worker, .. } => match &run.cancel {
            Some(cancel) => Answer::new("cancelling", cancelling(worker, cancel), &worker),
            None => Answer::new("executing", format!("worker {worker} executes the run"), &worker),
        },
        Owner::Expired { worker } => {
            let message = format!("worker {worker} was lost; another one will continue the run");
            let hint = if *workers == 0 { START_WORKER } else { "" };
            Answer::new("owner_lost", message, &head.pool).hint(hint)
        }
        Owner::Nobody => waiting(situation),
    }
}

const START_WORKER: &str = "start a worker for the pool: remuda worker";

fn cancelling(worker: WorkerId, cancel: &CancelRequest) -> String {
    match (cancel.delivered_at, cancel.stopped_at) {
        (_, Some(_)) => format!("worker {worker} has killed the run's processes and records its end"),
        (Some(_), None) => format!("worker {worker} kills the run's processes"),
        (None, None) => format!("worker {worker} is being told to stop the run"),
    }
}

fn queued(situation: &Situation) -> Answer {
    let Situation { ahead, blocked_by, .. } = situation;
    if *ahead == 0 {
        return waiting(situation);
    }
    let next = blocked_by.map(|run| run.to_string()).unwrap_or_default();
    let runs = if *ahead == 1 { "1 run is".to_owned() } else { format!("{ahead} runs are") };
    Answer::new("behind_other_runs", format!("{runs} ahead of it in its session"), &next)
}

/// The head of its session's line, which no worker has taken.
fn waiting(situation: &Situation) -> Answer {
    let Situation { run, head, workers, free_slots, .. } = situation;
    let pool = &head.pool;
    let (reason, before) = match (run.attempt, run.lost_attempts) {
        (0, 0) => ("waiting_for_worker", String::new()),
        (_, 0) => ("handed_over", "its worker handed the run over; ".to_owned()),
        (_, 1) => ("attempt_lost", "a worker was lost while it executed the run; ".to_owned()),
        (_, lost) => ("attempt_lost", format!("{lost} workers were lost while they executed the run; ")),
    };
    if *workers == 0 {
        let message = format!("{before}no worker of the pool {pool} is alive");
        return Answer::new("no_worker", message, pool).hint(START_WORKER);
    }
    if *free_slots == 0 {
        let message = format!("{before}all slots of the {workers} workers in the pool {pool} are busy");
        return Answer::new(reason, message, pool).hint("add workers or slots, or wait");
    }
    Answer::new(reason, format!("{before}a worker of the pool {pool} should take it any moment"), pool)
}

#[cfg(test)]
mod tests;
