use std::time::Duration;

use remuda_domain::{
    Code, Head, MessageId, Pool, RunInput, SessionId, StepId, TenantId, WorkerId,
    content::ContentHash,
    ids::ToolCallId,
    model::ModelParameters,
    run::{CancelRequest, Failure, ParkReason, Parked, ToolsInput},
    step::{CallLinks, ModelRequest, ModelRetry, Purpose},
    tool::ToolCall,
};
use remuda_store::{EstimateInputs, FirstUnfinishedRun, HeartbeatAge, QueuePosition};

use super::*;

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_timestamp(second, 0).unwrap()
}

pub(super) fn diagnostics(state: RunState, owner: Owner) -> RunDiagnostics {
    let (tenant, session) = (TenantId::new(), SessionId::new());
    let input = RunInput::Tools(ToolsInput { calls: vec![], continue_on_error: false, record: false });
    let queued = Run::queued(RunId::new(), (tenant, session), input, Duration::from_secs(1));
    let run = Run { seq: 1, state, created_at: at(0), ..queued };
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
    RunDiagnostics {
        run,
        head,
        ahead: 0,
        blocked_by: None,
        workers: 1,
        free_slots: 1,
        needed: None,
        estimate_inputs: EstimateInputs::default(),
    }
}

fn explain(diagnostics: &RunDiagnostics) -> Explanation {
    super::explain(diagnostics, Vec::new(), None)
}

fn reason(diagnostics: &RunDiagnostics) -> &'static str {
    explain(diagnostics).reason
}

pub(super) fn alive(worker: WorkerId) -> Owner {
    Owner::Alive { worker, lease_left: Duration::from_secs(1) }
}

#[test]
fn each_state_has_its_reason() {
    let worker = WorkerId::new();
    assert_eq!(reason(&diagnostics(RunState::Completed, Owner::Nobody)), "finished");
    assert_eq!(reason(&diagnostics(RunState::Running, alive(worker))), "executing");
    assert_eq!(reason(&diagnostics(RunState::Running, Owner::Expired { worker })), "owner_lost");
    assert_eq!(reason(&diagnostics(RunState::Queued, Owner::Nobody)), "waiting_for_worker");
    let mut behind = diagnostics(RunState::Queued, alive(worker));
    behind.ahead = 3;
    behind.blocked_by = Some(RunId::new());
    let answer = explain(&behind);
    assert_eq!((answer.reason, answer.position), ("behind_other_runs", 3));
    assert_eq!(answer.waits_for, behind.blocked_by.unwrap().to_string());
    let mut lonely = diagnostics(RunState::Queued, Owner::Nobody);
    lonely.workers = 0;
    assert_eq!(reason(&lonely), "no_worker");
    assert!(explain(&lonely).hint.contains("remuda worker"));
}

#[test]
fn waiting_run_mentions_its_lost_attempts() {
    let mut waiting = diagnostics(RunState::Queued, Owner::Nobody);
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
    assert_eq!(answer.reason, "no_worker", "the reason that can be acted on comes first");
    assert!(answer.message.contains("were lost"), "{}", answer.message);
}

#[test]
fn parked_run_states_what_it_waits_for() {
    let mut messages = Vec::new();
    for reason in ParkReason::ALL {
        let mut parked = diagnostics(RunState::Parked, Owner::Nobody);
        parked.run.parked = Some(Parked { reason, at: at(1) });
        let wait = Wait { kind: "child", id: "x".to_owned(), ..Wait::default() };
        let answer = super::explain(&parked, vec![wait], None);
        assert_eq!((answer.reason, answer.since), ("parked", Some(at(1))));
        messages.push(answer.message);
        // What it waited for has come, and it is not resumed yet.
        let expected = if reason == ParkReason::External { "parked" } else { "resuming" };
        assert_eq!(self::reason(&parked), expected);
    }
    messages.sort();
    messages.dedup();
    assert_eq!(messages.len(), ParkReason::ALL.len());
}

