//! When a run starts, goes on or ends: a guess from what was, with what it is made of.
//!
//! Nothing here knows more than it says. A guess names the runs that it is made of; where a person, money or something outside decides,
//! there is none.

use std::time::Duration;

use chrono::TimeDelta;
use remuda_domain::{
    RunState, Timestamp,
    run::{self, ParkReason},
    session::Owner,
};
use remuda_store::{Outlook, Place, Situation};

use super::{
    Wait,
    words::{counted, counted_are, length, rounded},
};

/// A guess, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// `start`, `resume` or `end`.
    pub of: &'static str,
    /// Rounded; zero means any moment.
    pub about: Option<Duration>,
    pub basis: String,
    pub at_latest: Option<Timestamp>,
}

impl Estimate {
    fn unknown(of: &'static str, basis: impl Into<String>) -> Self {
        Self { of, about: None, basis: basis.into(), at_latest: None }
    }

    /// What is not there yet takes at least a second.
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

    /// All of it in one sentence, but for the time that stands for itself.
    pub fn message(&self) -> String {
        match self.about {
            None => format!("unknown: {}", self.basis),
            Some(Duration::ZERO) => format!("any moment: {}", self.basis),
            Some(guess) => format!("about {}: {}", length(guess), self.basis),
        }
    }
}

/// How long runs like this one took.
struct Pace {
    median: Duration,
    /// What nine of ten did not exceed.
    slow: Duration,
    words: String,
}

impl Pace {
    /// Fewer runs than this say too little.
    const ENOUGH: usize = 3;

    /// From the session's own runs if there are enough, else from those of the same pool.
    fn of(outlook: &Outlook) -> Option<Self> {
        let whose =
            [(&outlook.session_pace, "of this session"), (&outlook.pool_pace, "of yours in this pool")];
        let (worked, whose) = whose.into_iter().find(|(worked, _)| worked.len() >= Self::ENOUGH)?;
        let mut worked = worked.clone();
        worked.sort_unstable();
        let at = |share: usize| worked[(worked.len() * share / 100).min(worked.len() - 1)];
        let median = at(50);
        let words = format!("the last {} {whose} took {} each (median)", worked.len(), length(median));
        Some(Self { median, slow: at(90), words })
    }

    /// What a run that has worked for so long has still to do. Nothing can be said of one that is slower than nine of ten.
    fn left(&self, worked: Duration) -> Option<Duration> {
        match worked {
            _ if worked < self.median => Some(self.median - worked),
            _ if worked < self.slow => Some(self.slow - worked),
            _ => None,
        }
    }
}

/// Whoever has waited for less than this says nothing about those that have the slots.
const SHORT_WAIT: Duration = Duration::from_secs(3);
const NO_PACE: &str = "too few runs of this session and of this pool have ended to tell";

/// When the run starts, goes on or ends. Nothing for one that is over.
pub(super) fn estimate(situation: &Situation, waits: &[Wait]) -> Option<Estimate> {
    let run = &situation.run;
    let again = if run.attempt > 0 || run.started_at.is_some() { "resume" } else { "start" };
    match (run.state, situation.head.owner) {
        (RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::TimedOut, _) => None,
        (RunState::Parked, _) => Some(parked(situation, waits)),
        (RunState::Running, Owner::Alive { .. }) => Some(executing(situation)),
        (RunState::Queued, _) if situation.ahead > 0 => Some(behind(situation)),
        (RunState::Running | RunState::Queued, _) => Some(waiting(situation, again)),
    }
}

fn parked(situation: &Situation, waits: &[Wait]) -> Estimate {
    let reason = situation.run.parked.map(|parked| parked.reason);
    if waits.is_empty() && reason.is_some_and(|reason| reason != ParkReason::External) {
        return Estimate::any_moment("resume", "what it waited for has come");
    }
    let approvals = || waits.iter().filter(|wait| wait.kind == "approval");
    // Each question has to be decided or to expire.
    let expiry = approvals().map(|wait| wait.expires_at).collect::<Option<Vec<_>>>();
    let expiry = expiry.and_then(|all| all.into_iter().max());
    let children = waits.iter().filter(|wait| wait.kind == "child").count();
    let basis = match reason {
        _ if approvals().next().is_some() => "it waits for a person".to_owned(),
        Some(ParkReason::Approval) => "it waits for a person".to_owned(),
        Some(ParkReason::Children) => {
            format!("it waits for {}, each with an estimate of its own", counted(children, "child run"))
        }
        Some(ParkReason::Budget) => "it waits for someone to raise a budget".to_owned(),
        Some(ParkReason::External) | None => "it waits for something outside".to_owned(),
    };
    Estimate::unknown("resume", basis).not_after(expiry.filter(|_| children == 0))
}

