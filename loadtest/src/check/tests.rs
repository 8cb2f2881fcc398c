//! Histories written by hand: a good one, and one for every kind of broken promise.

use std::sync::Arc;

use remuda_domain::RunState;

use super::*;
use crate::history::{
    Answer, CallPlan, Effect, EventKind, Expectation, FoundRun, Lifetime, Mark, Micros, Outcome, Reading,
    Seen, Submit,
};

const MS: Micros = 1000;

fn completed() -> Outcome {
    Outcome { status: "completed".into(), exit_code: Some(0), signalled: false }
}

fn effect(at: Micros, run: &str, call: usize, mark: Mark) -> Effect {
    Effect { at: at * MS, key: format!("key-{run}"), call, mark, pid: 7 }
}

fn seen(cursor: i64, at: Micros, kind: EventKind, run: &str) -> Seen {
    Seen { cursor, kind, run: run.into(), at: at * MS, received: (at + 1) * MS }
}

fn submit(run: &str, sent: Micros) -> Submit {
    let call = |group| CallPlan { journal: Some(0), group };
    Submit {
        key: format!("key-{run}"),
        session: "s".into(),
        sent: sent * MS,
        answered: (sent + 2) * MS,
        answer: Answer::Accepted { run: run.into() },
        calls: vec![call(0), call(1)],
        expects: Expectation::default(),
    }
}

fn found(run: &str, seq: i64) -> FoundRun {
    FoundRun {
        id: run.into(),
        key: format!("key-{run}"),
        session: "s".into(),
        seq,
        state: RunState::Completed,
        failure_code: String::new(),
        outcomes: vec![Some(completed()), Some(completed())],
        steps: vec![(0, Some(completed())), (1, Some(completed()))],
    }
}

/// How a call of a run is said to have ended.
fn outcome(history: &mut History, run: usize, call: usize) -> &mut Outcome {
    history.runs[run].steps.retain(|(index, _)| *index != call);
    history.runs[run].outcomes[call].as_mut().unwrap()
}

/// Two runs of two calls each; the second is taken over by another worker before its second call.
fn good() -> History {
    use EventKind::{Ended, Other, Started};
    use Mark::{End, Start, Tick};
    let stream = vec![
        seen(1, 0, Other, ""),
        seen(2, 11, Other, "a"),
        seen(3, 15, Started, "a"),
        seen(4, 21, Other, "b"),
        seen(5, 60, Ended(RunState::Completed), "a"),
        seen(6, 62, Started, "b"),
        seen(7, 90, Started, "b"),
        seen(8, 120, Ended(RunState::Completed), "b"),
    ];
    let late = Reading {
        reader: "late".into(),
        session: "s".into(),
        after: 4,
        seen: stream[4..].to_vec(),
        refused: Vec::new(),
    };
    let first = Reading {
        reader: "first".into(),
        after: 0,
        seen: stream.clone(),
        session: "s".into(),
        refused: Vec::new(),
    };
    History {
        submits: vec![submit("a", 10), submit("b", 20)],
        cancels: Vec::new(),
        runs: vec![found("a", 1), found("b", 2)],
        streams: [(Arc::from("s"), stream)].into(),
        readings: vec![first, late],
        effects: vec![
            effect(30, "a", 0, Start),
            effect(35, "a", 0, Tick),
            effect(40, "a", 0, End),
            effect(45, "a", 1, Start),
            effect(50, "a", 1, End),
            effect(65, "b", 0, Start),
            effect(70, "b", 0, End),
            effect(95, "b", 1, Start),
            effect(100, "b", 1, End),
        ],
        processes: [("key-a".to_owned(), Lifetime { pid: 7, last_seen: 50 * MS, gone_by: Some(70 * MS) })]
            .into(),
    }
}

/// Breaks the good history and expects exactly these violations.
#[track_caller]
fn breaks(change: impl FnOnce(&mut History), expected: &[Violation]) {
    let mut history = good();
    change(&mut history);
    let verdict = check(&history);
    let times = |kind| usize::try_from(verdict.count(kind)).unwrap();
    let counted: Vec<Violation> =
        Violation::ALL.into_iter().flat_map(|kind| vec![kind; times(kind)]).collect();
    assert_eq!(counted, expected, "{:#?}", verdict.sentences());
    assert_eq!(verdict.sentences().len(), expected.len());
}

fn stream(history: &mut History) -> &mut Vec<Seen> {
    history.streams.get_mut("s").unwrap()
}

