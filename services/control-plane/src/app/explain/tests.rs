use std::time::Duration;

use remuda_domain::{
    Head, Pool, RunInput, SessionId, TenantId,
    run::{Parked, ToolsInput},
};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_timestamp(second, 0).unwrap()
}

fn situation(state: RunState, owner: Owner) -> Situation {
    let (tenant, session) = (TenantId::new(), SessionId::new());
    let run = Run {
        id: RunId::new(),
        tenant,
        session,
        seq: 1,
        state,
        input: RunInput::Tools(ToolsInput { calls: vec![], continue_on_error: false, record: false }),
        timeout: Duration::from_secs(1),
        attempt: 0,
        lost_attempts: 0,
        created_at: at(0),
        started_at: None,
        finished_at: None,
        outcomes: vec![],
        answer: None,
        failure: None,
        cancel: None,
        parked: None,
        parent: None,
        spent: remuda_domain::budget::Total::default(),
        budget: None,
        paused: Duration::ZERO,
        idempotency_key: None,
        traceparent: None,
    };
    let head = Head {
        tenant,
        session,
        pool: Pool::default(),
        closed: false,
        epoch: 1,
        owner,
        current: None,
        pending: 1,
        last_seq: 1,
        last_cursor: 1,
        last_commit: None,
    };
    Situation { run, head, ahead: 0, blocked_by: None, workers: 1, free_slots: 1, needed: None }
}

fn explain(situation: &Situation) -> Explanation {
    super::explain(situation, Vec::new())
}

fn reason(situation: &Situation) -> &'static str {
    explain(situation).reason
}

fn alive(worker: WorkerId) -> Owner {
    Owner::Alive { worker, lease_left: Duration::from_secs(1) }
}

#[test]
fn every_situation_has_its_reason() {
    let worker = WorkerId::new();
    assert_eq!(reason(&situation(RunState::Completed, Owner::Nobody)), "finished");
    assert_eq!(reason(&situation(RunState::Running, alive(worker))), "executing");
    assert_eq!(reason(&situation(RunState::Running, Owner::Expired { worker })), "owner_lost");
    assert_eq!(reason(&situation(RunState::Queued, Owner::Nobody)), "waiting_for_worker");
    let mut behind = situation(RunState::Queued, alive(worker));
    behind.ahead = 3;
    behind.blocked_by = Some(RunId::new());
    let answer = explain(&behind);
    assert_eq!((answer.reason, answer.position), ("behind_other_runs", 3));
    assert_eq!(answer.waits_for, behind.blocked_by.unwrap().to_string());
    let mut lonely = situation(RunState::Queued, Owner::Nobody);
    lonely.workers = 0;
    assert_eq!(reason(&lonely), "no_worker");
    assert!(explain(&lonely).hint.contains("remuda worker"));
}

#[test]
fn a_run_that_lost_its_worker_says_so_while_it_waits() {
    let mut waiting = situation(RunState::Queued, Owner::Nobody);
    waiting.run.attempt = 1;
    assert_eq!(reason(&waiting), "handed_over");
    waiting.run.attempt = 3;
    waiting.run.lost_attempts = 2;
    let answer = explain(&waiting);
    assert_eq!(answer.reason, "attempt_lost");
    assert!(answer.message.starts_with("2 workers were lost"), "{}", answer.message);
    waiting.free_slots = 0;
    assert_eq!(reason(&waiting), "attempt_lost");
    waiting.workers = 0;
    let answer = explain(&waiting);
    assert_eq!(answer.reason, "no_worker", "what can be done about it comes first");
    assert!(answer.message.contains("were lost"), "{}", answer.message);
}

#[test]
fn a_parked_run_says_what_it_waits_for() {
    let mut messages = Vec::new();
    for reason in ParkReason::ALL {
        let mut parked = situation(RunState::Parked, Owner::Nobody);
        parked.run.parked = Some(Parked { reason, at: at(1) });
        let answer = explain(&parked);
        assert_eq!(answer.reason, "parked");
        messages.push(answer.message);
    }
    messages.sort();
    messages.dedup();
    assert_eq!(messages.len(), ParkReason::ALL.len());
}

#[test]
fn what_a_person_can_do_about_a_parked_run_comes_first() {
    let mut parked = situation(RunState::Parked, Owner::Nobody);
    parked.run.parked = Some(Parked { reason: ParkReason::Children, at: at(1) });
    let wait =
        |kind, id: &str| Wait { kind, id: id.to_owned(), hint: format!("type {id}"), ..Wait::default() };
    let waits = vec![wait("child", "run_2"), wait("approval", "apr_1")];
    let answer = super::explain(&parked, waits);
    assert_eq!((answer.waits_for.as_str(), answer.hint.as_str()), ("apr_1", "type apr_1"));
    assert_eq!(answer.waits.len(), 2);
    let answer = super::explain(&parked, vec![wait("child", "run_2")]);
    assert_eq!((answer.waits_for.as_str(), answer.hint.as_str()), ("run_2", ""));
}

#[test]
fn receipts_come_one_after_the_other() {
    let worker = WorkerId::new();
    let mut cancelling = situation(RunState::Running, alive(worker));
    assert!(explain(&cancelling).receipts.is_empty());
    let names = |situation: &Situation| -> Vec<&str> {
        explain(situation).receipts.iter().map(|receipt| receipt.name).collect()
    };
    let mut cancel = CancelRequest { at: at(1), reason: String::new(), delivered_at: None, stopped_at: None };
    cancelling.run.cancel = Some(cancel.clone());
    assert_eq!((reason(&cancelling), names(&cancelling)), ("cancelling", vec!["requested"]));
    cancel.delivered_at = Some(at(2));
    cancelling.run.cancel = Some(cancel.clone());
    assert_eq!(names(&cancelling), ["requested", "delivered"]);
    cancel.stopped_at = Some(at(3));
    cancelling.run.cancel = Some(cancel);
    cancelling.run.state = RunState::Cancelled;
    cancelling.run.finished_at = Some(at(4));
    assert_eq!(names(&cancelling), ["requested", "delivered", "stopped", "released"]);
    let times: Vec<Timestamp> = explain(&cancelling).receipts.iter().map(|receipt| receipt.at).collect();
    assert_eq!(times, [at(1), at(2), at(3), at(4)]);
}
