//! Estimates when a run starts, resumes or ends, from the durations of earlier runs.
//!
//! An estimate states its basis. There is none where a person, a budget or something outside decides.

use std::time::Duration;

use chrono::TimeDelta;
use remuda_domain::{
    RunState, Timestamp,
    run::{self, ParkReason},
    session::Owner,
};
use remuda_store::{EstimateInputs, QueuePosition, RunDiagnostics};

use super::{
    Wait,
    format::{format_duration, plural, plural_are, rounded},
};

/// An estimate, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// `start`, `resume` or `end`.
    pub of: &'static str,
    /// Rounded. Zero means any moment.
    pub about: Option<Duration>,
    pub basis: String,
    pub at_latest: Option<Timestamp>,
}

impl Estimate {
    fn unknown(of: &'static str, basis: impl Into<String>) -> Self {
        Self { of, about: None, basis: basis.into(), at_latest: None }
    }

    /// Anything but zero is at least a second.
    fn about(of: &'static str, guess: Duration, basis: impl Into<String>) -> Self {
        let about = rounded(guess).max(Duration::from_secs(u64::from(!guess.is_zero())));
        Self { of, about: Some(about), basis: basis.into(), at_latest: None }
    }

    fn any_moment(of: &'static str, basis: impl Into<String>) -> Self {
        Self::about(of, Duration::ZERO, basis)
    }

    fn not_after(self, at_latest: Option<Timestamp>) -> Self {
        Self { at_latest, ..self }
    }

    /// The estimate in one sentence, without `at_latest`.
    pub fn message(&self) -> String {
        match self.about {
            None => format!("unknown: {}", self.basis),
            Some(Duration::ZERO) => format!("any moment: {}", self.basis),
            Some(guess) => format!("about {}: {}", format_duration(guess), self.basis),
        }
    }
}

/// How long comparable runs took.
struct RunDurations {
    median: Duration,
    /// The 90th percentile.
    p90: Duration,
    text: String,
}

impl RunDurations {
    /// Fewer runs than this are no basis.
    const ENOUGH: usize = 3;

    /// From the session's own runs if there are enough, else from the tenant's runs in the same pool.
    fn of(estimate_inputs: &EstimateInputs) -> Option<Self> {
        let sources = [
            (&estimate_inputs.session_pace, "of this session"),
            (&estimate_inputs.pool_pace, "of yours in this pool"),
        ];
        let (worked, whose) = sources.into_iter().find(|(worked, _)| worked.len() >= Self::ENOUGH)?;
        let mut worked = worked.clone();
        worked.sort_unstable();
        let at = |share: usize| worked[(worked.len() * share / 100).min(worked.len() - 1)];
        let median = at(50);
        let text =
            format!("the last {} {whose} took {} each (median)", worked.len(), format_duration(median));
        Some(Self { median, p90: at(90), text })
    }

    /// The remaining time of a run that has worked for `worked`. `None` for a run beyond the 90th percentile.
    fn left(&self, worked: Duration) -> Option<Duration> {
        match worked {
            _ if worked < self.median => Some(self.median - worked),
            _ if worked < self.p90 => Some(self.p90 - worked),
            _ => None,
        }
    }
}

/// A wait shorter than this says nothing about the runs that have the slots.
const SHORT_WAIT: Duration = Duration::from_secs(3);
const NO_BASIS: &str = "too few runs of this session and of this pool have ended to tell";

/// When the run starts, resumes or ends. `None` for a run that has ended.
pub(super) fn estimate(diagnostics: &RunDiagnostics, waits: &[Wait]) -> Option<Estimate> {
    let run = &diagnostics.run;
    let again = if run.attempt > 0 || run.started_at.is_some() { "resume" } else { "start" };
    match (run.state, diagnostics.head.owner) {
        (RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::TimedOut, _) => None,
        (RunState::Parked, _) => Some(parked(diagnostics, waits)),
        (RunState::Running, Owner::Alive { .. }) => Some(executing(diagnostics)),
        (RunState::Queued, _) if diagnostics.ahead > 0 => Some(behind(diagnostics)),
        (RunState::Running | RunState::Queued, _) => Some(waiting(diagnostics, again)),
    }
}

fn parked(diagnostics: &RunDiagnostics, waits: &[Wait]) -> Estimate {
    let reason = diagnostics.run.parked.map(|parked| parked.reason);
    if waits.is_empty() && reason.is_some_and(|reason| reason != ParkReason::External) {
        return Estimate::any_moment("resume", "what it waited for has come");
    }
    let approvals = || waits.iter().filter(|wait| wait.kind == "approval");
    // All approvals have to be decided or to expire.
    let expiry = approvals().map(|wait| wait.expires_at).collect::<Option<Vec<_>>>();
    let expiry = expiry.and_then(|all| all.into_iter().max());
    let children = waits.iter().filter(|wait| wait.kind == "child").count();
    let basis = match reason {
        _ if approvals().next().is_some() => "it waits for a person".to_owned(),
        Some(ParkReason::Approval) => "it waits for a person".to_owned(),
        Some(ParkReason::Children) => {
            format!("it waits for {}, each with an estimate of its own", plural(children, "child run"))
        }
        Some(ParkReason::Budget) => "it waits for someone to raise a budget".to_owned(),
        Some(ParkReason::External) | None => "it waits for something outside".to_owned(),
    };
    Estimate::unknown("resume", basis).not_after(expiry.filter(|_| children == 0))
}