fn executing(situation: &Situation) -> Estimate {
    let Situation { run, outlook, .. } = situation;
    if run.cancel.is_some() {
        return Estimate::any_moment("end", "it is being stopped");
    }
    let worked = run::worked(run.started_at, outlook.now, run.paused);
    let so_far = format!("it has worked for {}", length(worked));
    let guess = match Pace::of(outlook) {
        None => Estimate::unknown("end", NO_PACE),
        Some(pace) => match pace.left(worked) {
            Some(left) if worked < pace.median => {
                Estimate::about("end", left, format!("{so_far}, {}", pace.words))
            }
            Some(left) => {
                let slow = length(pace.slow);
                Estimate::about("end", left, format!("{so_far}, {}, nine of ten at most {slow}", pace.words))
            }
            None => Estimate::unknown("end", format!("{so_far}, and {}", pace.words)),
        },
    };
    guess.not_after(run.deadline())
}

/// One whose session has others before it.
fn behind(situation: &Situation) -> Estimate {
    let Situation { ahead, outlook, head, .. } = situation;
    let Some(front) = outlook.front else { return Estimate::unknown("start", NO_PACE) };
    if let Some(parked) = front.parked {
        let what = match parked.reason {
            ParkReason::Approval => "a person",
            ParkReason::Children => "runs of child sessions",
            ParkReason::Budget => "a budget to be raised",
            ParkReason::External => "something outside",
        };
        return Estimate::unknown("start", format!("{} is ahead and waits for {what}", front.run));
    }
    let Some(pace) = Pace::of(outlook) else { return Estimate::unknown("start", NO_PACE) };
    let between = |runs: i64| pace.median.saturating_mul(u32::try_from(runs).unwrap_or(u32::MAX));
    let basis = format!("{} ahead, {}", counted_are(*ahead, "run"), pace.words);
    if front.state == RunState::Running && matches!(head.owner, Owner::Alive { .. }) {
        return match pace.left(front.worked) {
            Some(left) => Estimate::about("start", left.saturating_add(between(ahead - 1)), basis),
            None => {
                let so_far = length(front.worked);
                Estimate::unknown(
                    "start",
                    format!("{} ahead has worked for {so_far}, and {}", front.run, pace.words),
                )
            }
        };
    }
    // The first of them has no worker yet.
    let first = waiting(situation, "start");
    match first.about {
        Some(guess) => Estimate::about("start", guess.saturating_add(between(*ahead)), basis),
        None => first,
    }
}

/// One that could start, or go on, as soon as a worker takes its session.
fn waiting(situation: &Situation, of: &'static str) -> Estimate {
    let Situation { outlook, workers, free_slots, head, .. } = situation;
    if *workers == 0 {
        let basis = match outlook.draining {
            0 => format!("no worker of the pool {} is alive", head.pool),
            draining => format!("the pool's {} being drained", counted_are(draining, "worker")),
        };
        return Estimate::unknown(of, basis);
    }
    if let Owner::Alive { worker, .. } = head.owner {
        return Estimate::any_moment(of, format!("worker {worker} has the session"));
    }
    let nobody = Place { ahead: 0, runs_ahead: 0, at_least: false };
    let Place { ahead, runs_ahead, at_least } = outlook.place.unwrap_or(nobody);
    if i64::from(*free_slots) > ahead {
        return Estimate::any_moment(of, format!("{} free", counted_are(*free_slots, "slot")));
    }
    let sessions = counted(ahead, "session");
    if at_least {
        return Estimate::unknown(of, format!("at least {sessions} of the pool come before it"));
    }
    let slots = outlook.slots.max(1);
    let Some(pace) = Pace::of(outlook) else {
        return Estimate::unknown(of, format!("all {} are busy, {NO_PACE}", counted(slots, "slot")));
    };
    // Slots become free one after another, each once in a run's time, and a session keeps its slot for several of its runs.
    let turns = runs_ahead.max(ahead) + 1 - i64::from(*free_slots);
    let turns = u32::try_from(turns).unwrap_or(u32::MAX);
    let guess = pace.median.saturating_mul(turns) / slots;
    // What has the slots is slower than what the guess is made of.
    let waited = free_since(situation).map(|at| ago(at, outlook.now)).unwrap_or_default();
    if waited > pace.slow.saturating_mul(turns.div_ceil(slots)).max(SHORT_WAIT) {
        let basis = format!("it has waited for {}, though {}", length(waited), pace.words);
        return Estimate::unknown(of, basis);
    }
    // Who comes first is decided by tokens, which are about as old as the runs.
    let others = match ahead {
        0 => "no session".to_owned(),
        _ => format!("about {sessions} with {}", counted(runs_ahead, "run")),
    };
    let basis = format!("{others} before it for {}, {}", counted(slots, "slot"), pace.words);
    Estimate::about(of, guess, basis)
}

/// Since when a run that waits for a worker could have been taken; nothing when that is not written down.
pub(super) fn free_since(situation: &Situation) -> Option<Timestamp> {
    let Situation { run, outlook, .. } = situation;
    let first = run.attempt == 0 && run.state == RunState::Queued;
    first.then(|| outlook.previous_end.map_or(run.created_at, |end| end.max(run.created_at)))
}

/// How long ago that was.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> Duration {
    (now - at).max(TimeDelta::zero()).to_std().unwrap_or_default()
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
