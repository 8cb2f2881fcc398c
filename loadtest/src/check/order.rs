//! Runs of a session start in the order of their submission, one after the other.

use std::collections::{HashMap, HashSet};

use super::{Facts, Verdict, Violation};
use crate::history::{Effect, EventKind, FoundRun, Mark, Seen};

pub(super) fn check(facts: &Facts<'_>, verdict: &mut Verdict) {
    let mut sessions: HashMap<&str, Vec<&FoundRun>> = HashMap::new();
    for run in &facts.history.runs {
        sessions.entry(&run.session).or_default().push(run);
    }
    for (session, mut runs) in sessions {
        runs.sort_by_key(|run| run.seq);
        check_places(facts, &runs, verdict);
        check_journal(facts, session, &runs, verdict);
    }
    for (session, stream) in &facts.history.streams {
        check_events(facts, session, stream, verdict);
    }
}

/// A run that was accepted before another was sent stands before it.
fn check_places(facts: &Facts<'_>, runs: &[&FoundRun], verdict: &mut Verdict) {
    let mut earliest: Option<(i64, &FoundRun)> = None;
    for run in runs.iter().rev() {
        let Some(submit) = facts.submit_of(run) else { continue };
        if let Some((accepted, later)) = earliest
            && accepted < submit.sent
        {
            let sentence = format!("run {} was accepted before {} and stands behind it", later.id, run.id);
            verdict.found(Violation::Order, sentence);
        }
        if earliest.is_none_or(|(accepted, _)| submit.answered < accepted) {
            earliest = Some((submit.answered, run));
        }
    }
}

/// What the events say.
fn check_events(facts: &Facts<'_>, session: &str, stream: &[Seen], verdict: &mut Verdict) {
    let mut running: Option<&str> = None;
    let mut last_place = 0;
    let mut known: HashSet<&str> = HashSet::new();
    for seen in stream {
        match seen.kind {
            // A second start of the same run is a new attempt.
            EventKind::Started => {
                if let Some(other) = running.filter(|other| *other != &*seen.run) {
                    let sentence = format!("run {} of {session} started while {other} was running", seen.run);
                    verdict.found(Violation::Overlap, sentence);
                }
                running = Some(&seen.run);
                // A run that is not there has no place; that it is lost is found elsewhere.
                let Some(run) = facts.run(&seen.run) else { continue };
                if known.insert(&seen.run) && run.seq < last_place {
                    let sentence = format!("run {} of {session} started after a later one", seen.run);
                    verdict.found(Violation::Order, sentence);
                }
                last_place = last_place.max(run.seq);
            }
            EventKind::Ended(_) if running == Some(&*seen.run) => running = None,
            EventKind::Ended(_) | EventKind::HandedOver | EventKind::Lost | EventKind::Other => {}
        }
    }
}

/// What the tools say. Their clock is one clock, and a script's first line is written after everything that came before it.
fn check_journal(facts: &Facts<'_>, session: &str, runs: &[&FoundRun], verdict: &mut Verdict) {
    let mut lines: Vec<(&Effect, &FoundRun)> = runs
        .iter()
        .flat_map(|run| facts.effects_of(&run.key).iter().map(move |effect| (*effect, *run)))
        .collect();
    lines.sort_by_key(|(effect, _)| effect.at);
    let mut latest: Option<&FoundRun> = None;
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
            let sentence =
                format!("tools of run {} of {session} started after those of {}", run.id, later.id);
            verdict.found(Violation::Order, sentence);
        } else {
            let sentence =
                format!("tools of run {} of {session} were at work when those of {} were", run.id, later.id);
            verdict.found(Violation::Overlap, sentence);
        }
    }
}
