//! Every accepted run has one end, and one that makes sense.

use std::collections::{HashMap, HashSet};

use remuda_domain::RunState;

use super::{Facts, Verdict, Violation};
use crate::history::{Answer, EventKind, FoundRun, Seen, Submit};

pub(super) fn check(facts: &Facts<'_>, verdict: &mut Verdict) {
    let ends = terminal_events(facts);
    for submit in &facts.history.submits {
        check_submit(facts, submit, &ends, verdict);
    }
    check_duplicates(facts, &ends, verdict);
}

type Ends<'a> = HashMap<&'a str, Vec<RunState>>;

fn ends_in<'a>(events: impl IntoIterator<Item = &'a Seen>) -> Ends<'a> {
    let mut ends = Ends::new();
    for seen in events {
        if let EventKind::Ended(state) = seen.kind {
            ends.entry(&seen.run).or_default().push(state);
        }
    }
    ends
}

fn terminal_events<'a>(facts: &Facts<'a>) -> Ends<'a> {
    ends_in(facts.history.streams.values().flatten())
}

fn check_submit(facts: &Facts<'_>, submit: &Submit, ends: &Ends<'_>, verdict: &mut Verdict) {
    let run = match &submit.answer {
        Answer::Accepted { run: id } => {
            let Some(run) = facts.run(id) else {
                verdict.found(Violation::Lost, format!("run {id} was accepted and is not there any more"));
                return;
            };
            run
        }
        // It may have been committed before the answer was lost. If so, it counts like any other.
        Answer::Unknown(_) => match facts.run_of_key(&submit.key) {
            Some(run) => run,
            None => return,
        },
        Answer::Refused(code) => {
            if let Some(run) = facts.run_of_key(&submit.key) {
                let sentence = format!("run {} exists although its submit was refused ({code})", run.id);
                verdict.found(Violation::Dishonest, sentence);
            }
            return;
        }
    };
    if run.session != submit.session {
        let sentence = format!("run {} is in {} instead of {}", run.id, run.session, submit.session);
        verdict.found(Violation::Dishonest, sentence);
    }
    if !run.state.is_terminal() {
        verdict.found(Violation::Lost, format!("run {} is still {}", run.id, run.state.as_str()));
        return;
    }
    verdict.terminal += 1;
    *verdict.ends.entry(run.state.as_str()).or_default() += 1;
    match ends.get(&*run.id).map(Vec::as_slice) {
        None => verdict.found(Violation::Lost, format!("run {} has no terminal event", run.id)),
        Some([state]) if *state != run.state => {
            let (told, is) = (state.as_str(), run.state.as_str());
            let sentence = format!("run {} ended as {told} by its event and as {is} by GetRun", run.id);
            verdict.found(Violation::Duplicated, sentence);
        }
        Some(_) => {}
    }
    check_reason(submit, run, verdict);
}

/// Runs that fail, time out or are cancelled without a cause are wrong, too.
fn check_reason(submit: &Submit, run: &FoundRun, verdict: &mut Verdict) {
    let expected = match run.state {
        // A run whose workers kept dying is given up at some point, and says so.
        RunState::Failed => submit.expects.may_fail || run.failure_code == "attempts_exhausted",
        RunState::Cancelled => submit.expects.may_be_cancelled,
        RunState::TimedOut => submit.expects.may_time_out,
        RunState::Completed | RunState::Queued | RunState::Running | RunState::Parked => true,
    };
    if !expected {
        let sentence =
            format!("run {} ended as {} ({}) without a reason", run.id, run.state.as_str(), run.failure_code);
        verdict.found(Violation::Dishonest, sentence);
    }
}

fn check_duplicates(facts: &Facts<'_>, ends: &Ends<'_>, verdict: &mut Verdict) {
    let mut by_key: HashMap<&str, Vec<&FoundRun>> = HashMap::new();
    for run in facts.history.runs.iter().filter(|run| !run.key.is_empty()) {
        by_key.entry(&run.key).or_default().push(run);
    }
    for (key, runs) in by_key {
        if runs.len() > 1 {
            let ids: Vec<&str> = runs.iter().map(|run| &*run.id).collect();
            verdict.found(Violation::Duplicated, format!("one submit, {key}, made the runs {ids:?}"));
        } else if !facts.is_submitted(key) {
            verdict.found(Violation::Duplicated, format!("nobody submitted run {}", runs[0].id));
        }
    }
    let mut known = HashSet::new();
    let mut report = |who: &str, ends: &Ends<'_>| {
        for (run, states) in ends.iter().filter(|(_, states)| states.len() > 1) {
            if known.insert((*run).to_owned()) {
                let states: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
                verdict.found(Violation::Duplicated, format!("{who} has run {run} end as {states:?}"));
            }
        }
    };
    report("the stream", ends);
    for reading in &facts.history.readings {
        report(&reading.reader, &ends_in(&reading.seen));
    }
}
