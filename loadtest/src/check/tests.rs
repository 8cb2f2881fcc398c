//! Handwritten histories: a valid one, and changed ones for every kind of violation.

use std::sync::Arc;

use remuda_domain::RunState;

use super::*;
use crate::observed_history::{
    CallPlan, Effect, EventKind, Expectation, FinalRun, Lifetime, Mark, Micros, ObservedEvent, Outcome,
    ReaderLog, Submit, SubmitOutcome,
};

const MS: Micros = 1000;

fn completed() -> Outcome {
    Outcome { status: "completed".into(), exit_code: Some(0), signalled: false }
}

fn effect(at: Micros, run: &str, call: usize, mark: Mark) -> Effect {
    Effect { at: at * MS, key: format!("key-{run}"), call, mark, pid: 7 }
}

fn event(cursor: i64, at: Micros, kind: EventKind, run: &str) -> ObservedEvent {
    ObservedEvent { cursor, kind, run: run.into(), at: at * MS, received: (at + 1) * MS }
}

fn submit(run: &str, sent: Micros) -> Submit {
    let call = |group| CallPlan { journal: Some(0), group };
    Submit {
        key: format!("key-{run}"),
        session: "s".into(),
        sent: sent * MS,
        answered: (sent + 2) * MS,
        outcome: SubmitOutcome::Accepted { run: run.into() },
        calls: vec![call(0), call(1)],
        expects: Expectation::default(),
    }
}

