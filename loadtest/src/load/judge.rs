//! Whether the promises were kept, as seen from outside.
//!
//! Every run is looked at: that it completed, and that the runs of its session were executed one after the other in their order. Of some
//! sessions the whole event streams are read back and given to the checker that judges chaos, too.

use std::{collections::HashMap, sync::Arc};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use remuda_domain::RunState;

use super::{RunFact, Site};
use crate::{
    check::{Verdict, Violation, check},
    history::{Answer, CallPlan, Expectation, FoundRun, History, Outcome, Seen, Submit},
    workload::{Subscriber, replay},
};

/// Sessions whose streams are read back.
const SAMPLE: usize = 200;
const READS_AT_ONCE: usize = 16;

pub(super) async fn judge(site: &Site, calls: usize, facts: &[RunFact]) -> anyhow::Result<Verdict> {
    let mut of_sessions: HashMap<usize, Vec<&RunFact>> = HashMap::new();
    for fact in facts {
        of_sessions.entry(fact.session).or_default().push(fact);
    }
    let sample: Vec<(usize, i64)> = of_sessions
        .iter()
        .take(SAMPLE)
        .map(|(session, facts)| (*session, facts.iter().map(|fact| fact.seq).max().unwrap_or(0)))
        .collect();
    let subscriber = Subscriber::new(&site.addresses)?;
    let streams: HashMap<Arc<str>, Vec<Seen>> = stream::iter(&sample)
        .map(|(session, runs)| read_back(site, &subscriber, site.sessions.id(*session), *runs))
        .buffer_unordered(READS_AT_ONCE)
        .try_collect()
        .await?;
    let mut history = History { streams, ..History::default() };
    for fact in sample.iter().flat_map(|(session, _)| &of_sessions[session]) {
        let session = site.sessions.id(fact.session);
        history.submits.push(submit(&session, calls, fact));
        history.runs.push(found(&session, calls, fact));
    }
    let mut verdict = check(&history);
    for (session, facts) in &mut of_sessions {
        in_order(&site.sessions.id(*session), facts, &mut verdict);
    }
    Ok(verdict)
}

/// The whole stream of a session that has had so many runs.
async fn read_back(
    site: &Site,
    subscriber: &Subscriber,
    session: Arc<str>,
    runs: i64,
) -> anyhow::Result<(Arc<str>, Vec<Seen>)> {
    let last = site.last_cursor(&session).await?;
    anyhow::ensure!(last >= runs, "{session} has {last} events of {runs} runs");
    let seen = replay(subscriber, &session, last).await?;
    Ok((session, seen))
}

fn submit(session: &Arc<str>, calls: usize, fact: &RunFact) -> Submit {
    Submit {
        // Submits without a key are told apart by their runs.
        key: fact.id.clone(),
        session: Arc::clone(session),
        sent: fact.sent,
        answered: fact.answered,
        answer: Answer::Accepted { run: fact.id.as_str().into() },
        calls: vec![CallPlan::default(); calls],
        expects: Expectation::default(),
    }
}

fn found(session: &Arc<str>, calls: usize, fact: &RunFact) -> FoundRun {
    let outcome = Outcome { status: "completed".to_owned(), exit_code: None, signalled: false };
    FoundRun {
        id: fact.id.as_str().into(),
        key: fact.id.clone(),
        session: Arc::clone(session),
        seq: fact.seq,
        state: if fact.completed { RunState::Completed } else { RunState::Failed },
        failure_code: String::new(),
        outcomes: vec![Some(outcome); calls],
        steps: Vec::new(),
    }
}

/// Judges the runs of one session by the server's own times, which are the database's.
fn in_order(session: &str, facts: &mut [&RunFact], verdict: &mut Verdict) {
    facts.sort_unstable_by_key(|fact| fact.seq);
    for fact in facts.iter().filter(|fact| !fact.completed) {
        verdict.found(Violation::Lost, format!("run {} did not complete", fact.id));
    }
    for pair in facts.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        if first.seq == second.seq {
            verdict.found(
                Violation::Duplicated,
                format!("{} and {} are both number {} of {session}", first.id, second.id, first.seq),
            );
        }
        if second.started < first.finished {
            verdict.found(Violation::Overlap, format!("{} started before {} had ended", second.id, first.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(seq: i64, started: i64, finished: i64) -> RunFact {
        let id = format!("run-{seq}-{started}");
        RunFact { session: 0, id, seq, completed: true, sent: 0, answered: 100, started, finished }
    }

    fn judged(facts: &[RunFact]) -> Vec<(Violation, u64)> {
        let mut verdict = Verdict::default();
        in_order("s", &mut facts.iter().collect::<Vec<_>>(), &mut verdict);
        let counts = Violation::ALL.map(|violation| (violation, verdict.count(violation)));
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    #[test]
    fn one_after_the_other_is_in_order() {
        assert_eq!(judged(&[fact(2, 20, 30), fact(1, 10, 20), fact(5, 31, 40)]), []);
    }

    #[test]
    fn overlaps_and_repeated_numbers_are_seen() {
        assert_eq!(judged(&[fact(1, 10, 20), fact(2, 19, 30)]), [(Violation::Overlap, 1)]);
        assert_eq!(judged(&[fact(1, 10, 20), fact(1, 20, 30)]), [(Violation::Duplicated, 1)]);
        let failed = RunFact { completed: false, ..fact(1, 10, 20) };
        assert_eq!(judged(&[failed]), [(Violation::Lost, 1)]);
    }
}
