use serde_json::json;

use super::{
    super::recording::testing::{event, session},
    *,
};

const DONE: RunState = RunState::Completed;

/// Two sessions as they should be: side by side, each serial.
fn good() -> Vec<SessionLog> {
    vec![
        session(
            "acme/a",
            &[("r1", 0, 500, DONE), ("r2", 500, 900, RunState::Failed), ("r3", 900, 950, DONE)],
        ),
        session("acme/b", &[("r4", 100, 600, RunState::Cancelled), ("r5", 600, 700, DONE)]),
    ]
}

fn probes() -> Probes {
    let answer = || Answer { call: "GetSession", code: Some(Code::SessionNotFound), message: "no".into() };
    Probes {
        pids: vec![7, 8],
        survivors: Vec::new(),
        explained: "behind_other_runs".into(),
        foreign: vec![(answer(), answer())],
        keyless: Some(Code::Unauthenticated),
    }
}

/// The names of the expectations that did not hold.
fn broken(logs: &[SessionLog], probes: &Probes) -> Vec<&'static str> {
    // The calls of these sessions are serial; that one has a test of its own.
    let all = all(logs, probes).into_iter().filter(|check| check.name != "parallel_calls_overlap");
    all.filter(|check| !check.held()).map(|check| check.name).collect()
}

#[test]
fn what_is_right_holds() {
    assert_eq!(broken(&good(), &probes()), [""; 0]);
}

#[test]
fn a_missing_or_second_end_is_seen() {
    let mut logs = good();
    logs[0].events.retain(|event| !(event.run_id == "r1" && event.r#type == "run.completed"));
    assert!(broken(&logs, &probes()).contains(&"one_terminal_event_per_run"));

    let mut logs = good();
    let log = &mut logs[0];
    log.last_cursor += 1;
    log.events.push(event(log.last_cursor, "r1", "run.cancelled", 990, &json!({ "reason": "late" })));
    log.replayed.clone_from(&log.events);
    assert_eq!(broken(&logs, &probes())[0], "one_terminal_event_per_run");

    let mut logs = good();
    logs[0].runs[0].fate = RunState::TimedOut;
    assert_eq!(broken(&logs, &probes()), ["one_terminal_event_per_run"]);
}

#[test]
fn overlap_and_wrong_order_within_a_session_are_seen() {
    let mut logs = good();
    logs[1] = session("acme/b", &[("r4", 100, 600, RunState::Cancelled), ("r5", 599, 700, DONE)]);
    assert_eq!(broken(&logs, &probes()), ["serial_within_a_session"]);

    let mut logs = good();
    logs[0].runs.swap(0, 2);
    assert!(broken(&logs, &probes()).contains(&"serial_within_a_session"));
}

#[test]
fn sessions_one_after_another_are_not_parallel() {
    let logs = [session("t/a", &[("r1", 0, 500, DONE)]), session("t/b", &[("r2", 500, 900, DONE)])];
    assert!(!parallel_sessions(&logs).held());
    assert!(parallel_sessions(&good()).held());
    // One session that overlaps itself is no parallelism between sessions.
    assert!(!parallel_sessions(&[session("t/a", &[("r1", 0, 500, DONE), ("r2", 100, 400, DONE)])]).held());
}

#[test]
fn calls_are_together_when_their_times_overlap() {
    let calls = |ends: [(i64, u64); 2]| {
        let mut log = session("t/s", &[("r1", 0, 900, DONE)]);
        log.events.retain(|event| !event.r#type.starts_with("tool."));
        for (index, (end, took)) in ends.into_iter().enumerate() {
            let outcome = json!({ "id": format!("c{index}"), "tool": "noop", "duration_ms": took });
            log.events.push(event(9, "r1", "tool.completed", end, &outcome));
        }
        parallel_calls(&[log]).held()
    };
    assert!(calls([(500, 500), (600, 600)]));
    assert!(!calls([(500, 500), (900, 400)]), "one after the other");
}

#[test]
fn holes_duplicates_and_missing_events_are_seen() {
    for harm in [
        |log: &mut SessionLog| drop(log.events.remove(2)),
        |log: &mut SessionLog| log.events.insert(1, log.events[0].clone()),
        |log: &mut SessionLog| log.events.swap(1, 2),
        |log: &mut SessionLog| log.last_cursor += 1,
    ] {
        let mut logs = good();
        harm(&mut logs[1]);
        assert!(broken(&logs, &probes()).contains(&"contiguous_cursors"));
    }
    let mut logs = good();
    logs[0].replayed.pop();
    assert_eq!(broken(&logs, &probes()), ["replay_equals_live"]);
}

#[test]
fn a_failure_needs_its_code_and_a_cancel_its_dead() {
    let mut logs = good();
    for event in &mut logs[0].events {
        event.data = event.data.replace("file_not_found", "internal");
    }
    assert_eq!(broken(&logs, &probes()), ["failure_is_coded"]);

    let survivors = Probes { survivors: vec![8], ..probes() };
    assert_eq!(broken(&good(), &survivors), ["cancel_kills"]);
    let unseen = Probes { pids: Vec::new(), ..probes() };
    assert_eq!(broken(&good(), &unseen), ["cancel_kills"]);

    let mut logs = good();
    logs[1].runs.pop();
    assert_eq!(broken(&logs, &probes()), ["cancel_kills"], "the session did not go on");
}

#[test]
fn isolation_needs_the_same_answer_as_for_the_unknown() {
    let mut told = probes();
    told.foreign[0].1.message = "no session ses_1".into();
    assert_eq!(broken(&good(), &told), ["tenants_are_isolated"]);
    let mut shown = probes();
    shown.foreign[0].0.code = None;
    assert_eq!(broken(&good(), &shown), ["tenants_are_isolated"]);
    let open = Probes { keyless: None, explained: "executing".into(), foreign: Vec::new(), ..probes() };
    assert_eq!(broken(&good(), &open), ["explain_knows_why", "tenants_are_isolated", "keys_are_required"]);
}
