//! Runs of a session start in submission order, one after the other.

use std::collections::{HashMap, HashSet};

use super::{HistoryIndex, Verdict, Violation};
use crate::observed_history::{Effect, EventKind, FinalRun, Mark, ObservedEvent};

pub(super) fn check(index: &HistoryIndex<'_>, verdict: &mut Verdict) {
    let mut sessions: HashMap<&str, Vec<&FinalRun>> = HashMap::new();
    for run in &index.history.runs {
        sessions.entry(&run.session).or_default().push(run);
    }
    for (session, mut runs) in sessions {
        runs.sort_by_key(|run| run.seq);
        check_queue_order(index, &runs, verdict);
        check_journal(index, session, &runs, verdict);
    }
    for (session, stream) in &index.history.streams {
        check_events(index, session, stream, verdict);
    }
}

/// Checks that a run which was accepted before another was sent is queued before it.
fn check_queue_order(index: &HistoryIndex<'_>, runs: &[&FinalRun], verdict: &mut Verdict) {
    let mut earliest: Option<(i64, &FinalRun)> = None;
    for run in runs.iter().rev() {
        let Some(submit) = index.submit_of(run) else { continue };
        if let Some((accepted, later)) = earliest
            && accepted < submit.sent
        {
            let message = format!("run {} was accepted before {} but is queued behind it", later.id, run.id);
            verdict.record(Violation::Order, message);
        }
        if earliest.is_none_or(|(accepted, _)| submit.answered < accepted) {
            earliest = Some((submit.answered, run));
        }
    }
}

/// Checks the order of the events.
fn check_events(index: &HistoryIndex<'_>, session: &str, stream: &[ObservedEvent], verdict: &mut Verdict) {
    let mut running: Option<&str> = None;
    let mut last_seq = 0;
    let mut known: HashSet<&str> = HashSet::new();
    for seen in stream {
        match seen.kind {
            // A second start of the same run is a new attempt.
            EventKind::Started => {
                if let Some(other) = running.filter(|other| *other != &*seen.run) {
                    let message = format!("run {} of {session} started while {other} was running", seen.run);
                    verdict.record(Violation::Overlap, message);
                }
                running = Some(&seen.run);
                // A missing run has no sequence number; `check_submit` reports it as lost.
                let Some(run) = index.run(&seen.run) else { continue };
                if known.insert(&seen.run) && run.seq < last_seq {
                    let message = format!("run {} of {session} started after a later one", seen.run);
                    verdict.record(Violation::Order, message);
                }
                last_seq = last_seq.max(run.seq);
            }
            EventKind::Ended(_) if running == Some(&*seen.run) => running = None,
            EventKind::Ended(_) | EventKind::HandedOver | EventKind::Lost | EventKind::Other => {}
        }
    }
}

/// Checks the order of the journal lines. All tools use one clock, and the first line of a script is written after all that
/// preceded it.
fn check_journal(index: &HistoryIndex<'_>, session: &str, runs: &[&FinalRun], verdict: &mut Verdict) {
    let mut lines: Vec<(&Effect, &FinalRun)> = runs
        .iter()
        .flat_map(|run| index.effects_of(&run.key).iter().map(move |effect| (*effect, *run)))
        .collect();
    lines.sort_by_key(|(effect, _)| effect.at);
    let mut latest: Option<&FinalRun> = None;
    let mut begun: HashSet<&str> = HashSet::new();
    let mut reported: HashSet<&str> = HashSet::new();
    for (effect, run) in lines {
        let is_first = begun.insert(&run.id);
        let Some(later) = latest.filter(|latest| latest.seq > run.seq) else {
            latest = Some(run);
            continue;
        };
        if !reported.insert(&run.id) {
            continue;
        }
        if is_first && effect.mark == Mark::Start {
            let message = format!("tools of run {} of {session} started after those of {}", run.id, later.id);
            verdict.record(Violation::Order, message);
        } else {
            let message = format!(
                "tools of run {} of {session} executed at the same time as those of {}",
                run.id, later.id
            );
            verdict.record(Violation::Overlap, message);
        }
    }
}
