use serde_json::json;

use super::{
    super::recording::testing::{event, session},
    *,
};

const DONE: RunState = RunState::Completed;

/// Two parallel sessions, each serial, as expected.
fn valid_logs() -> Vec<SessionLog> {
    vec![
        session(
            "acme/a",
            &[("r1", 0, 500, DONE), ("r2", 500, 900, RunState::Failed), ("r3", 900, 950, DONE)],
        ),
        session("acme/b", &[("r4", 100, 600, RunState::Cancelled), ("r5", 600, 700, DONE)]),
    ]
}

fn probes() -> Probes {
    let refusal =
        || CallResult { call: "GetSession", code: Some(Code::SessionNotFound), message: "no".into() };
    Probes {
        pids: vec![7, 8],
        survivors: Vec::new(),
        explanation: "behind_other_runs".into(),
        foreign: vec![(refusal(), refusal())],
        missing_key: Some(Code::Unauthenticated),
    }
}

/// The names of the failed checks.
fn failed_checks(logs: &[SessionLog], probes: &Probes) -> Vec<&'static str> {
    // The calls of these sessions are serial; parallel calls have their own test.
    let all = all(logs, probes).into_iter().filter(|check| check.name != "parallel_calls_overlap");
    all.filter(|check| !check.passed()).map(|check| check.name).collect()
}

#[test]
fn valid_logs_pass_all_checks() {
    assert_eq!(failed_checks(&valid_logs(), &probes()), [""; 0]);
}

#[test]
fn missing_second_or_wrong_end_is_detected() {
    let mut logs = valid_logs();
    logs[0].events.retain(|event| !(event.run_id == "r1" && event.r#type == "run.completed"));
    assert!(failed_checks(&logs, &probes()).contains(&"one_terminal_event_per_run"));

    let mut logs = valid_logs();
    let log = &mut logs[0];
    log.last_cursor += 1;
    log.events.push(event(log.last_cursor, "r1", "run.cancelled", 990, &json!({ "reason": "late" })));
    log.replayed.clone_from(&log.events);
    assert_eq!(failed_checks(&logs, &probes())[0], "one_terminal_event_per_run");

    let mut logs = valid_logs();
    logs[0].runs[0].expected_state = RunState::TimedOut;
    assert_eq!(failed_checks(&logs, &probes()), ["one_terminal_event_per_run"]);
}

#[test]
fn overlap_and_wrong_order_within_a_session_are_detected() {
    let mut logs = valid_logs();
    logs[1] = session("acme/b", &[("r4", 100, 600, RunState::Cancelled), ("r5", 599, 700, DONE)]);
    assert_eq!(failed_checks(&logs, &probes()), ["serial_within_a_session"]);

    let mut logs = valid_logs();
    logs[0].runs.swap(0, 2);
    assert!(failed_checks(&logs, &probes()).contains(&"serial_within_a_session"));
}

#[test]
fn sessions_one_after_another_are_not_parallel() {
    let logs = [session("t/a", &[("r1", 0, 500, DONE)]), session("t/b", &[("r2", 500, 900, DONE)])];
    assert!(!parallel_sessions(&logs).passed());
    assert!(parallel_sessions(&valid_logs()).passed());
    // Overlapping runs of one session do not count as parallel sessions.
    assert!(!parallel_sessions(&[session("t/a", &[("r1", 0, 500, DONE), ("r2", 100, 400, DONE)])]).passed());
}

#[test]
fn parallel_calls_must_overlap_in_time() {
    let calls = |ends: [(i64, u64); 2]| {
        let mut log = session("t/s", &[("r1", 0, 900, DONE)]);
        log.events.retain(|event| !event.r#type.starts_with("tool."));
        for (index, (end, took)) in ends.into_iter().enumerate() {
            let outcome = json!({ "id": format!("c{index}"), "tool": "noop", "duration_ms": took });
            log.events.push(event(9, "r1", "tool.completed", end, &outcome));
        }
        parallel_calls(&[log]).passed()
    };
    assert!(calls([(500, 500), (600, 600)]));
    assert!(!calls([(500, 500), (900, 400)]), "one after the other");
}

#[test]
fn missing_duplicate_and_reordered_events_are_detected() {
    for damage in [
        |log: &mut SessionLog| drop(log.events.remove(2)),
        |log: &mut SessionLog| log.events.insert(1, log.events[0].clone()),
        |log: &mut SessionLog| log.events.swap(1, 2),
        |log: &mut SessionLog| log.last_cursor += 1,
    ] {
        let mut logs = valid_logs();
        damage(&mut logs[1]);
        assert!(failed_checks(&logs, &probes()).contains(&"contiguous_cursors"));
    }
    let mut logs = valid_logs();
    logs[0].replayed.pop();
    assert_eq!(failed_checks(&logs, &probes()), ["replay_equals_live"]);
}

#[test]
fn failure_needs_its_code_and_cancel_needs_dead_processes() {
    let mut logs = valid_logs();
    for event in &mut logs[0].events {
        event.data = event.data.replace("file_not_found", "internal");
    }
    assert_eq!(failed_checks(&logs, &probes()), ["failure_is_coded"]);

    let survivors = Probes { survivors: vec![8], ..probes() };
    assert_eq!(failed_checks(&valid_logs(), &survivors), ["cancel_kills"]);
    let unseen = Probes { pids: Vec::new(), ..probes() };
    assert_eq!(failed_checks(&valid_logs(), &unseen), ["cancel_kills"]);

    let mut logs = valid_logs();
    logs[1].runs.pop();
    assert_eq!(failed_checks(&logs, &probes()), ["cancel_kills"], "the session did not continue");
}

#[test]
fn foreign_and_unknown_objects_must_be_indistinguishable() {
    let mut distinguishable = probes();
    distinguishable.foreign[0].1.message = "no session ses_1".into();
    assert_eq!(failed_checks(&valid_logs(), &distinguishable), ["tenants_are_isolated"]);
    let mut readable = probes();
    readable.foreign[0].0.code = None;
    assert_eq!(failed_checks(&valid_logs(), &readable), ["tenants_are_isolated"]);
    let unprotected =
        Probes { missing_key: None, explanation: "executing".into(), foreign: Vec::new(), ..probes() };
    assert_eq!(
        failed_checks(&valid_logs(), &unprotected),
        ["explain_knows_why", "tenants_are_isolated", "keys_are_required"]
    );
}
