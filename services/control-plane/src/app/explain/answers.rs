//! What to say of each situation that a run can be in.

use std::time::Duration;

use remuda_domain::{
    Run, RunState, Timestamp, WorkerId,
    run::{CancelRequest, ParkReason},
    session::Owner,
    step::{Step, StepWork},
};
use remuda_store::{HeartbeatAge, Outlook, Situation};

use super::{
    Wait,
    estimate::{ago, free_since},
    words::{counted, counted_are, length},
};

/// How long a run may wait beside a free slot before its wake-up counts as lost: heartbeats, which tell of slots, are seconds old, and
/// where all slots are busy any run waits for one that has just become free.
const WAKE_UP_DUE: Duration = Duration::from_secs(10);
const START_WORKER: &str = "start a worker for the pool: remuda worker";

/// The reason, what it waits for, and what to say.
pub(super) struct Answer {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) waits_for: String,
    pub(super) hint: String,
}

impl Answer {
    fn new(reason: &'static str, message: impl Into<String>, waits_for: &dyn ToString) -> Self {
        Self { reason, message: message.into(), waits_for: waits_for.to_string(), hint: String::new() }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: hint.into(), ..self }
    }
}

/// `woken_at` is when the control plane last looked for sessions whose wake-up was lost.
pub(super) fn answer(situation: &Situation, waits: &[Wait], woken_at: Option<Timestamp>) -> Answer {
    let run = &situation.run;
    let answer = match run.state {
        RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::TimedOut => {
            return finished(run);
        }
        RunState::Parked => parked(run, waits),
        RunState::Running => running(situation, woken_at),
        RunState::Queued => queued(situation, woken_at),
    };
    match situation.head.closed {
        true => Answer {
            message: format!("{}; its session is closed and takes no more", answer.message),
            ..answer
        },
        false => answer,
    }
}

fn finished(run: &Run) -> Answer {
    let cause = run.failure.as_ref().map(|failure| format!(": {}", failure.message)).unwrap_or_default();
    Answer::new("finished", format!("the run is {}{cause}", run.state), &"")
}

