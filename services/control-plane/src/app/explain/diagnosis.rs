//! Derives the reason and the message of an explanation from a run's diagnostics.

use std::time::Duration;

use remuda_domain::{
    Run, RunState, Timestamp, WorkerId,
    model::ModelRef,
    run::{CancelRequest, Failure, ParkReason},
    session::Owner,
    step::{ModelRetry, Step, StepWork},
};
use remuda_store::{EstimateInputs, HeartbeatAge, RunDiagnostics};

use super::{
    Wait,
    estimate::{ago, free_since},
    format::{format_duration, plural, plural_are},
};

/// How long a run may wait while a slot is free before its wake-up counts as lost. Heartbeats, which report slots, are
/// seconds old, and a slot that has just become free may be about to be taken.
const WAKE_UP_DUE: Duration = Duration::from_secs(10);
const START_WORKER: &str = "start a worker for the pool: remuda worker";

/// The reason for a run's state, what it waits for, and the text for people.
pub(super) struct Diagnosis {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) waits_for: String,
    pub(super) hint: String,
}

impl Diagnosis {
    fn new(reason: &'static str, message: impl Into<String>, waits_for: &dyn ToString) -> Self {
        Self { reason, message: message.into(), waits_for: waits_for.to_string(), hint: String::new() }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: hint.into(), ..self }
    }
}

/// `woken_at` is when the control plane last scanned for sessions whose wake-up was lost.
pub(super) fn diagnose(
    diagnostics: &RunDiagnostics,
    waits: &[Wait],
    woken_at: Option<Timestamp>,
) -> Diagnosis {
    let run = &diagnostics.run;
    let diagnosis = match run.state {
        RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::TimedOut => {
            return finished(run);
        }
        RunState::Parked => parked(run, waits),
        RunState::Running => running(diagnostics, woken_at),
        RunState::Queued => queued(diagnostics, woken_at),
    };
    match diagnostics.head.closed {
        true => Diagnosis {
            message: format!("{}; its session is closed and takes no more", diagnosis.message),
            ..diagnosis
        },
        false => diagnosis,
    }
}

fn finished(run: &Run) -> Diagnosis {
    let cause = run.failure.as_ref().map(|failure| format!(": {}", failure.message)).unwrap_or_default();
    Diagnosis::new("finished", format!("the run is {}{cause}", run.state), &"")
}

fn parked(run: &Run, waits: &[Wait]) -> Diagnosis {
    let reason = run.parked.map(|parked| parked.reason);
    if waits.is_empty() && reason.is_some_and(|reason| reason != ParkReason::External) {
        return Diagnosis::new("resuming", "what the run waited for has come; it resumes any moment", &"");
    }
    let message = match reason {
        Some(ParkReason::Approval) => "the run waits for a person to decide",
        Some(ParkReason::Children) => "the run waits for runs of child sessions to end",
        Some(ParkReason::Budget) => "the run waits for a budget to be raised",
        Some(ParkReason::External) | None => "the run waits for something outside",
    };
    // Waits that a person can end come first.
    let first = waits.iter().find(|wait| wait.kind != "child").or(waits.first());
    let waits_for = first.map(|wait| wait.id.as_str()).unwrap_or_default();
    let hint = first.filter(|wait| wait.kind != "child").map(|wait| wait.hint.clone());
    Diagnosis::new("parked", message, &waits_for).hint(hint.unwrap_or_default())
}

fn running(diagnostics: &RunDiagnostics, woken_at: Option<Timestamp>) -> Diagnosis {
    let RunDiagnostics { run, head, estimate_inputs, .. } = diagnostics;
    match head.owner {
        Owner::Alive { worker, lease_left } => match (&run.cancel, estimate_inputs.heartbeat) {
            (_, Some(beat)) if is_silent(&beat) => silent(worker, &beat, lease_left),
            (Some(cancel), _) => Diagnosis::new("cancelling", cancelling(worker, cancel), &worker),
            (None, beat) => match failed_attempt(estimate_inputs) {
                Some(retry) => retrying(&retry, estimate_inputs.now),
                None => Diagnosis::new("executing", executing(worker, estimate_inputs, beat), &worker),
            },
        },
        Owner::Expired { worker } => owner_lost(diagnostics, worker),
        Owner::Nobody => waiting(diagnostics, woken_at),
    }
}

