//! The operator's rules in `tools` runs: calls that are denied, and calls that wait for approval.

use std::{collections::BTreeMap, time::Duration};

use remuda_domain::{
    Code, Run, RunId, RunInput, RunState, ToolCallId,
    approval::{Approval, ApprovalState, DecisionRequest},
    identity::{Principal, Scope},
    page::PageRequest,
    permission::{PermissionAction, PermissionRule, SessionPermissions, Unattended},
    run::{ParkReason, ToolsInput},
    tool::ToolCall,
};
use remuda_engine::{AgentSettings, Execution, OnExpiry, PermissionSettings, RunControl};
use remuda_store::ApprovalFilter;
use serde_json::json;

use crate::{
    harness::{Harness, OperatorSettings},
    inspect::{code, statuses_and_codes},
};

fn rule(permission: &str, pattern: &str, action: PermissionAction, locked: bool) -> PermissionRule {
    PermissionRule { locked, ..PermissionRule::new(permission, pattern, action) }
}

fn settings() -> PermissionSettings {
    let rules = vec![
        rule("bash", "deploy *", PermissionAction::Ask, true),
        rule("bash", "rm *", PermissionAction::Deny, true),
        // Not locked, so not for `tools` runs.
        rule("bash", "*", PermissionAction::Deny, false),
    ];
    let tenant = vec![rule("bash", "publish *", PermissionAction::Ask, false)];
    PermissionSettings {
        rules,
        tenants: BTreeMap::from([("default".to_owned(), tenant)]),
        ..PermissionSettings::default()
    }
}

async fn harness_with(permissions: PermissionSettings) -> Harness {
    let settings = AgentSettings { permissions, ..AgentSettings::default() };
    let operator = OperatorSettings { settings, ..OperatorSettings::default() };
    Harness::with_settings("turns: []\n", operator).await
}

async fn harness() -> Harness {
    harness_with(settings()).await
}

fn bash(command: &str, parallel: bool) -> ToolCall {
    let arguments = json!({ "command": command });
    ToolCall { id: ToolCallId::new(), tool: "Bash".into(), arguments, parallel, timeout: None }
}

async fn submit(harness: &Harness, calls: Vec<ToolCall>, continue_on_error: bool) -> RunId {
    let input = RunInput::Tools(ToolsInput { calls, continue_on_error, record: true });
    harness.submit_input(input, Duration::from_secs(60)).await
}

const LOOK: &str = "echo looked >> looked";
const DEPLOY: &str = "deploy --now || echo deployed >> deployed";
const AFTER: &str = "echo after >> after";

async fn submit_three(harness: &Harness) -> RunId {
    submit(harness, vec![bash(LOOK, false), bash(DEPLOY, false), bash(AFTER, false)], false).await
}

async fn pending(harness: &Harness) -> Vec<Approval> {
    let filter = ApprovalFilter { state: Some(ApprovalState::Pending), ..ApprovalFilter::default() };
    let page = PageRequest { size: 100, token: None };
    harness.store.list_approvals(harness.tenant, &filter, &page).await.unwrap().items
}

fn yes() -> DecisionRequest {
    DecisionRequest { approve: true, message: String::new(), arguments: None, always: false, call_hash: None }
}

async fn decide(harness: &Harness, answer: &DecisionRequest) {
    let approval = pending(harness).await.pop().unwrap();
    let anna = Principal { tenant: harness.tenant, subject: "anna".into(), scopes: vec![Scope::Approve] };
    harness.store.decide(&anna, approval.id, answer).await.unwrap();
}

fn assert_completed(run: &Run) {
    assert_eq!(run.state, RunState::Completed, "{:?}: {:?}", run.failure, run.outcomes);
}

fn effects(harness: &Harness) -> (String, String, String) {
    (harness.read("looked"), harness.read("deployed"), harness.read("after"))
}

fn all_once() -> (String, String, String) {
    ("looked\n".into(), "deployed\n".into(), "after\n".into())
}

