//! What tools did fits what was answered, happened once, and was over when it should be.

use std::collections::HashSet;

use remuda_domain::RunState;

use super::{Facts, Verdict, Violation};
use crate::history::{CallPlan, Effect, FoundRun, Mark, Micros, Outcome, Submit};

/// How far a line of a tool may lie behind an event that a server dated.
const CLOCK_TOLERANCE: Micros = 100_000;
/// How long a process may be visible after the end of its run.
const PROCESS_TOLERANCE: Micros = 1_000_000;

pub(super) fn check(facts: &Facts<'_>, verdict: &mut Verdict) {
    for run in &facts.history.runs {
        let Some(submit) = facts.submit_of(run) else { continue };
        let effects = facts.effects_of(&run.key);
        check_calls(submit, run, effects, verdict);
        check_groups(submit, run, effects, verdict);
        check_outcomes(submit, run, effects, verdict);
        check_survivors(facts, run, effects, verdict);
    }
    let keys: HashSet<&str> = facts.history.effects.iter().map(|effect| effect.key.as_str()).collect();
    for key in keys.into_iter().filter(|key| facts.run_of_key(key).is_none()) {
        verdict.found(Violation::Dishonest, format!("tools were at work for {key}, which is no run"));
    }
}

fn starts(effects: &[&Effect], call: usize) -> usize {
    effects.iter().filter(|effect| effect.call == call && effect.mark == Mark::Start).count()
}

fn has_ended(effects: &[&Effect], call: usize) -> bool {
    effects.iter().any(|effect| effect.call == call && effect.mark == Mark::End)
}

/// Each call with side effects is executed at most once.
fn check_calls(submit: &Submit, run: &FoundRun, effects: &[&Effect], verdict: &mut Verdict) {
    for call in 0..submit.calls.len() {
        let starts = starts(effects, call);
        if starts > 1 {
            verdict.found(
                Violation::Reexecuted,
                format!("call {call} of run {} was executed {starts} times", run.id),
            );
        }
    }
}

/// Calls that are not parallel do not overlap.
fn check_groups(submit: &Submit, run: &FoundRun, effects: &[&Effect], verdict: &mut Verdict) {
    let mut latest = 0;
    let mut reported = HashSet::new();
    for effect in effects {
        let Some(CallPlan { group, .. }) = submit.calls.get(effect.call) else {
            verdict.found(Violation::Dishonest, format!("run {} has no call {}", run.id, effect.call));
            continue;
        };
        if *group < latest && reported.insert(effect.call) {
            let sentence =
                format!("call {} of run {} was at work after a later one began", effect.call, run.id);
            verdict.found(Violation::Overlap, sentence);
        }
        latest = latest.max(*group);
    }
}

/// What was answered is what the journal says.
fn check_outcomes(submit: &Submit, run: &FoundRun, effects: &[&Effect], verdict: &mut Verdict) {
    if run.outcomes.len() != submit.calls.len() {
        let sentence = format!("run {} has other calls than were submitted", run.id);
        verdict.found(Violation::Dishonest, sentence);
        return;
    }
    for (call, (plan, outcome)) in submit.calls.iter().zip(&run.outcomes).enumerate() {
        let step = run.steps.iter().find(|(index, _)| *index == call).and_then(|(_, step)| step.as_ref());
        let lie = match (outcome, step) {
            // Only a run that never started may say nothing of its calls.
            (None, _) if run.state == RunState::Completed || !effects.is_empty() => {
                Some("has no outcome".to_owned())
            }
            (Some(outcome), Some(step)) if outcome != step => {
                Some(format!("is {} by GetRun and {} by its step", outcome.status, step.status))
            }
            (Some(outcome), _) => plan.journal.and_then(|exit_code| {
                let lie = lie(outcome, exit_code, starts(effects, call), has_ended(effects, call))?;
                Some(format!("is {} but {lie}", outcome.status))
            }),
            (None, _) => None,
        };
        if let Some(lie) = lie {
            verdict.found(Violation::Dishonest, format!("call {call} of run {} {lie}", run.id));
        }
    }
}

/// How an outcome contradicts what happened.
fn lie(outcome: &Outcome, exit_code: i32, starts: usize, ended: bool) -> Option<String> {
    match outcome.status.as_str() {
        "completed" if starts == 0 => Some("was never executed".to_owned()),
        // The process was killed by somebody else, and the answer says so.
        "completed" if outcome.signalled => None,
        "completed" if !ended => Some("did not come to its end".to_owned()),
        "completed" if outcome.exit_code != Some(exit_code.into()) => {
            Some(format!("its exit code is {:?} instead of {exit_code}", outcome.exit_code))
        }
        "skipped" if starts > 0 => Some("was executed".to_owned()),
        _ => None,
    }
}

/// Nothing outlives the run, and nothing of a lost owner outlives the next one's start.
fn check_survivors(facts: &Facts<'_>, run: &FoundRun, effects: &[&Effect], verdict: &mut Verdict) {
    for takeover in facts.takeovers_of(&run.id) {
        let limit = takeover.at + CLOCK_TOLERANCE;
        let begun_before = |call| {
            effects
                .iter()
                .any(|effect| effect.call == call && effect.mark == Mark::Start && effect.at < takeover.at)
        };
        if let Some(late) = effects.iter().find(|effect| effect.at > limit && begun_before(effect.call)) {
            let sentence = format!(
                "call {} of run {} was at work {} ms after the next worker had taken over",
                late.call,
                run.id,
                (late.at - takeover.at) / 1000
            );
            verdict.found(Violation::Orphan, sentence);
        }
    }
    let Some(end) = facts.end_of(&run.id) else { return };
    if let Some(late) = effects.iter().rfind(|effect| effect.at > end + CLOCK_TOLERANCE) {
        let sentence = format!(
            "call {} of run {} was at work {} ms after its end",
            late.call,
            run.id,
            (late.at - end) / 1000
        );
        verdict.found(Violation::Orphan, sentence);
    } else if let Some(process) = facts.history.processes.get(&run.key)
        && process.last_seen > end + PROCESS_TOLERANCE
    {
        let after = (process.last_seen - end) / 1000;
        let sentence =
            format!("process {} of run {} was there {after} ms after its end", process.pid, run.id);
        verdict.found(Violation::Orphan, sentence);
    }
}