#[test]
fn wait_that_a_person_can_end_comes_first() {
    let mut parked = diagnostics(RunState::Parked, Owner::Nobody);
    parked.run.parked = Some(Parked { reason: ParkReason::Children, at: at(1) });
    let wait =
        |kind, id: &str| Wait { kind, id: id.to_owned(), hint: format!("type {id}"), ..Wait::default() };
    let waits = vec![wait("child", "run_2"), wait("approval", "apr_1")];
    let answer = super::explain(&parked, waits, None);
    assert_eq!((answer.waits_for.as_str(), answer.hint.as_str()), ("apr_1", "type apr_1"));
    assert_eq!(answer.waits.len(), 2);
    let answer = super::explain(&parked, vec![wait("child", "run_2")], None);
    assert_eq!((answer.waits_for.as_str(), answer.hint.as_str()), ("run_2", ""));
}

#[test]
fn receipts_follow_the_stages_of_a_cancellation() {
    let worker = WorkerId::new();
    let mut cancelling = diagnostics(RunState::Running, alive(worker));
    assert!(explain(&cancelling).receipts.is_empty());
    let names = |diagnostics: &RunDiagnostics| -> Vec<&str> {
        explain(diagnostics).receipts.iter().map(|receipt| receipt.name).collect()
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

#[test]
fn run_whose_provider_fails_names_the_failure_and_the_next_attempt() {
    let mut executing = diagnostics(RunState::Running, alive(WorkerId::new()));
    executing.estimate_inputs.now = at(60);
    let hash = ContentHash::of("");
    let retry = ModelRetry {
        attempt: 2,
        failure: Failure::new(Code::ModelOverloaded, "429 slow down"),
        next_at: at(72),
    };
    let request = ModelRequest {
        message: MessageId::new(),
        agent: "build".into(),
        definitions: hash,
        model: "platform/large".parse().unwrap(),
        provider: None,
        model_name: "large-1".into(),
        parameters: ModelParameters::default(),
        system: hash,
        tools: hash,
        messages: Vec::new(),
        concluding: false,
        purpose: Purpose::Answer,
        reported: Vec::new(),
        cleared: None,
        retry: Some(retry),
    };
    let work = StepWork::ModelCall { request: Box::new(request), outcome: None };
    let step = Step { id: StepId::new(), index: 0, work, started_at: at(48), finished_at: None, epoch: 1 };
    executing.estimate_inputs.step = Some(step);
    let answer = explain(&executing);
    assert_eq!((answer.reason, answer.waits_for.as_str()), ("model_retry", "platform/large"));
    let expected =
        "the provider of platform/large failed: 429 slow down [model_overloaded]; attempt 3 starts in 12 s";
    assert_eq!(answer.message, expected);
    executing.estimate_inputs.now = at(80);
    assert!(explain(&executing).message.ends_with("attempt 3 is under way"));
}

#[test]
fn running_run_names_its_step_and_a_silent_worker() {
    let worker = WorkerId::new();
    let mut executing = diagnostics(RunState::Running, alive(worker));
    executing.estimate_inputs.now = at(60);
    let call = ToolCall {
        id: ToolCallId::new(),
        tool: "Bash".into(),
        arguments: serde_json::json!({}),
        parallel: false,
        timeout: None,
    };
    let work = StepWork::ToolCall { call, outcome: None, links: CallLinks::default() };
    let step = Step { id: StepId::new(), index: 2, work, started_at: at(48), finished_at: None, epoch: 1 };
    executing.estimate_inputs.step = Some(step);
    let answer = explain(&executing);
    assert_eq!(answer.message, format!("worker {worker} executes the run: step 3, Bash, for 12 s"));
    assert_eq!(answer.step.map(|step| (step.index, step.name)), Some((2, "Bash".to_owned())));
    let second = Duration::from_secs(1);
    let mut beat = HeartbeatAge { age: second, lease: second * 15, draining: true };
    executing.estimate_inputs.heartbeat = Some(beat);
    let answer = explain(&executing);
    assert_eq!(answer.reason, "executing");
    assert!(answer.message.ends_with("drained and hands the run over after its step"), "{}", answer.message);
    beat.age = second * 7;
    executing.estimate_inputs.heartbeat = Some(beat);
    let answer = explain(&executing);
    assert_eq!(answer.reason, "worker_silent");
    assert!(
        answer.message.contains("last heard of 7 s ago") && answer.message.contains("ends in 1 s"),
        "{}",
        answer.message
    );
}

#[test]
fn waiting_run_names_its_position_and_a_lost_wake_up() {
    let worker = WorkerId::new();
    let next = diagnostics(RunState::Queued, alive(worker));
    assert_eq!((reason(&next), explain(&next).place), ("starting", None));
    assert_eq!(reason(&diagnostics(RunState::Queued, Owner::Expired { worker })), "owner_lost");
    let mut free = diagnostics(RunState::Queued, Owner::Nobody);
    free.estimate_inputs = EstimateInputs {
        now: at(5),
        slots: 8,
        place: Some(QueuePosition { ahead: 0, runs_ahead: 0, at_least: false }),
        slot_free_since: Some(at(0)),
        ..EstimateInputs::default()
    };
    let answer = explain(&free);
    assert_eq!((answer.reason, answer.since), ("waiting_for_worker", Some(at(0))));
    assert_eq!(answer.place.map(|place| (place.place.ahead, place.slots, place.free_slots)), Some((0, 8, 1)));
    free.estimate_inputs.now = at(30);
    let answer = super::explain(&free, Vec::new(), Some(at(26)));
    assert_eq!(answer.reason, "wake_up_due");
    assert!(
        answer.message.contains("for 30 s") && answer.message.contains("last scanned for them 4 s ago"),
        "{}",
        answer.message
    );
    // It could be taken only since the run before it ended.
    free.estimate_inputs.previous_end = Some(at(25));
    assert_eq!(reason(&free), "waiting_for_worker");
    free.estimate_inputs.previous_end = None;
    // The slot has just become free: the run waited for it, and its wake-up is not lost.
    free.estimate_inputs.slot_free_since = Some(at(25));
    assert_eq!(reason(&free), "waiting_for_worker");
    free.estimate_inputs.slot_free_since = Some(at(0));
    free.estimate_inputs.place = Some(QueuePosition { ahead: 3, runs_ahead: 3, at_least: false });
    assert_eq!(reason(&free), "waiting_for_worker", "others come first");
    free.workers = 0;
    free.estimate_inputs.draining = 2;
    let answer = explain(&free);
    assert_eq!(answer.reason, "workers_draining");
    assert!(answer.message.contains("2 workers are being drained"), "{}", answer.message);
}

#[test]
fn run_behind_others_names_the_first_of_them() {
    let mut behind = diagnostics(RunState::Queued, Owner::Nobody);
    (behind.ahead, behind.blocked_by) = (2, Some(RunId::new()));
    let parked = Some(Parked { reason: ParkReason::Approval, at: at(0) });
    let front =
        FirstUnfinishedRun { run: RunId::new(), state: RunState::Parked, parked, worked: Duration::ZERO };
    behind.estimate_inputs.front = Some(front);
    behind.estimate_inputs.place = Some(QueuePosition { ahead: 7, runs_ahead: 7, at_least: false });
    let answer = explain(&behind);
    assert_eq!(answer.reason, "behind_other_runs");
    assert!(answer.message.ends_with(&format!("{}, is parked (approval)", front.run)), "{}", answer.message);
    assert_eq!((answer.hint, answer.place), (format!("remuda explain {}", front.run), None));
    behind.head.closed = true;
    assert!(explain(&behind).message.ends_with("its session is closed and takes no more"));
}