fn final_run(run: &str, seq: i64) -> FinalRun {
    FinalRun {
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

/// The reported outcome of a call, without its step.
fn outcome(history: &mut History, run: usize, call: usize) -> &mut Outcome {
    history.runs[run].steps.retain(|(index, _)| *index != call);
    history.runs[run].outcomes[call].as_mut().unwrap()
}

/// Two runs of two calls each; the second is taken over by another worker before its second call.
fn valid_history() -> History {
    use EventKind::{Ended, Other, Started};
    use Mark::{End, Start, Tick};
    let stream = vec![
        event(1, 0, Other, ""),
        event(2, 11, Other, "a"),
        event(3, 15, Started, "a"),
        event(4, 21, Other, "b"),
        event(5, 60, Ended(RunState::Completed), "a"),
        event(6, 62, Started, "b"),
        event(7, 90, Started, "b"),
        event(8, 120, Ended(RunState::Completed), "b"),
    ];
    let late = ReaderLog {
        reader: "late".into(),
        session: "s".into(),
        after: 4,
        events: stream[4..].to_vec(),
        refused: Vec::new(),
    };
    let first = ReaderLog {
        reader: "first".into(),
        after: 0,
        events: stream.clone(),
        session: "s".into(),
        refused: Vec::new(),
    };
    History {
        submits: vec![submit("a", 10), submit("b", 20)],
        cancels: Vec::new(),
        runs: vec![final_run("a", 1), final_run("b", 2)],
        streams: [(Arc::from("s"), stream)].into(),
        reader_logs: vec![first, late],
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

/// Changes the valid history and expects exactly these violations.
#[track_caller]
fn assert_violations(change: impl FnOnce(&mut History), expected: &[Violation]) {
    let mut history = valid_history();
    change(&mut history);
    let verdict = check(&history);
    let times = |kind| usize::try_from(verdict.count(kind)).unwrap();
    let counted: Vec<Violation> =
        Violation::ALL.into_iter().flat_map(|kind| vec![kind; times(kind)]).collect();
    assert_eq!(counted, expected, "{:#?}", verdict.messages());
    assert_eq!(verdict.messages().len(), expected.len());
}

fn stream(history: &mut History) -> &mut Vec<ObservedEvent> {
    history.streams.get_mut("s").unwrap()
}

#[test]
fn valid_history_has_no_violation() {
    assert_violations(|_| {}, &[]);
    let verdict = check(&valid_history());
    assert_eq!((verdict.submitted, verdict.accepted, verdict.terminal), (2, 2, 2));
    assert_eq!(verdict.ends["completed"], 2);
}

#[test]
fn unfinished_or_missing_runs_are_lost() {
    assert_violations(|history| history.runs[1].state = RunState::Running, &[Violation::Lost]);
    assert_violations(
        |history| {
            history.runs.pop();
            history.effects.retain(|effect| effect.key == "key-a");
        },
        &[Violation::Lost],
    );
    // A submit without an answer may have no run; if it has one, the run must end.
    assert_violations(
        |history| {
            history.submits.push(Submit { outcome: SubmitOutcome::Unknown("?".into()), ..submit("c", 30) });
            history.submits[1].outcome = SubmitOutcome::Unknown("?".into());
        },
        &[],
    );
    assert_violations(
        |history| {
            history.submits[1].outcome = SubmitOutcome::Unknown("?".into());
            history.runs[1].state = RunState::Queued;
        },
        &[Violation::Lost],
    );
}

#[test]
fn run_without_terminal_event_is_lost_and_with_two_is_duplicated() {
    assert_violations(
        |history| {
            stream(history)[4].kind = EventKind::Other;
            history.reader_logs.clear();
        },
        // Without its end, it was also still running when the next one started.
        &[Violation::Lost, Violation::Overlap],
    );
    assert_violations(
        |history| {
            stream(history).push(event(9, 130, EventKind::Ended(RunState::Failed), "b"));
            history.reader_logs.clear();
        },
        &[Violation::Duplicated],
    );
    assert_violations(
        |history| stream(history)[7].kind = EventKind::Ended(RunState::Failed),
        &[Violation::Duplicated, Violation::CursorHole, Violation::CursorHole],
    );
}

#[test]
fn end_delivered_twice_to_a_reader_is_duplicated() {
    assert_violations(
        |history| {
            history.reader_logs[0].events.push(event(8, 121, EventKind::Ended(RunState::Completed), "b"))
        },
        &[Violation::Duplicated, Violation::CursorHole],
    );
}

#[test]
fn two_runs_of_one_submit_are_duplicated() {
    assert_violations(
        |history| {
            let twin = FinalRun { id: "twin".into(), state: RunState::Failed, ..final_run("b", 3) };
            history.runs.insert(1, FinalRun { outcomes: vec![None, None], steps: Vec::new(), ..twin });
        },
        // Both runs have the key that the tools write, so the effects count for both, and the twin has no outcomes.
        &[Violation::Duplicated, Violation::Overlap, Violation::Dishonest, Violation::Dishonest],
    );
    assert_violations(|history| drop(history.submits.pop()), &[Violation::Duplicated]);
}

#[test]
fn runs_out_of_submission_order_violate_the_order() {
    // By the sequence numbers: `b` was accepted long before `a` was sent.
    assert_violations(
        |history| {
            history.submits[0].sent = 23 * MS;
            history.submits[0].answered = 25 * MS;
        },
        &[Violation::Order],
    );
    // By the events and by the journal: `a` has the later sequence number.
    assert_violations(
        |history| {
            history.submits[0].sent = 20 * MS;
            history.submits[0].answered = 22 * MS;
            history.runs[0].seq = 3;
        },
        &[Violation::Order, Violation::Order],
    );
}

#[test]
fn overlapping_runs_and_sequential_calls_are_overlaps() {
    assert_violations(|history| history.effects[4].at = 66 * MS, &[Violation::Overlap]);
    assert_violations(|history| history.effects[2].at = 46 * MS, &[Violation::Overlap]);
    // Parallel calls may overlap.
    assert_violations(
        |history| {
            history.submits[0].calls[1].group = 0;
            history.effects[2].at = 46 * MS;
        },
        &[],
    );
}

#[test]
fn call_executed_twice_is_reexecuted() {
    assert_violations(
        |history| history.effects.push(effect(110, "b", 1, Mark::Start)),
        &[Violation::Reexecuted],
    );
}

#[test]
fn outcomes_that_contradict_the_journal_are_dishonest() {
    // Never executed; interrupted; another exit code; skipped but executed.
    assert_violations(|history| history.effects.truncate(7), &[Violation::Dishonest]);
    assert_violations(|history| drop(history.effects.pop()), &[Violation::Dishonest]);
    assert_violations(|history| outcome(history, 0, 0).exit_code = Some(125), &[Violation::Dishonest]);
    assert_violations(|history| outcome(history, 0, 1).status = "skipped".into(), &[Violation::Dishonest]);
    // Killed by a signal, and reported so.
    assert_violations(
        |history| {
            history.effects.pop();
            *outcome(history, 1, 1) = Outcome { exit_code: None, signalled: true, ..completed() };
        },
        &[],
    );
    // The step has another outcome; there is no outcome; there are fewer calls.
    assert_violations(
        |history| history.runs[0].steps[1] = (1, Some(Outcome { exit_code: Some(3), ..completed() })),
        &[Violation::Dishonest],
    );
    assert_violations(|history| history.runs[0].outcomes[1] = None, &[Violation::Dishonest]);
    assert_violations(|history| drop(history.runs[0].outcomes.pop()), &[Violation::Dishonest]);
    // Cancelled without a request; in another session; refused but present; effects without a run.
    assert_violations(
        |history| {
            history.runs[0].state = RunState::Cancelled;
            stream(history)[4].kind = EventKind::Ended(RunState::Cancelled);
            history.reader_logs.clear();
        },
        &[Violation::Dishonest],
    );
    assert_violations(|history| history.submits[0].session = "other".into(), &[Violation::Dishonest]);
    assert_violations(
        |history| history.submits[0].outcome = SubmitOutcome::Refused("no".into()),
        &[Violation::Dishonest],
    );
    assert_violations(
        |history| history.effects.push(effect(30, "x", 0, Mark::Start)),
        &[Violation::Dishonest],
    );
}

#[test]
fn only_a_run_that_never_started_may_lack_outcomes() {
    let without_outcomes = |state: RunState| {
        move |history: &mut History| {
            history.submits[1].expects.may_be_cancelled = true;
            history.runs[1].state = state;
            history.runs[1].outcomes = vec![None, None];
            history.runs[1].steps[1].1 = None;
            stream(history)[7].kind = EventKind::Ended(state);
            history.reader_logs.clear();
        }
    };
    for state in [RunState::Cancelled, RunState::Completed] {
        assert_violations(without_outcomes(state), &[Violation::Dishonest, Violation::Dishonest]);
    }
    assert_violations(
        |history| {
            without_outcomes(RunState::Cancelled)(history);
            let key = history.runs[1].key.clone();
            history.effects.retain(|effect| effect.key != key);
        },
        &[],
    );
}

#[test]
fn tools_that_outlive_their_run_or_worker_are_orphans() {
    // A line long after the end; a process long after the end; a tool of the lost owner after the takeover.
    assert_violations(|history| history.effects[8].at = 230 * MS, &[Violation::Orphan]);
    assert_violations(
        |history| {
            history.processes.get_mut("key-a").unwrap().last_seen = 1100 * MS;
        },
        &[Violation::Orphan],
    );
    assert_violations(
        |history| {
            history.effects[6].at = 200 * MS;
            history.effects[7].at = 210 * MS;
            history.effects[8].at = 220 * MS;
            for seen in stream(history).iter_mut().filter(|seen| seen.cursor == 8) {
                (seen.at, seen.received) = (225 * MS, 226 * MS);
            }
            history.reader_logs.clear();
        },
        &[Violation::Orphan],
    );
}

#[test]
fn wrong_server_clock_causes_no_violation() {
    for at in [-3600 * 1000 * MS, 3600 * 1000 * MS] {
        assert_violations(
            |history| {
                let wrong = |seen: &mut ObservedEvent| seen.at = at;
                stream(history).iter_mut().for_each(wrong);
                history.reader_logs.iter_mut().flat_map(|log| &mut log.events).for_each(wrong);
            },
            &[],
        );
    }
}

#[test]
fn missing_repeated_or_differing_events_are_cursor_holes() {
    assert_violations(|history| drop(history.reader_logs[0].events.remove(3)), &[Violation::CursorHole]);
    assert_violations(|history| history.reader_logs[0].events.swap(2, 3), &[Violation::CursorHole; 3]);
    assert_violations(|history| drop(history.reader_logs[1].events.pop()), &[Violation::CursorHole]);
    assert_violations(
        |history| history.reader_logs[1].refused.push("beyond".into()),
        &[Violation::CursorHole],
    );
    assert_violations(|history| history.reader_logs[0].events[1].run = "b".into(), &[Violation::CursorHole]);
    assert_violations(
        |history| {
            stream(history).remove(1);
            history.reader_logs.clear();
        },
        &[Violation::CursorHole],
    );
}

#[test]
fn pause_counts_from_the_last_effect_before_the_takeover() {
    let pauses = |history: &History, lost| HistoryIndex::new(history).pauses(lost).collect::<Vec<_>>();
    let mut history = valid_history();
    // Without an event for the change of workers, the first worker counts as lost.
    assert_eq!((pauses(&history, true), pauses(&history, false)), (vec![20 * MS], vec![]));
    for (kind, lost) in [(EventKind::Lost, true), (EventKind::HandedOver, false)] {
        stream(&mut history).retain(|seen| seen.cursor != 9);
        stream(&mut history).insert(6, event(9, 80, kind, "b"));
        assert_eq!((pauses(&history, lost), pauses(&history, !lost)), (vec![20 * MS], vec![]));
    }
}