#[tokio::test]
async fn call_that_a_locked_rule_asks_about_parks_the_run_until_approved() {
    let harness = harness().await;
    let id = submit_three(&harness).await;
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(run.state, RunState::Parked, "{:?}", run.failure);
    assert_eq!(run.parked.unwrap().reason, ParkReason::Approval);
    assert_eq!(effects(&harness), ("looked\n".into(), String::new(), String::new()));
    let approval = pending(&harness).await.pop().unwrap();
    assert_eq!((approval.run, approval.request.tool.as_str()), (id, "Bash"));
    assert_eq!(
        (approval.request.patterns, approval.request.agent.as_str()),
        (vec!["deploy --now".into()], "")
    );
    assert!(approval.request.why.contains("platform asks about bash `deploy *`"), "{}", approval.request.why);
    assert_eq!(approval.request.always, [], "a locked rule cannot be relaxed");
    assert_eq!(harness.run_all().await, 0, "it waits as data");

    let answer = DecisionRequest { message: "go on".into(), ..yes() };
    decide(&harness, &answer).await;
    assert_eq!(harness.run_all().await, 1);
    assert_completed(&harness.run(id).await);
    assert_eq!(effects(&harness), all_once());
    assert!(
        harness.transcript().await.iter().any(|line| line.contains("go on")),
        "for agents of the session"
    );
    harness.assert_results_complete().await;
    let events = harness.event_names(id).await;
    for name in ["approval.requested", "run.parked", "approval.decided", "run.resumed", "run.completed"] {
        assert_eq!(events.iter().filter(|event| **event == name).count(), 1, "{name} in {events:?}");
    }
}

#[tokio::test]
async fn denied_call_is_a_failed_result_and_the_run_follows_its_rule_for_failures() {
    for (continue_on_error, state, after) in
        [(false, RunState::Failed, ""), (true, RunState::Completed, "after\n")]
    {
        let harness = harness().await;
        let calls = vec![bash(LOOK, false), bash("rm -f looked", false), bash(AFTER, false)];
        let id = submit(&harness, calls, continue_on_error).await;
        let run = harness.execute().await;
        assert_eq!((run.id, run.state), (id, state), "{:?}", run.failure);
        assert_eq!(statuses_and_codes(&run)[1], "failed call_denied");
        assert_eq!(effects(&harness), ("looked\n".into(), String::new(), after.into()));
        if let Some(failure) = run.failure {
            assert_eq!(failure.code, "tool_failed");
            assert!(failure.message.contains("platform denies bash `rm *`"), "{}", failure.message);
        }
        assert!(pending(&harness).await.is_empty());
        harness.assert_results_complete().await;
    }
}

#[tokio::test]
async fn rejected_and_expired_calls_are_failed_results() {
    for continue_on_error in [false, true] {
        let harness = harness().await;
        let calls = vec![bash(DEPLOY, false), bash(AFTER, false)];
        let id = submit(&harness, calls, continue_on_error).await;
        harness.run_all().await;
        decide(&harness, &DecisionRequest { approve: false, message: "not on a friday".into(), ..yes() })
            .await;
        harness.run_all().await;
        let run = harness.run(id).await;
        let state = if continue_on_error { RunState::Completed } else { RunState::Failed };
        assert_eq!((run.state, statuses_and_codes(&run)[0].as_str()), (state, "failed call_rejected"));
        assert!(run.outcomes[0].failure.as_ref().unwrap().message.contains("not on a friday"));
        assert_eq!(harness.read("deployed"), "");
        assert_eq!(harness.read("after"), if continue_on_error { "after\n" } else { "" });
    }
    for (on_expiry, expected) in [(OnExpiry::Tell, "tool_failed"), (OnExpiry::Fail, "approval_expired")] {
        let expire_after = Some(Duration::from_millis(1));
        let harness = harness_with(PermissionSettings { expire_after, on_expiry, ..settings() }).await;
        let id = submit_three(&harness).await;
        harness.run_all().await;
        while harness.store.expire_approvals(10).await.unwrap().changes.is_empty() {}
        harness.run_all().await;
        let run = harness.run(id).await;
        assert_eq!((run.state, code(&run)), (RunState::Failed, expected));
        assert_eq!(statuses_and_codes(&run)[1], "failed approval_expired");
        assert_eq!(effects(&harness), ("looked\n".into(), String::new(), String::new()));
    }
}

