//! Tool calls that wait for approval.

use chrono::TimeDelta;
use remuda_domain::{
    Code, RunState, TenantId,
    approval::{Approval, ApprovalState, DecisionRequest},
    identity::{Principal, Scope},
    page::PageRequest,
    permission::{PermissionAction, PermissionRule, SessionPermissions, Unattended},
    run::ParkReason,
};
use remuda_engine::{AgentSettings, OnExpiry, PermissionSettings};
use remuda_store::ApprovalFilter;
use serde_json::json;

use crate::{
    harness::{Harness, OperatorSettings},
    inspect::statuses_and_codes,
};

const TURNS: &str = r#"
turns:
  - when: { turn: 1 }
    say: I look and deploy.
    call:
      - { tool: Bash, arguments: { command: "echo looked >> looked" } }
      - { tool: Bash, arguments: { command: "deploy --now || echo deployed >> deployed" } }
otherwise: { say: "{{last_tool_result}}" }
"#;

fn asks() -> SessionPermissions {
    let rule = PermissionRule::new("bash", "deploy *", PermissionAction::Ask);
    SessionPermissions { rules: vec![rule], ..SessionPermissions::default() }
}

async fn harness() -> Harness {
    Harness::new(TURNS).await.with_permissions(asks()).await
}

fn anna(tenant: TenantId) -> Principal {
    Principal { tenant, subject: "anna".into(), scopes: vec![Scope::Approve] }
}

fn yes() -> DecisionRequest {
    DecisionRequest { approve: true, message: String::new(), arguments: None, always: false, call_hash: None }
}

async fn pending(harness: &Harness) -> Vec<Approval> {
    let filter = ApprovalFilter { state: Some(ApprovalState::Pending), ..ApprovalFilter::default() };
    let page = PageRequest { size: 100, token: None };
    harness.store.list_approvals(harness.tenant, &filter, &page).await.unwrap().items
}

#[tokio::test]
async fn call_that_needs_approval_parks_its_run_until_approved() {
    let harness = harness().await;
    let id = harness.submit("please").await;
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(run.state, RunState::Parked);
    assert_eq!(run.parked.unwrap().reason, ParkReason::Approval);
    assert_eq!(harness.read("looked"), "looked\n", "what needs no approval is done");
    assert_eq!(harness.read("deployed"), "");
    let approval = pending(&harness).await.pop().unwrap();
    assert_eq!((approval.run, approval.request.tool.as_str()), (id, "Bash"));
    assert_eq!(approval.request.patterns, ["deploy --now"]);
    assert!(approval.expires_at.is_some());
    assert_eq!(harness.run_all().await, 0, "it waits as data");

    harness.store.decide(&anna(harness.tenant), approval.id, &yes()).await.unwrap();
    assert_eq!(harness.run_all().await, 1);
    let run = harness.run(id).await;
    assert_eq!(
        (run.state, statuses_and_codes(&run)),
        (RunState::Completed, vec!["completed".to_owned(); 2]),
        "{:?}",
        run.failure
    );
    assert_eq!(harness.read("deployed"), "deployed\n");
    assert_eq!(harness.read("looked"), "looked\n", "and not done again");
    let again = harness.store.decide(&anna(harness.tenant), approval.id, &yes()).await.unwrap_err();
    assert_eq!(again.code(), Code::ApprovalDecided);
    harness.assert_results_complete().await;
}

#[tokio::test]
async fn denial_and_its_reason_reach_the_model() {
    let harness = harness().await;
    let id = harness.submit("please").await;
    harness.run_all().await;
    let approval = pending(&harness).await.pop().unwrap();
    let no = DecisionRequest { approve: false, message: "not on a friday".into(), ..yes() };
    harness.store.decide(&anna(harness.tenant), approval.id, &no).await.unwrap();
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(
        (run.state, statuses_and_codes(&run)),
        (RunState::Completed, vec!["completed".to_owned(), "failed call_rejected".to_owned()])
    );
    assert!(run.answer.unwrap().contains("not on a friday"));
    assert_eq!(harness.read("deployed"), "");
}