/// Whether two heartbeats in a row are missing. A worker sends five of them per lease.
fn is_silent(beat: &HeartbeatAge) -> bool {
    beat.age > beat.lease * 2 / 5 && !beat.lease.is_zero()
}

fn silent(worker: WorkerId, beat: &HeartbeatAge, lease_left: Duration) -> Diagnosis {
    let message = format!(
        "worker {worker} executes the run, but was last heard of {} ago; unless it comes back, its lease ends in {} and \
         another one continues the run",
        format_duration(beat.age),
        format_duration(lease_left)
    );
    Diagnosis::new("worker_silent", message, &worker)
}

/// The model of the current step and its last attempt, if that failed.
fn failed_attempt(estimate_inputs: &EstimateInputs) -> Option<(ModelRef, ModelRetry)> {
    let step = estimate_inputs.step.as_ref().filter(|step| !step.is_finished())?;
    match &step.work {
        StepWork::ModelCall { request, .. } => Some((request.model.clone(), request.retry.clone()?)),
        StepWork::ToolCall { .. } => None,
    }
}

fn retrying((model, retry): &(ModelRef, ModelRetry), now: Timestamp) -> Diagnosis {
    let left = (retry.next_at - now).to_std().unwrap_or_default();
    let next = match left.is_zero() {
        true => format!("attempt {} is under way", retry.attempt + 1),
        false => format!("attempt {} starts in {}", retry.attempt + 1, format_duration(left)),
    };
    let Failure { code, message } = &retry.failure;
    let message = format!("the provider of {model} failed: {message} [{code}]; {next}");
    Diagnosis::new("model_retry", message, model).hint(format!("remuda models test {model}"))
}

fn executing(worker: WorkerId, estimate_inputs: &EstimateInputs, beat: Option<HeartbeatAge>) -> String {
    let step =
        estimate_inputs.step.as_ref().map(|step| format!(": {}", step_text(step, estimate_inputs.now)));
    let drains = match beat.is_some_and(|beat| beat.draining) {
        true => "; the worker is being drained and hands the run over after its step",
        false => "",
    };
    format!("worker {worker} executes the run{}{drains}", step.unwrap_or_default())
}

/// Describes a step and how long it has taken.
fn step_text(step: &Step, now: Timestamp) -> String {
    let number = step.index + 1;
    if let Some(finished) = step.finished_at.filter(|_| step.is_finished()) {
        return format!("step {number} ended {} ago", format_duration(ago(finished, now)));
    }
    let since = format_duration(ago(step.started_at, now));
    match &step.work {
        StepWork::ToolCall { call, .. } => format!("step {number}, {}, for {since}", call.tool),
        StepWork::ModelCall { request, .. } => {
            format!("step {number}, a call to {}, for {since}", request.model_name)
        }
    }
}

fn owner_lost(diagnostics: &RunDiagnostics, worker: WorkerId) -> Diagnosis {
    let RunDiagnostics { head, workers, .. } = diagnostics;
    let message = format!("worker {worker} was lost; another one will continue the run");
    let hint = if *workers == 0 { START_WORKER } else { "" };
    Diagnosis::new("owner_lost", message, &head.pool).hint(hint)
}

fn cancelling(worker: WorkerId, cancel: &CancelRequest) -> String {
    match (cancel.delivered_at, cancel.stopped_at) {
        (_, Some(_)) => format!("worker {worker} has killed the run's processes and records its end"),
        (Some(_), None) => format!("worker {worker} kills the run's processes"),
        (None, None) => format!("the cancel request is on its way to worker {worker}"),
    }
}

