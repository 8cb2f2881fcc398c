//! Side effects of tools match the reported outcomes, happen at most once, and end with their run.

use std::collections::HashSet;

use remuda_domain::RunState;

use super::{HistoryIndex, Verdict, Violation};
use crate::observed_history::{CallPlan, Effect, FinalRun, Mark, Micros, Outcome, Submit};

/// How much later than an event's server time a journal line of a tool may be.
const CLOCK_TOLERANCE: Micros = 100_000;
/// How long a process may be visible after the end of its run.
const PROCESS_TOLERANCE: Micros = 1_000_000;

pub(super) fn check(index: &HistoryIndex<'_>, verdict: &mut Verdict) {
    for run in &index.history.runs {
        let Some(submit) = index.submit_of(run) else { continue };
        let effects = index.effects_of(&run.key);
        check_calls(submit, run, effects, verdict);
        check_groups(submit, run, effects, verdict);
        check_outcomes(submit, run, effects, verdict);
        check_survivors(index, run, effects, verdict);
    }
    let keys: HashSet<&str> = index.history.effects.iter().map(|effect| effect.key.as_str()).collect();
    for key in keys.into_iter().filter(|key| index.run_of_key(key).is_none()) {
        verdict.record(Violation::Dishonest, format!("tools executed for {key}, which is no run"));
    }
}

fn starts(effects: &[&Effect], call: usize) -> usize {
    effects.iter().filter(|effect| effect.call == call && effect.mark == Mark::Start).count()
}

fn has_ended(effects: &[&Effect], call: usize) -> bool {
    effects.iter().any(|effect| effect.call == call && effect.mark == Mark::End)
}

/// Checks that each call with side effects was executed at most once.
fn check_calls(submit: &Submit, run: &FinalRun, effects: &[&Effect], verdict: &mut Verdict) {
    for call in 0..submit.calls.len() {
        let starts = starts(effects, call);
        if starts > 1 {
            verdict.record(
                Violation::Reexecuted,
                format!("call {call} of run {} was executed {starts} times", run.id),
            );
        }
    }
}

/// Checks that calls that are not parallel do not overlap.
fn check_groups(submit: &Submit, run: &FinalRun, effects: &[&Effect], verdict: &mut Verdict) {
    let mut latest = 0;
    let mut reported = HashSet::new();
    for effect in effects {
        let Some(CallPlan { group, .. }) = submit.calls.get(effect.call) else {
            verdict.record(Violation::Dishonest, format!("run {} has no call {}", run.id, effect.call));
            continue;
        };
        if *group < latest && reported.insert(effect.call) {
            let message =
                format!("call {} of run {} was executing after a later one started", effect.call, run.id);
            verdict.record(Violation::Overlap, message);
        }
        latest = latest.max(*group);
    }
}

/// Checks the reported outcomes against the journal.
fn check_outcomes(submit: &Submit, run: &FinalRun, effects: &[&Effect], verdict: &mut Verdict) {
    if run.outcomes.len() != submit.calls.len() {
        let message = format!("run {} does not have the submitted calls", run.id);
        verdict.record(Violation::Dishonest, message);
        return;
    }
    for (call, (plan, outcome)) in submit.calls.iter().zip(&run.outcomes).enumerate() {
        let step = run.steps.iter().find(|(index, _)| *index == call).and_then(|(_, step)| step.as_ref());
        let contradiction = match (outcome, step) {
            // Only a run that never started may lack outcomes.
            (None, _) if run.state == RunState::Completed || !effects.is_empty() => {
                Some("has no outcome".to_owned())
            }
            (Some(outcome), Some(step)) if outcome != step => {
                Some(format!("is {} by GetRun and {} by its step", outcome.status, step.status))
            }
            (Some(outcome), _) => plan.journal.and_then(|exit_code| {
                let contradiction =
                    contradiction(outcome, exit_code, starts(effects, call), has_ended(effects, call))?;
                Some(format!("is {} but {contradiction}", outcome.status))
            }),
            (None, _) => None,
        };
        if let Some(contradiction) = contradiction {
            verdict.record(Violation::Dishonest, format!("call {call} of run {} {contradiction}", run.id));
        }
    }
}

/// Describes how an outcome contradicts the journal.
fn contradiction(outcome: &Outcome, exit_code: i32, starts: usize, ended: bool) -> Option<String> {
    match outcome.status.as_str() {
        "completed" if starts == 0 => Some("was never executed".to_owned()),
        // The process was killed by a signal, and the outcome says so.
        "completed" if outcome.signalled => None,
        "completed" if !ended => Some("did not reach its end".to_owned()),
        "completed" if outcome.exit_code != Some(exit_code.into()) => {
            Some(format!("its exit code is {:?} instead of {exit_code}", outcome.exit_code))
        }
        "skipped" if starts > 0 => Some("was executed".to_owned()),
        _ => None,
    }
}

/// Checks that no tool outlives its run, and that no tool of a lost worker outlives the takeover.
fn check_survivors(index: &HistoryIndex<'_>, run: &FinalRun, effects: &[&Effect], verdict: &mut Verdict) {
    for takeover in index.takeovers_of(&run.id) {
        let limit = takeover.at + CLOCK_TOLERANCE;
        let begun_before = |call| {
            effects
                .iter()
                .any(|effect| effect.call == call && effect.mark == Mark::Start && effect.at < takeover.at)
        };
        if let Some(late) = effects.iter().find(|effect| effect.at > limit && begun_before(effect.call)) {
            let message = format!(
                "call {} of run {} was executing {} ms after the next worker had taken over",
                late.call,
                run.id,
                (late.at - takeover.at) / 1000
            );
            verdict.record(Violation::Orphan, message);
        }
    }
    let Some(end) = index.end_of(&run.id) else { return };
    if let Some(late) = effects.iter().rfind(|effect| effect.at > end + CLOCK_TOLERANCE) {
        let message = format!(
            "call {} of run {} was executing {} ms after its end",
            late.call,
            run.id,
            (late.at - end) / 1000
        );
        verdict.record(Violation::Orphan, message);
    } else if let Some(process) = index.history.processes.get(&run.key)
        && process.last_seen > end + PROCESS_TOLERANCE
    {
        let after = (process.last_seen - end) / 1000;
        let message = format!("process {} of run {} existed {after} ms after its end", process.pid, run.id);
        verdict.record(Violation::Orphan, message);
    }
}