#[tokio::test]
async fn approver_can_edit_the_call() {
    for (command, status_and_code, deployed) in [
        ("echo carefully >> deployed", "completed", "carefully\n"),
        ("rm -rf deployed; echo x >> deployed", "failed call_denied", ""),
    ] {
        let harness = harness().await;
        harness.write_agent("permission: { bash: { \"rm *\": deny } }");
        let id = harness.submit("please").await;
        harness.run_all().await;
        let approval = pending(&harness).await.pop().unwrap();
        let arguments = Some(json!({ "command": command }));
        let edited = DecisionRequest { arguments, message: "like this".into(), ..yes() };
        harness.store.decide(&anna(harness.tenant), approval.id, &edited).await.unwrap();
        harness.run_all().await;
        let run = harness.run(id).await;
        assert_eq!(
            (run.state, statuses_and_codes(&run)[1].as_str()),
            (RunState::Completed, status_and_code),
            "{:?}",
            run.failure
        );
        assert_eq!(harness.read("deployed"), deployed);
        let transcript = harness.transcript().await;
        assert!(transcript.iter().any(|line| line.contains("like this")), "{transcript:?}");
        harness.assert_results_complete().await;
    }
    // Invalid arguments become a result as well.
    let harness = harness().await;
    let id = harness.submit("please").await;
    harness.run_all().await;
    let approval = pending(&harness).await.pop().unwrap();
    let nonsense = DecisionRequest { arguments: Some(json!({ "no": "command" })), ..yes() };
    harness.store.decide(&anna(harness.tenant), approval.id, &nonsense).await.unwrap();
    harness.run_all().await;
    assert_eq!(statuses_and_codes(&harness.run(id).await)[1], "failed invalid_argument");
}

#[tokio::test]
async fn approval_with_always_allows_later_calls() {
    let harness = harness().await;
    let id = harness.submit("please").await;
    harness.run_all().await;
    let approval = pending(&harness).await.pop().unwrap();
    harness
        .store
        .decide(&anna(harness.tenant), approval.id, &DecisionRequest { always: true, ..yes() })
        .await
        .unwrap();
    harness.run_all().await;
    assert_eq!(harness.run(id).await.state, RunState::Completed);
    let id = harness.submit("again").await;
    harness.run_all().await;
    assert_eq!(harness.run(id).await.state, RunState::Completed);
    assert_eq!(harness.read("deployed").lines().count(), 2);
}

#[tokio::test]
async fn unattended_policy_decides_without_an_approver() {
    for (unattended, state, code) in [
        (Unattended::Refuse, RunState::Completed, None),
        (Unattended::Fail, RunState::Failed, Some("approval_unattended")),
    ] {
        let permissions = SessionPermissions { unattended: Some(unattended), ..asks() };
        let harness = Harness::new(TURNS).await.with_permissions(permissions).await;
        let run = harness.run_message("please").await;
        assert_eq!(run.state, state, "{unattended:?}: {:?}", run.failure);
        assert_eq!(run.failure.as_ref().map(|failure| failure.code.as_str()), code);
        assert_eq!(harness.read("deployed"), "", "{unattended:?}");
        assert!(pending(&harness).await.is_empty());
        harness.assert_results_complete().await;
    }
}

#[tokio::test]
async fn expired_approval_is_reported_or_fails_the_run() {
    for (on_expiry, state) in [(OnExpiry::Tell, RunState::Completed), (OnExpiry::Fail, RunState::Failed)] {
        let expire_after = Some(std::time::Duration::from_millis(1));
        let permissions = PermissionSettings { expire_after, on_expiry, ..PermissionSettings::default() };
        let settings = AgentSettings { permissions, ..AgentSettings::default() };
        let operator = OperatorSettings { settings, ..OperatorSettings::default() };
        let harness = Harness::with_settings(TURNS, operator).await.with_permissions(asks()).await;
        let id = harness.submit("please").await;
        harness.run_all().await;
        let approval = pending(&harness).await.pop().unwrap();
        let mut expired = harness.store.expire_approvals(10).await.unwrap();
        while expired.changes.is_empty() {
            expired = harness.store.expire_approvals(10).await.unwrap();
        }
        let late = harness.store.decide(&anna(harness.tenant), approval.id, &yes()).await.unwrap_err();
        assert_eq!(late.code(), Code::ApprovalExpired);
        harness.run_all().await;
        let run = harness.run(id).await;
        assert_eq!(
            (run.state, statuses_and_codes(&run)[1].as_str()),
            (state, "failed approval_expired"),
            "{:?}",
            run.failure
        );
        assert_eq!(harness.read("deployed"), "");
    }
}