fn queued(diagnostics: &RunDiagnostics, woken_at: Option<Timestamp>) -> Diagnosis {
    let RunDiagnostics { ahead, blocked_by, estimate_inputs, head, .. } = diagnostics;
    if *ahead == 0 {
        return match head.owner {
            Owner::Alive { worker, .. } => Diagnosis::new(
                "starting",
                format!("worker {worker} has the session and takes the run next"),
                &worker,
            ),
            Owner::Expired { worker } => owner_lost(diagnostics, worker),
            Owner::Nobody => waiting(diagnostics, woken_at),
        };
    }
    let next = blocked_by.map(|run| run.to_string()).unwrap_or_default();
    let mut message = format!("{} ahead of it in its session", plural_are(*ahead, "run"));
    if let Some(front) = &estimate_inputs.front {
        let state = match front.parked {
            Some(parked) => format!("parked ({})", parked.reason.as_str()),
            None => front.state.to_string(),
        };
        message.push_str(&format!("; the first of them, {}, is {state}", front.run));
    }
    let hint = estimate_inputs.front.filter(|front| front.parked.is_some());
    let hint = hint.map(|front| format!("remuda explain {}", front.run));
    Diagnosis::new("behind_other_runs", message, &next).hint(hint.unwrap_or_default())
}

/// Diagnoses the first run of a session that no worker has taken.
fn waiting(diagnostics: &RunDiagnostics, woken_at: Option<Timestamp>) -> Diagnosis {
    let RunDiagnostics { run, head, workers, free_slots, estimate_inputs, .. } = diagnostics;
    let pool = &head.pool;
    let (reason, before) = match (run.attempt, run.lost_attempts) {
        (0, 0) => ("waiting_for_worker", String::new()),
        (_, 0) => ("handed_over", "its worker handed the run over; ".to_owned()),
        (_, 1) => ("attempt_lost", "a worker was lost while it executed the run; ".to_owned()),
        (_, lost) => ("attempt_lost", format!("{lost} workers were lost while they executed the run; ")),
    };
    if *workers == 0 && estimate_inputs.draining > 0 {
        let draining = plural_are(estimate_inputs.draining, "worker");
        let message =
            format!("{before}the pool {pool} has no worker that takes work: {draining} being drained");
        return Diagnosis::new("workers_draining", message, pool).hint(START_WORKER);
    }
    if *workers == 0 {
        let message = format!("{before}no worker of the pool {pool} is alive");
        return Diagnosis::new("no_worker", message, pool).hint(START_WORKER);
    }
    if *free_slots == 0 {
        let workers = plural(*workers, "worker");
        let message = format!("{before}all slots of the {workers} in the pool {pool} are busy");
        return Diagnosis::new(reason, message, pool).hint("add workers or slots, or wait");
    }
    if let Some(waited) = wake_up_due(diagnostics) {
        let scanned = match woken_at {
            Some(at) => {
                format!("last scanned for them {} ago", format_duration(ago(at, estimate_inputs.now)))
            }
            None => "has not scanned for them yet".to_owned(),
        };
        let message = format!(
            "a slot is free, but no worker has taken the run for {}: its wake-up seems lost; the control plane wakes such \
             sessions again and {scanned}",
            format_duration(waited)
        );
        return Diagnosis::new("wake_up_due", message, pool)
            .hint("remuda tasks shows whether wake_sessions works");
    }
    Diagnosis::new(reason, format!("{before}a worker of the pool {pool} should take it any moment"), pool)
}

/// How long a run has waited although a slot was free, if that is too long.
pub(super) fn wake_up_due(diagnostics: &RunDiagnostics) -> Option<Duration> {
    let RunDiagnostics { head, free_slots, estimate_inputs, .. } = diagnostics;
    let is_first =
        estimate_inputs.place.is_some_and(|place| !place.at_least && place.ahead < i64::from(*free_slots));
    let waited = ago(free_since(diagnostics)?.max(estimate_inputs.slot_free_since?), estimate_inputs.now);
    (head.owner == Owner::Nobody && is_first && waited > WAKE_UP_DUE).then_some(waited)
}
