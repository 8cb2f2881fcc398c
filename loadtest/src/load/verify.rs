//! Checks the guarantees after a measurement, from outside.
//!
//! Every run must have completed, and the runs of a session must have executed one after the other in order. The event streams
//! of a sample of sessions are read back and passed to the checker of the fault tests.

use std::{collections::HashMap, sync::Arc};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use remuda_domain::RunState;

use super::{LoadTarget, ObservedRun};
use crate::{
    check::{Verdict, Violation, check},
    observed_history::{
        CallPlan, Expectation, FinalRun, History, ObservedEvent, Outcome, Submit, SubmitOutcome,
    },
    workload::{Subscriber, replay},
};

/// Sessions whose streams are read back.
const SAMPLE: usize = 200;
const READS_AT_ONCE: usize = 16;

pub(super) async fn verify(
    target: &LoadTarget,
    calls: usize,
    runs: &[ObservedRun],
) -> anyhow::Result<Verdict> {
    let mut by_session: HashMap<usize, Vec<&ObservedRun>> = HashMap::new();
    for run in runs {
        by_session.entry(run.session).or_default().push(run);
    }
    let sample: Vec<(usize, i64)> = by_session
        .iter()
        .take(SAMPLE)
        .map(|(session, runs)| (*session, runs.iter().map(|run| run.seq).max().unwrap_or(0)))
        .collect();
    let subscriber = Subscriber::new(&target.addresses)?;
    let streams: HashMap<Arc<str>, Vec<ObservedEvent>> = stream::iter(&sample)
        .map(|(session, runs)| read_back(target, &subscriber, target.sessions.id(*session), *runs))
        .buffer_unordered(READS_AT_ONCE)
        .try_collect()
        .await?;
    let mut history = History { streams, ..History::default() };
    for run in sample.iter().flat_map(|(session, _)| &by_session[session]) {
        let session = target.sessions.id(run.session);
        history.submits.push(submit(&session, calls, run));
        history.runs.push(final_run(&session, calls, run));
    }
    let mut verdict = check(&history);
    for (session, runs) in &mut by_session {
        check_order(&target.sessions.id(*session), runs, &mut verdict);
    }
    Ok(verdict)
}

/// Reads the whole stream of a session, which must have at least one event per run.
async fn read_back(
    target: &LoadTarget,
    subscriber: &Subscriber,
    session: Arc<str>,
    runs: i64,
) -> anyhow::Result<(Arc<str>, Vec<ObservedEvent>)> {
    let last = target.last_cursor(&session).await?;
    anyhow::ensure!(last >= runs, "{session} has {last} events for {runs} runs");
    let seen = replay(subscriber, &session, last).await?;
    Ok((session, seen))
}

fn submit(session: &Arc<str>, calls: usize, run: &ObservedRun) -> Submit {
    Submit {
        // Submits without a key are identified by their runs.
        key: run.id.clone(),
        session: Arc::clone(session),
        sent: run.sent,
        answered: run.answered,
        outcome: SubmitOutcome::Accepted { run: run.id.as_str().into() },
        calls: vec![CallPlan::default(); calls],
        expects: Expectation::default(),
    }
}

fn final_run(session: &Arc<str>, calls: usize, run: &ObservedRun) -> FinalRun {
    let outcome = Outcome { status: "completed".to_owned(), exit_code: None, signalled: false };
    FinalRun {
        id: run.id.as_str().into(),
        key: run.id.clone(),
        session: Arc::clone(session),
        seq: run.seq,
        state: if run.completed { RunState::Completed } else { RunState::Failed },
        failure_code: String::new(),
        outcomes: vec![Some(outcome); calls],
        steps: Vec::new(),
    }
}

/// Checks the runs of one session by the server's times, which are those of the database.
fn check_order(session: &str, runs: &mut [&ObservedRun], verdict: &mut Verdict) {
    runs.sort_unstable_by_key(|run| run.seq);
    for run in runs.iter().filter(|run| !run.completed) {
        verdict.record(Violation::Lost, format!("run {} did not complete", run.id));
    }
    for pair in runs.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        if first.seq == second.seq {
            verdict.record(
                Violation::Duplicated,
                format!("{} and {} are both number {} of {session}", first.id, second.id, first.seq),
            );
        }
        if second.started < first.finished {
            verdict
                .record(Violation::Overlap, format!("{} started before {} had ended", second.id, first.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seq: i64, started: i64, finished: i64) -> ObservedRun {
        let id = format!("run-{seq}-{started}");
        ObservedRun { session: 0, id, seq, completed: true, sent: 0, answered: 100, started, finished }
    }

    fn violations(runs: &[ObservedRun]) -> Vec<(Violation, u64)> {
        let mut verdict = Verdict::default();
        check_order("s", &mut runs.iter().collect::<Vec<_>>(), &mut verdict);
        let counts = Violation::ALL.map(|violation| (violation, verdict.count(violation)));
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    #[test]
    fn sequential_runs_have_no_violation() {
        assert_eq!(violations(&[run(2, 20, 30), run(1, 10, 20), run(5, 31, 40)]), []);
    }

    #[test]
    fn overlaps_repeated_numbers_and_failures_are_violations() {
        assert_eq!(violations(&[run(1, 10, 20), run(2, 19, 30)]), [(Violation::Overlap, 1)]);
        assert_eq!(violations(&[run(1, 10, 20), run(1, 20, 30)]), [(Violation::Duplicated, 1)]);
        let failed = ObservedRun { completed: false, ..run(1, 10, 20) };
        assert_eq!(violations(&[failed]), [(Violation::Lost, 1)]);
    }
}
