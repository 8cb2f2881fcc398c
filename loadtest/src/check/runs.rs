//! Every accepted run has exactly one end, with a plausible cause.

use std::collections::{HashMap, HashSet};

use remuda_domain::RunState;

use super::{HistoryIndex, Verdict, Violation};
use crate::observed_history::{EventKind, FinalRun, ObservedEvent, Submit, SubmitOutcome};

pub(super) fn check(index: &HistoryIndex<'_>, verdict: &mut Verdict) {
    let ends = terminal_events(index);
    for submit in &index.history.submits {
        check_submit(index, submit, &ends, verdict);
    }
    check_duplicates(index, &ends, verdict);
}

type Ends<'a> = HashMap<&'a str, Vec<RunState>>;

fn ends_in<'a>(events: impl IntoIterator<Item = &'a ObservedEvent>) -> Ends<'a> {
    let mut ends = Ends::new();
    for seen in events {
        if let EventKind::Ended(state) = seen.kind {
            ends.entry(&seen.run).or_default().push(state);
        }
    }
    ends
}

fn terminal_events<'a>(index: &HistoryIndex<'a>) -> Ends<'a> {
    ends_in(index.history.streams.values().flatten())
}

fn check_submit(index: &HistoryIndex<'_>, submit: &Submit, ends: &Ends<'_>, verdict: &mut Verdict) {
    let run = match &submit.outcome {
        SubmitOutcome::Accepted { run: id } => {
            let Some(run) = index.run(id) else {
                verdict.record(Violation::Lost, format!("run {id} was accepted and does not exist"));
                return;
            };
            run
        }
        // The run may have been committed before the answer was lost. Then it counts like any other.
        SubmitOutcome::Unknown(_) => match index.run_of_key(&submit.key) {
            Some(run) => run,
            None => return,
        },
        SubmitOutcome::Refused(code) => {
            if let Some(run) = index.run_of_key(&submit.key) {
                let message = format!("run {} exists although its submit was refused ({code})", run.id);
                verdict.record(Violation::Dishonest, message);
            }
            return;
        }
    };
    if run.session != submit.session {
        let message = format!("run {} is in {} instead of {}", run.id, run.session, submit.session);
        verdict.record(Violation::Dishonest, message);
    }
    if !run.state.is_terminal() {
        verdict.record(Violation::Lost, format!("run {} is still {}", run.id, run.state.as_str()));
        return;
    }
    verdict.terminal += 1;
    *verdict.ends.entry(run.state.as_str()).or_default() += 1;
    match ends.get(&*run.id).map(Vec::as_slice) {
        None => verdict.record(Violation::Lost, format!("run {} has no terminal event", run.id)),
        Some([state]) if *state != run.state => {
            let (event, run_state) = (state.as_str(), run.state.as_str());
            let message =
                format!("run {} ended as {event} by its event and as {run_state} by GetRun", run.id);
            verdict.record(Violation::Duplicated, message);
        }
        Some(_) => {}
    }
    check_reason(submit, run, verdict);
}

/// Checks that a run which failed, timed out or was cancelled had a cause.
fn check_reason(submit: &Submit, run: &FinalRun, verdict: &mut Verdict) {
    let expected = match run.state {
        // A run whose workers keep dying fails with this code.
        RunState::Failed => submit.expects.may_fail || run.failure_code == "attempts_exhausted",
        RunState::Cancelled => submit.expects.may_be_cancelled,
        RunState::TimedOut => submit.expects.may_time_out,
        RunState::Completed | RunState::Queued | RunState::Running | RunState::Parked => true,
    };
    if !expected {
        let message =
            format!("run {} ended as {} ({}) without a cause", run.id, run.state.as_str(), run.failure_code);
        verdict.record(Violation::Dishonest, message);
    }
}

fn check_duplicates(index: &HistoryIndex<'_>, ends: &Ends<'_>, verdict: &mut Verdict) {
    let mut by_key: HashMap<&str, Vec<&FinalRun>> = HashMap::new();
    for run in index.history.runs.iter().filter(|run| !run.key.is_empty()) {
        by_key.entry(&run.key).or_default().push(run);
    }
    for (key, runs) in by_key {
        if runs.len() > 1 {
            let ids: Vec<&str> = runs.iter().map(|run| &*run.id).collect();
            verdict.record(Violation::Duplicated, format!("one submit, {key}, created the runs {ids:?}"));
        } else if !index.is_submitted(key) {
            verdict.record(Violation::Duplicated, format!("run {} was never submitted", runs[0].id));
        }
    }
    let mut known = HashSet::new();
    let mut report = |who: &str, ends: &Ends<'_>| {
        for (run, states) in ends.iter().filter(|(_, states)| states.len() > 1) {
            if known.insert((*run).to_owned()) {
                let states: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
                verdict.record(Violation::Duplicated, format!("{who} has run {run} end as {states:?}"));
            }
        }
    };
    report("the stream", ends);
    for log in &index.history.reader_logs {
        report(&log.reader, &ends_in(&log.events));
    }
}