fn parked(run: &Run, waits: &[Wait]) -> Answer {
    let reason = run.parked.map(|parked| parked.reason);
    if waits.is_empty() && reason.is_some_and(|reason| reason != ParkReason::External) {
        return Answer::new("resuming", "what the run waited for has come; it goes on any moment", &"");
    }
    let message = match reason {
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

fn running(situation: &Situation, woken_at: Option<Timestamp>) -> Answer {
    let Situation { run, head, outlook, .. } = situation;
    match head.owner {
        Owner::Alive { worker, lease_left } => match (&run.cancel, outlook.heartbeat) {
            (_, Some(beat)) if is_silent(&beat) => silent(worker, &beat, lease_left),
            (Some(cancel), _) => Answer::new("cancelling", cancelling(worker, cancel), &worker),
            (None, beat) => Answer::new("executing", executing(worker, outlook, beat), &worker),
        },
        Owner::Expired { worker } => owner_lost(situation, worker),
        Owner::Nobody => waiting(situation, woken_at),
    }
}

/// Two heartbeats in a row did not come: they are sent five times in a lease.
fn is_silent(beat: &HeartbeatAge) -> bool {
    beat.age > beat.lease * 2 / 5 && !beat.lease.is_zero()
}

fn silent(worker: WorkerId, beat: &HeartbeatAge, lease_left: Duration) -> Answer {
    let message = format!(
        "worker {worker} executes the run, but was last heard of {} ago; unless it comes back, its lease ends in {} and \
         another one continues the run",
        length(beat.age),
        length(lease_left)
    );
    Answer::new("worker_silent", message, &worker)
}

fn executing(worker: WorkerId, outlook: &Outlook, beat: Option<HeartbeatAge>) -> String {
    let step = outlook.step.as_ref().map(|step| format!(": {}", at(step, outlook.now)));
    let drains = match beat.is_some_and(|beat| beat.draining) {
        true => "; the worker is being drained and hands the run over after its step",
        false => "",
    };
    format!("worker {worker} executes the run{}{drains}", step.unwrap_or_default())
}

/// What a step does, and since when.
fn at(step: &Step, now: Timestamp) -> String {
    let number = step.index + 1;
    if let Some(finished) = step.finished_at.filter(|_| step.is_finished()) {
        return format!("step {number} ended {} ago", length(ago(finished, now)));
    }
    let since = length(ago(step.started_at, now));
    match &step.work {
        StepWork::ToolCall { call, .. } => format!("step {number}, {}, for {since}", call.tool),
        StepWork::ModelCall { request, .. } => {
            format!("step {number}, a question to {}, for {since}", request.model_name)
        }
    }
}

fn owner_lost(situation: &Situation, worker: WorkerId) -> Answer {
    let Situation { head, workers, .. } = situation;
    let message = format!("worker {worker} was lost; another one will continue the run");
    let hint = if *workers == 0 { START_WORKER } else { "" };
    Answer::new("owner_lost", message, &head.pool).hint(hint)
}

fn cancelling(worker: WorkerId, cancel: &CancelRequest) -> String {
    match (cancel.delivered_at, cancel.stopped_at) {
        (_, Some(_)) => format!("worker {worker} has killed the run's processes and records its end"),
        (Some(_), None) => format!("worker {worker} kills the run's processes"),
        (None, None) => format!("worker {worker} is being told to stop the run"),
    }
}

fn queued(situation: &Situation, woken_at: Option<Timestamp>) -> Answer {
    let Situation { ahead, blocked_by, outlook, head, .. } = situation;
    if *ahead == 0 {
        return match head.owner {
            Owner::Alive { worker, .. } => Answer::new(
                "starting",
                format!("worker {worker} has the session and takes the run next"),
                &worker,
            ),
            Owner::Expired { worker } => owner_lost(situation, worker),
            Owner::Nobody => waiting(situation, woken_at),
        };
    }
    let next = blocked_by.map(|run| run.to_string()).unwrap_or_default();
    let mut message = format!("{} ahead of it in its session", counted_are(*ahead, "run"));
    if let Some(front) = &outlook.front {
        let state = match front.parked {
            Some(parked) => format!("parked ({})", parked.reason.as_str()),
            None => front.state.to_string(),
        };
        message.push_str(&format!("; the first of them, {}, is {state}", front.run));
    }
    let hint = outlook.front.filter(|front| front.parked.is_some());
    let hint = hint.map(|front| format!("remuda explain {}", front.run));
    Answer::new("behind_other_runs", message, &next).hint(hint.unwrap_or_default())
}

/// The head of its session's line, which no worker has taken.
fn waiting(situation: &Situation, woken_at: Option<Timestamp>) -> Answer {
    let Situation { run, head, workers, free_slots, outlook, .. } = situation;
    let pool = &head.pool;
    let (reason, before) = match (run.attempt, run.lost_attempts) {
        (0, 0) => ("waiting_for_worker", String::new()),
        (_, 0) => ("handed_over", "its worker handed the run over; ".to_owned()),
        (_, 1) => ("attempt_lost", "a worker was lost while it executed the run; ".to_owned()),
        (_, lost) => ("attempt_lost", format!("{lost} workers were lost while they executed the run; ")),
    };
    if *workers == 0 && outlook.draining > 0 {
        let draining = counted_are(outlook.draining, "worker");
        let message =
            format!("{before}the pool {pool} has no worker that takes work: {draining} being drained");
        return Answer::new("workers_draining", message, pool).hint(START_WORKER);
    }
    if *workers == 0 {
        let message = format!("{before}no worker of the pool {pool} is alive");
        return Answer::new("no_worker", message, pool).hint(START_WORKER);
    }
    if *free_slots == 0 {
        let workers = counted(*workers, "worker");
        let message = format!("{before}all slots of the {workers} in the pool {pool} are busy");
        return Answer::new(reason, message, pool).hint("add workers or slots, or wait");
    }
    if let Some(waited) = wake_up_due(situation) {
        let looked = match woken_at {
            Some(at) => format!("last looked {} ago", length(ago(at, outlook.now))),
            None => "has not looked yet".to_owned(),
        };
        let message = format!(
            "a slot is free, but no worker has taken the run for {}: its wake-up seems lost; the control plane wakes such \
             sessions again and {looked}",
            length(waited)
        );
        return Answer::new("wake_up_due", message, pool)
            .hint("remuda tasks shows whether wake_sessions works");
    }
    Answer::new(reason, format!("{before}a worker of the pool {pool} should take it any moment"), pool)
}

/// How long a run has waited beside a free slot that should have been taken.
pub(super) fn wake_up_due(situation: &Situation) -> Option<Duration> {
    let Situation { head, free_slots, outlook, .. } = situation;
    let is_first = outlook.place.is_some_and(|place| !place.at_least && place.ahead < i64::from(*free_slots));
    let waited = ago(free_since(situation)?.max(outlook.slot_free_since?), outlook.now);
    (head.owner == Owner::Nobody && is_first && waited > WAKE_UP_DUE).then_some(waited)
}