#[test]
fn a_good_history_has_no_violation() {
    breaks(|_| {}, &[]);
    let verdict = check(&good());
    assert_eq!((verdict.submitted, verdict.accepted, verdict.terminal), (2, 2, 2));
    assert_eq!(verdict.ends["completed"], 2);
}

#[test]
fn lost_runs() {
    breaks(|history| history.runs[1].state = RunState::Running, &[Violation::Lost]);
    breaks(
        |history| {
            history.runs.pop();
            history.effects.retain(|effect| effect.key == "key-a");
        },
        &[Violation::Lost],
    );
    // Unknown and absent is fine, unknown and present must end.
    breaks(
        |history| {
            history.submits.push(Submit { answer: Answer::Unknown("?".into()), ..submit("c", 30) });
            history.submits[1].answer = Answer::Unknown("?".into());
        },
        &[],
    );
    breaks(
        |history| {
            history.submits[1].answer = Answer::Unknown("?".into());
            history.runs[1].state = RunState::Queued;
        },
        &[Violation::Lost],
    );
}

#[test]
fn a_run_without_a_terminal_event_is_lost_and_one_with_two_duplicated() {
    breaks(
        |history| {
            stream(history)[4].kind = EventKind::Other;
            history.readings.clear();
        },
        // Without its end, it was also still running when the next one started.
        &[Violation::Lost, Violation::Overlap],
    );
    breaks(
        |history| {
            stream(history).push(seen(9, 130, EventKind::Ended(RunState::Failed), "b"));
            history.readings.clear();
        },
        &[Violation::Duplicated],
    );
    breaks(
        |history| stream(history)[7].kind = EventKind::Ended(RunState::Failed),
        &[Violation::Duplicated, Violation::CursorHole, Violation::CursorHole],
    );
}

#[test]
fn a_reader_that_gets_an_end_twice() {
    breaks(
        |history| history.readings[0].seen.push(seen(8, 121, EventKind::Ended(RunState::Completed), "b")),
        &[Violation::Duplicated, Violation::CursorHole],
    );
}

#[test]
fn a_submit_with_two_runs() {
    breaks(
        |history| {
            let twin = FoundRun { id: "twin".into(), state: RunState::Failed, ..found("b", 3) };
            history.runs.insert(1, FoundRun { outcomes: vec![None, None], steps: Vec::new(), ..twin });
        },
        // Both have the key that their tools write, so these seem to be of both, and the twin says nothing of its calls.
        &[Violation::Duplicated, Violation::Overlap, Violation::Dishonest, Violation::Dishonest],
    );
    breaks(|history| drop(history.submits.pop()), &[Violation::Duplicated]);
}

#[test]
fn wrong_order() {
    // By the places: `b` was accepted long before `a` was sent.
    breaks(
        |history| {
            history.submits[0].sent = 23 * MS;
            history.submits[0].answered = 25 * MS;
        },
        &[Violation::Order],
    );
    // By the events and by the journal: `a` has the later place.
    breaks(
        |history| {
            history.submits[0].sent = 20 * MS;
            history.submits[0].answered = 22 * MS;
            history.runs[0].seq = 3;
        },
        &[Violation::Order, Violation::Order],
    );
}

#[test]
fn overlapping_runs_and_calls() {
    breaks(|history| history.effects[4].at = 66 * MS, &[Violation::Overlap]);
    breaks(|history| history.effects[2].at = 46 * MS, &[Violation::Overlap]);
    // Parallel calls may overlap.
    breaks(
        |history| {
            history.submits[0].calls[1].group = 0;
            history.effects[2].at = 46 * MS;
        },
        &[],
    );
}

#[test]
fn executed_twice() {
    breaks(|history| history.effects.push(effect(110, "b", 1, Mark::Start)), &[Violation::Reexecuted]);
}