fn executing(diagnostics: &RunDiagnostics) -> Estimate {
    let RunDiagnostics { run, estimate_inputs, .. } = diagnostics;
    if run.cancel.is_some() {
        return Estimate::any_moment("end", "it is being stopped");
    }
    let worked = run::worked(run.started_at, estimate_inputs.now, run.paused);
    let so_far = format!("it has worked for {}", format_duration(worked));
    let guess = match RunDurations::of(estimate_inputs) {
        None => Estimate::unknown("end", NO_BASIS),
        Some(durations) => match durations.left(worked) {
            Some(left) if worked < durations.median => {
                Estimate::about("end", left, format!("{so_far}, {}", durations.text))
            }
            Some(left) => {
                let slow = format_duration(durations.p90);
                Estimate::about(
                    "end",
                    left,
                    format!("{so_far}, {}, nine of ten at most {slow}", durations.text),
                )
            }
            None => Estimate::unknown("end", format!("{so_far}, and {}", durations.text)),
        },
    };
    guess.not_after(run.deadline())
}

/// Estimates the start of a run behind other runs of its session.
fn behind(diagnostics: &RunDiagnostics) -> Estimate {
    let RunDiagnostics { ahead, estimate_inputs, head, .. } = diagnostics;
    let Some(front) = estimate_inputs.front else { return Estimate::unknown("start", NO_BASIS) };
    if let Some(parked) = front.parked {
        let what = match parked.reason {
            ParkReason::Approval => "a person",
            ParkReason::Children => "runs of child sessions",
            ParkReason::Budget => "a budget to be raised",
            ParkReason::External => "something outside",
        };
        return Estimate::unknown("start", format!("{} is ahead and waits for {what}", front.run));
    }
    let Some(durations) = RunDurations::of(estimate_inputs) else {
        return Estimate::unknown("start", NO_BASIS);
    };
    let between = |runs: i64| durations.median.saturating_mul(u32::try_from(runs).unwrap_or(u32::MAX));
    let basis = format!("{} ahead, {}", plural_are(*ahead, "run"), durations.text);
    if front.state == RunState::Running && matches!(head.owner, Owner::Alive { .. }) {
        return match durations.left(front.worked) {
            Some(left) => Estimate::about("start", left.saturating_add(between(ahead - 1)), basis),
            None => {
                let so_far = format_duration(front.worked);
                Estimate::unknown(
                    "start",
                    format!("{} ahead has worked for {so_far}, and {}", front.run, durations.text),
                )
            }
        };
    }
    // The first run of the session has no worker yet.
    let first = waiting(diagnostics, "start");
    match first.about {
        Some(guess) => Estimate::about("start", guess.saturating_add(between(*ahead)), basis),
        None => first,
    }
}

/// Estimates the start of a run that can start, or resume, as soon as a worker takes its session.
fn waiting(diagnostics: &RunDiagnostics, of: &'static str) -> Estimate {
    let RunDiagnostics { estimate_inputs, workers, free_slots, head, .. } = diagnostics;
    if *workers == 0 {
        let basis = match estimate_inputs.draining {
            0 => format!("no worker of the pool {} is alive", head.pool),
            draining => format!("the pool's {} being drained", plural_are(draining, "worker")),
        };
        return Estimate::unknown(of, basis);
    }
    if let Owner::Alive { worker, .. } = head.owner {
        return Estimate::any_moment(of, format!("worker {worker} has the session"));
    }
    let first = QueuePosition { ahead: 0, runs_ahead: 0, at_least: false };
    let QueuePosition { ahead, runs_ahead, at_least } = estimate_inputs.place.unwrap_or(first);
    if i64::from(*free_slots) > ahead {
        return Estimate::any_moment(of, format!("{} free", plural_are(*free_slots, "slot")));
    }
    let sessions = plural(ahead, "session");
    if at_least {
        return Estimate::unknown(of, format!("at least {sessions} of the pool come before it"));
    }
    let slots = estimate_inputs.slots.max(1);
    let Some(durations) = RunDurations::of(estimate_inputs) else {
        return Estimate::unknown(of, format!("all {} are busy, {NO_BASIS}", plural(slots, "slot")));
    };
    // Each slot becomes free once per run duration, and a session keeps its slot for several of its runs.
    let turns = runs_ahead.max(ahead) + 1 - i64::from(*free_slots);
    let turns = u32::try_from(turns).unwrap_or(u32::MAX);
    let guess = durations.median.saturating_mul(turns) / slots;
    // The runs that have the slots are slower than those that the estimate is based on.
    let waited = free_since(diagnostics).map(|at| ago(at, estimate_inputs.now)).unwrap_or_default();
    if waited > durations.p90.saturating_mul(turns.div_ceil(slots)).max(SHORT_WAIT) {
        let basis = format!("it has waited for {}, though {}", format_duration(waited), durations.text);
        return Estimate::unknown(of, basis);
    }
    // "About": tokens decide the order, and they are only about as old as the runs.
    let others = match ahead {
        0 => "no session".to_owned(),
        _ => format!("about {sessions} with {}", plural(runs_ahead, "run")),
    };
    let basis = format!("{others} before it for {}, {}", plural(slots, "slot"), durations.text);
    Estimate::about(of, guess, basis)
}

/// When a run that waits for a worker first could have been taken. `None` if that is not recorded.
pub(super) fn free_since(diagnostics: &RunDiagnostics) -> Option<Timestamp> {
    let RunDiagnostics { run, estimate_inputs, .. } = diagnostics;
    let first = run.attempt == 0 && run.state == RunState::Queued;
    first.then(|| estimate_inputs.previous_end.map_or(run.created_at, |end| end.max(run.created_at)))
}

/// The time from `at` to `now`.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> Duration {
    (now - at).max(TimeDelta::zero()).to_std().unwrap_or_default()
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