#[tokio::test]
async fn unattended_session_refuses_or_fails_without_parking() {
    for (unattended, state, expected) in [
        (Unattended::Refuse, RunState::Completed, ""),
        (Unattended::Fail, RunState::Failed, "approval_unattended"),
    ] {
        let permissions =
            SessionPermissions { unattended: Some(unattended), ..SessionPermissions::default() };
        let harness = harness().await.with_permissions(permissions).await;
        submit(&harness, vec![bash(DEPLOY, false), bash(AFTER, false)], true).await;
        let run = harness.execute().await;
        assert_eq!((run.state, code(&run)), (state, expected), "{unattended:?}");
        assert_eq!(statuses_and_codes(&run)[0], "failed approval_unattended");
        assert_eq!(harness.read("deployed"), "");
        assert!(pending(&harness).await.is_empty());
    }
}

#[tokio::test]
async fn parallel_calls_run_while_one_of_them_waits() {
    let harness = harness().await;
    let calls = vec![bash(LOOK, true), bash(DEPLOY, true), bash(AFTER, false)];
    let id = submit(&harness, calls, false).await;
    harness.run_all().await;
    assert_eq!(harness.run(id).await.state, RunState::Parked);
    assert_eq!(effects(&harness), ("looked\n".into(), String::new(), String::new()));
    decide(&harness, &yes()).await;
    harness.run_all().await;
    assert_completed(&harness.run(id).await);
    assert_eq!(effects(&harness), all_once());
}

#[tokio::test]
async fn every_approval_of_a_parallel_group_is_decided_on_its_own() {
    let harness = harness().await;
    let calls = vec![bash(DEPLOY, true), bash("deploy again || echo again >> deployed", true)];
    let id = submit(&harness, calls, true).await;
    harness.run_all().await;
    assert_eq!(pending(&harness).await.len(), 2);
    // The newest one first: it is the second call.
    let newest = pending(&harness).await.remove(0);
    let anna = Principal { tenant: harness.tenant, subject: "anna".into(), scopes: vec![Scope::Approve] };
    harness.store.decide(&anna, newest.id, &yes()).await.unwrap();
    harness.run_all().await;
    assert_eq!(harness.run(id).await.state, RunState::Parked);
    assert_eq!(harness.read("deployed").lines().count(), 1);
    decide(&harness, &DecisionRequest { approve: false, ..yes() }).await;
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_completed(&run);
    let mut results = statuses_and_codes(&run);
    results.sort();
    assert_eq!(results, ["completed", "failed call_rejected"]);
    assert_eq!(harness.read("deployed").lines().count(), 1);
}

#[tokio::test]
async fn rules_of_the_tenant_can_be_relaxed_by_the_session_and_by_always() {
    let harness = harness().await;
    let publish = || vec![bash("publish it || echo published >> published", false)];
    let id = submit(&harness, publish(), false).await;
    harness.run_all().await;
    assert_eq!(harness.run(id).await.state, RunState::Parked);
    decide(&harness, &DecisionRequest { always: true, ..yes() }).await;
    harness.run_all().await;
    assert_completed(&harness.run(id).await);
    submit(&harness, publish(), false).await;
    assert_completed(&harness.execute().await);
    let open = SessionPermissions {
        rules: vec![rule("bash", "*", PermissionAction::Allow, false)],
        ..SessionPermissions::default()
    };
    let open = harness.with_permissions(open).await;
    submit(&open, publish(), false).await;
    assert_completed(&open.execute().await);
    assert_eq!(harness.read("published").lines().count(), 3);
    let id = submit_three(&open).await;
    open.run_all().await;
    assert_eq!(open.run(id).await.state, RunState::Parked, "a locked rule stays");
}

#[tokio::test]
async fn approver_can_edit_the_call_but_not_into_a_denied_or_an_invalid_one() {
    for (arguments, status, deployed) in [
        (json!({ "command": "echo carefully >> deployed" }), "completed", "carefully\n"),
        (json!({ "command": "rm -rf x; echo x >> deployed" }), "failed call_denied", ""),
        (json!({ "no": "command" }), "failed invalid_argument", ""),
    ] {
        let harness = harness().await;
        let id = submit(&harness, vec![bash(DEPLOY, false)], true).await;
        harness.run_all().await;
        decide(&harness, &DecisionRequest { arguments: Some(arguments), ..yes() }).await;
        harness.run_all().await;
        let run = harness.run(id).await;
        assert_eq!(statuses_and_codes(&run), [status]);
        assert_eq!(harness.read("deployed"), deployed);
    }
}