#[test]
fn dishonest_answers() {
    // Never executed; cut short; another exit code; skipped and yet executed.
    breaks(|history| history.effects.truncate(7), &[Violation::Dishonest]);
    breaks(|history| drop(history.effects.pop()), &[Violation::Dishonest]);
    breaks(|history| outcome(history, 0, 0).exit_code = Some(125), &[Violation::Dishonest]);
    breaks(|history| outcome(history, 0, 1).status = "skipped".into(), &[Violation::Dishonest]);
    // Killed by somebody, and said so.
    breaks(
        |history| {
            history.effects.pop();
            *outcome(history, 1, 1) = Outcome { exit_code: None, signalled: true, ..completed() };
        },
        &[],
    );
    // The step says something else; there is no outcome; there are fewer calls.
    breaks(
        |history| history.runs[0].steps[1] = (1, Some(Outcome { exit_code: Some(3), ..completed() })),
        &[Violation::Dishonest],
    );
    breaks(|history| history.runs[0].outcomes[1] = None, &[Violation::Dishonest]);
    breaks(|history| drop(history.runs[0].outcomes.pop()), &[Violation::Dishonest]);
    // Cancelled by nobody; in another session; refused and yet there; tools of no run.
    breaks(
        |history| {
            history.runs[0].state = RunState::Cancelled;
            stream(history)[4].kind = EventKind::Ended(RunState::Cancelled);
            history.readings.clear();
        },
        &[Violation::Dishonest],
    );
    breaks(|history| history.submits[0].session = "other".into(), &[Violation::Dishonest]);
    breaks(|history| history.submits[0].answer = Answer::Refused("no".into()), &[Violation::Dishonest]);
    breaks(|history| history.effects.push(effect(30, "x", 0, Mark::Start)), &[Violation::Dishonest]);
}

#[test]
fn only_a_run_that_never_began_owes_no_outcomes() {
    let unattended = |state: RunState| {
        move |history: &mut History| {
            history.submits[1].expects.may_be_cancelled = true;
            history.runs[1].state = state;
            history.runs[1].outcomes = vec![None, None];
            history.runs[1].steps[1].1 = None;
            stream(history)[7].kind = EventKind::Ended(state);
            history.readings.clear();
        }
    };
    for state in [RunState::Cancelled, RunState::Completed] {
        breaks(unattended(state), &[Violation::Dishonest, Violation::Dishonest]);
    }
    breaks(
        |history| {
            unattended(RunState::Cancelled)(history);
            let key = history.runs[1].key.clone();
            history.effects.retain(|effect| effect.key != key);
        },
        &[],
    );
}

#[test]
fn orphans() {
    // A line long after the end; a process long after the end; a tool of the lost owner after the takeover.
    breaks(|history| history.effects[8].at = 230 * MS, &[Violation::Orphan]);
    breaks(
        |history| {
            history.processes.get_mut("key-a").unwrap().last_seen = 1100 * MS;
        },
        &[Violation::Orphan],
    );
    breaks(
        |history| {
            history.effects[6].at = 200 * MS;
            history.effects[7].at = 210 * MS;
            history.effects[8].at = 220 * MS;
            for seen in stream(history).iter_mut().filter(|seen| seen.cursor == 8) {
                (seen.at, seen.received) = (225 * MS, 226 * MS);
            }
            history.readings.clear();
        },
        &[Violation::Orphan],
    );
}

#[test]
fn a_server_with_a_wrong_clock_is_not_believed() {
    for at in [-3600 * 1000 * MS, 3600 * 1000 * MS] {
        breaks(
            |history| {
                let wrong = |seen: &mut Seen| seen.at = at;
                stream(history).iter_mut().for_each(wrong);
                history.readings.iter_mut().flat_map(|reading| &mut reading.seen).for_each(wrong);
            },
            &[],
        );
    }
}

#[test]
fn holes_in_cursors() {
    breaks(|history| drop(history.readings[0].seen.remove(3)), &[Violation::CursorHole]);
    breaks(|history| history.readings[0].seen.swap(2, 3), &[Violation::CursorHole; 3]);
    breaks(|history| drop(history.readings[1].seen.pop()), &[Violation::CursorHole]);
    breaks(|history| history.readings[1].refused.push("beyond".into()), &[Violation::CursorHole]);
    breaks(|history| history.readings[0].seen[1].run = "b".into(), &[Violation::CursorHole]);
    breaks(
        |history| {
            stream(history).remove(1);
            history.readings.clear();
        },
        &[Violation::CursorHole],
    );
}

#[test]
fn a_pause_is_counted_from_the_last_thing_a_tool_did() {
    let pauses = |history: &History, lost| Facts::new(history).pauses(lost).collect::<Vec<_>>();
    let mut history = good();
    // Nobody said how the second run came to its second worker: then the first one was lost.
    assert_eq!((pauses(&history, true), pauses(&history, false)), (vec![20 * MS], vec![]));
    for (kind, lost) in [(EventKind::Lost, true), (EventKind::HandedOver, false)] {
        stream(&mut history).retain(|seen| seen.cursor != 9);
        stream(&mut history).insert(6, seen(9, 80, kind, "b"));
        assert_eq!((pauses(&history, lost), pauses(&history, !lost)), (vec![20 * MS], vec![]));
    }
}