/// The store's clock is the only one that counts: three hours pass when all its rows become three hours older.
#[tokio::test]
async fn approval_three_hours_later_resumes_the_run_on_another_worker() {
    let harness = harness().await;
    harness.write_agent("policy: { run_timeout_seconds: 30 }");
    let id = harness.submit("please").await;
    harness.run_all().await;
    harness.expire_leases().await;
    harness.age_everything(TimeDelta::hours(3)).await;
    let approval = pending(&harness).await.pop().unwrap();
    harness.store.decide(&anna(harness.tenant), approval.id, &yes()).await.unwrap();
    assert_eq!(harness.run_all().await, 1);
    let run = harness.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert!(run.paused >= std::time::Duration::from_secs(3 * 60 * 60), "{:?}", run.paused);
    assert_eq!(harness.read("deployed"), "deployed\n");
}

#[tokio::test]
async fn cancelling_a_parked_run_withdraws_its_approval() {
    let harness = harness().await;
    let id = harness.submit("please").await;
    harness.run_all().await;
    let approval = pending(&harness).await.pop().unwrap();
    harness.store.request_cancel(harness.tenant, id, "enough").await.unwrap();
    let approval = harness.store.get_approval(harness.tenant, approval.id).await.unwrap();
    assert_eq!(approval.state, ApprovalState::Withdrawn);
    let late = harness.store.decide(&anna(harness.tenant), approval.id, &yes()).await.unwrap_err();
    assert_eq!(late.code(), Code::ApprovalDecided);
    assert_eq!(harness.run_all().await, 0);
    // The next run gets a complete history.
    let run = harness.submit("and now?").await;
    harness.run_all().await;
    assert_ne!(harness.run(run).await.state, RunState::Failed);
}

#[tokio::test]
async fn crash_after_any_commit_requests_one_approval_and_executes_once() {
    for commit in 1..=5 {
        let harness = harness().await;
        let id = harness.submit("please").await;
        harness.kill_or_commit_after(commit).await;
        harness.run_all().await;
        let model_call_count = pending(&harness).await;
        assert_eq!(model_call_count.len(), 1, "after commit {commit}");
        harness.store.decide(&anna(harness.tenant), model_call_count[0].id, &yes()).await.unwrap();
        harness.run_all().await;
        let run = harness.run(id).await;
        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        assert_eq!(harness.read("deployed"), "deployed\n", "after commit {commit}");
    }
}

/// The failure does not depend on which worker finds it.
#[tokio::test]
async fn unattended_failure_survives_a_crash() {
    for commit in 1..=4 {
        let permissions = SessionPermissions { unattended: Some(Unattended::Fail), ..asks() };
        let harness = Harness::new(TURNS).await.with_permissions(permissions).await;
        let id = harness.submit("please").await;
        harness.kill_or_commit_after(commit).await;
        harness.run_all().await;
        let run = harness.run(id).await;
        assert_eq!(run.state, RunState::Failed, "after commit {commit}");
        assert_eq!(run.failure.unwrap().code, "approval_unattended", "after commit {commit}");
        assert_eq!((harness.read("looked"), harness.read("deployed")), (String::new(), String::new()));
    }
}

#[tokio::test]
async fn approval_of_a_different_call_is_rejected() {
    let harness = harness().await;
    let id = harness.submit("please").await;
    harness.run_all().await;
    let approval = pending(&harness).await.pop().unwrap();
    harness.store.decide(&anna(harness.tenant), approval.id, &yes()).await.unwrap();
    harness
        .tamper(
            "UPDATE approvals SET request = json_set(request, '$.call_hash', \
         replace(replace(request ->> '$.call_hash', 'a', 'b'), '1', '2'))",
        )
        .await;
    harness.run_all().await;
    assert_eq!(statuses_and_codes(&harness.run(id).await)[1], "failed approval_changed");
    assert_eq!(harness.read("deployed"), "");
}