#[tokio::test]
async fn cancelling_a_parked_run_withdraws_its_approval_and_makes_no_call() {
    let harness = harness().await;
    let id = submit_three(&harness).await;
    harness.run_all().await;
    let approval = pending(&harness).await.pop().unwrap();
    harness.store.request_cancel(harness.tenant, id, "enough").await.unwrap();
    let run = harness.run(id).await;
    assert_eq!(run.state, RunState::Cancelled);
    assert_eq!(
        statuses_and_codes(&run),
        ["completed", "cancelled", "cancelled"],
        "{:#?}",
        harness.steps(id).await
    );
    let approval = harness.store.get_approval(harness.tenant, approval.id).await.unwrap();
    assert_eq!(approval.state, ApprovalState::Withdrawn);
    assert_eq!(harness.run_all().await, 0);
    assert_eq!(effects(&harness), ("looked\n".into(), String::new(), String::new()));
}

#[tokio::test]
async fn crash_after_any_commit_asks_once_and_executes_the_approved_call_once() {
    for commit in 1..=4 {
        let harness = harness().await;
        let id = submit_three(&harness).await;
        harness.kill_or_commit_after(commit).await;
        harness.run_all().await;
        assert_eq!(pending(&harness).await.len(), 1, "after commit {commit}");
        decide(&harness, &yes()).await;
        harness.run_all().await;
        assert_completed(&harness.run(id).await);
        let (looked, deployed, after) = effects(&harness);
        assert_eq!((deployed.as_str(), after.as_str()), ("deployed\n", "after\n"), "after commit {commit}");
        // The first commit is the intent of the call before.
        assert!(looked == "looked\n" || commit == 1, "after commit {commit}");
    }
}

/// The owner dies before its first commit after the approval, after the intent, and after the result.
#[tokio::test]
async fn crash_after_the_approval_keeps_it_and_repeats_nothing() {
    for commit in 0..=3 {
        let harness = harness().await;
        let id = submit_three(&harness).await;
        harness.run_all().await;
        decide(&harness, &yes()).await;
        if commit == 0 {
            harness.claim().await;
            harness.expire_leases().await;
        } else {
            harness.kill_or_commit_after(commit).await;
        }
        harness.run_all().await;
        let run = harness.run(id).await;
        assert_completed(&run);
        assert!(pending(&harness).await.is_empty(), "asked again after commit {commit}");
        let results = statuses_and_codes(&run);
        // An intent without a result: whether the call had effects is unknown, so it is not repeated.
        assert!(results[1] == "completed" || results[1] == "interrupted interrupted", "{results:?}");
        assert!(harness.read("deployed").lines().count() <= 1, "after commit {commit}");
        if commit == 0 {
            assert_eq!(effects(&harness), all_once());
        }
    }
}

#[tokio::test]
async fn approval_of_a_different_call_is_rejected() {
    let harness = harness().await;
    let id = submit(&harness, vec![bash(DEPLOY, false)], true).await;
    harness.run_all().await;
    decide(&harness, &yes()).await;
    harness
        .tamper(
            "UPDATE approvals SET request = json_set(request, '$.call_hash', \
         replace(replace(request ->> '$.call_hash', 'a', 'b'), '1', '2'))",
        )
        .await;
    harness.run_all().await;
    assert_eq!(statuses_and_codes(&harness.run(id).await), ["failed approval_changed"]);
    assert_eq!(harness.read("deployed"), "");
}

#[tokio::test]
async fn run_that_drains_while_its_approval_is_pending_parks() {
    let harness = harness().await;
    let id = submit_three(&harness).await;
    let control = RunControl::default();
    // The first commits are the intent and the result of the call before.
    harness.transport.cancel_at_commit(2, &control.drain);
    let grant = harness.claim().await;
    let execution = harness.engine.execute(&grant, &control).await;
    assert!(matches!(execution, Execution::HandedOver(_)), "{execution:?}");
    harness.commit_execution(&grant, execution).await;
    harness.run_all().await;
    assert_eq!(harness.run(id).await.state, RunState::Parked);
    let late = harness.store.get_approval(harness.tenant, pending(&harness).await[0].id).await;
    assert_eq!(late.map_err(|error| error.code()).map(|it| it.state), Ok::<_, Code>(ApprovalState::Pending));
}
