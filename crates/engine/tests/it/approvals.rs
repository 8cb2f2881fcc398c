//! Calls that wait for a person.

use chrono::TimeDelta;
use remuda_domain::{
    Code, RunState, TenantId,
    approval::{Answer, Approval, ApprovalState},
    identity::{Principal, Scope},
    page::PageRequest,
    permission::{PermissionAction, PermissionRule, SessionPermissions, Unattended},
    run::ParkReason,
};
use remuda_engine::{AgentSettings, OnExpiry, PermissionSettings};
use remuda_store::ApprovalFilter;
use serde_json::json;

use crate::{
    lab::{Installation, Lab},
    look::verdicts,
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

async fn lab() -> Lab {
    Lab::new(TURNS).await.with_permissions(asks()).await
}

fn anna(tenant: TenantId) -> Principal {
    Principal { tenant, subject: "anna".into(), scopes: vec![Scope::Approve] }
}

fn yes() -> Answer {
    Answer { approve: true, message: String::new(), arguments: None, always: false, call_hash: None }
}

async fn pending(lab: &Lab) -> Vec<Approval> {
    let filter = ApprovalFilter { state: Some(ApprovalState::Pending), ..ApprovalFilter::default() };
    let page = PageRequest { size: 100, token: None };
    lab.store.list_approvals(lab.tenant, &filter, &page).await.unwrap().items
}

#[tokio::test]
async fn a_call_that_needs_approval_parks_its_run_and_is_made_once_allowed() {
    let lab = lab().await;
    let id = lab.submit("please").await;
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!(run.state, RunState::Parked);
    assert_eq!(run.parked.unwrap().reason, ParkReason::Approval);
    assert_eq!(lab.read("looked"), "looked\n", "what needs no approval is done");
    assert_eq!(lab.read("deployed"), "");
    let approval = pending(&lab).await.pop().unwrap();
    assert_eq!((approval.run, approval.request.tool.as_str()), (id, "Bash"));
    assert_eq!(approval.request.patterns, ["deploy --now"]);
    assert!(approval.expires_at.is_some());
    assert_eq!(lab.drive().await, 0, "it waits as data");

    lab.store.decide(&anna(lab.tenant), approval.id, &yes()).await.unwrap();
    assert_eq!(lab.drive().await, 1);
    let run = lab.run(id).await;
    assert_eq!(
        (run.state, verdicts(&run)),
        (RunState::Completed, vec!["completed".to_owned(); 2]),
        "{:?}",
        run.failure
    );
    assert_eq!(lab.read("deployed"), "deployed\n");
    assert_eq!(lab.read("looked"), "looked\n", "and not done again");
    let again = lab.store.decide(&anna(lab.tenant), approval.id, &yes()).await.unwrap_err();
    assert_eq!(again.code(), Code::ApprovalDecided);
    lab.assert_complete().await;
}

#[tokio::test]
async fn a_refusal_and_its_reason_reach_the_model() {
    let lab = lab().await;
    let id = lab.submit("please").await;
    lab.drive().await;
    let approval = pending(&lab).await.pop().unwrap();
    let no = Answer { approve: false, message: "not on a friday".into(), ..yes() };
    lab.store.decide(&anna(lab.tenant), approval.id, &no).await.unwrap();
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!(
        (run.state, verdicts(&run)),
        (RunState::Completed, vec!["completed".to_owned(), "failed call_rejected".to_owned()])
    );
    assert!(run.answer.unwrap().contains("not on a friday"));
    assert_eq!(lab.read("deployed"), "");
}

#[tokio::test]
async fn whoever_approves_can_change_the_call() {
    for (command, verdict, deployed) in [
        ("echo carefully >> deployed", "completed", "carefully\n"),
        ("rm -rf deployed; echo x >> deployed", "failed call_denied", ""),
    ] {
        let lab = lab().await;
        lab.write_agent("permission: { bash: { \"rm *\": deny } }");
        let id = lab.submit("please").await;
        lab.drive().await;
        let approval = pending(&lab).await.pop().unwrap();
        let arguments = Some(json!({ "command": command }));
        let edited = Answer { arguments, message: "like this".into(), ..yes() };
        lab.store.decide(&anna(lab.tenant), approval.id, &edited).await.unwrap();
        lab.drive().await;
        let run = lab.run(id).await;
        assert_eq!(
            (run.state, verdicts(&run)[1].as_str()),
            (RunState::Completed, verdict),
            "{:?}",
            run.failure
        );
        assert_eq!(lab.read("deployed"), deployed);
        let told = lab.transcript().await;
        assert!(told.iter().any(|line| line.contains("like this")), "{told:?}");
        lab.assert_complete().await;
    }
    // What cannot be a call is a result too.
    let lab = lab().await;
    let id = lab.submit("please").await;
    lab.drive().await;
    let approval = pending(&lab).await.pop().unwrap();
    let nonsense = Answer { arguments: Some(json!({ "no": "command" })), ..yes() };
    lab.store.decide(&anna(lab.tenant), approval.id, &nonsense).await.unwrap();
    lab.drive().await;
    assert_eq!(verdicts(&lab.run(id).await)[1], "failed invalid_argument");
}

#[tokio::test]
async fn always_asks_no_more() {
    let lab = lab().await;
    let id = lab.submit("please").await;
    lab.drive().await;
    let approval = pending(&lab).await.pop().unwrap();
    lab.store.decide(&anna(lab.tenant), approval.id, &Answer { always: true, ..yes() }).await.unwrap();
    lab.drive().await;
    assert_eq!(lab.run(id).await.state, RunState::Completed);
    let id = lab.submit("again").await;
    lab.drive().await;
    assert_eq!(lab.run(id).await.state, RunState::Completed);
    assert_eq!(lab.read("deployed").lines().count(), 2);
}

#[tokio::test]
async fn nobody_to_ask_is_decided_by_policy() {
    for (unattended, state, code) in [
        (Unattended::Refuse, RunState::Completed, None),
        (Unattended::Fail, RunState::Failed, Some("approval_unattended")),
    ] {
        let permissions = SessionPermissions { unattended: Some(unattended), ..asks() };
        let lab = Lab::new(TURNS).await.with_permissions(permissions).await;
        let run = lab.ask("please").await;
        assert_eq!(run.state, state, "{unattended:?}: {:?}", run.failure);
        assert_eq!(run.failure.as_ref().map(|failure| failure.code.as_str()), code);
        assert_eq!(lab.read("deployed"), "", "{unattended:?}");
        assert!(pending(&lab).await.is_empty());
        lab.assert_complete().await;
    }
}

#[tokio::test]
async fn nobody_in_time_is_no_refusal() {
    for (on_expiry, state) in [(OnExpiry::Tell, RunState::Completed), (OnExpiry::Fail, RunState::Failed)] {
        let expire_after = Some(std::time::Duration::from_millis(1));
        let permissions = PermissionSettings { expire_after, on_expiry, ..PermissionSettings::default() };
        let settings = AgentSettings { permissions, ..AgentSettings::default() };
        let installation = Installation { settings, ..Installation::default() };
        let lab = Lab::installed(TURNS, installation).await.with_permissions(asks()).await;
        let id = lab.submit("please").await;
        lab.drive().await;
        let approval = pending(&lab).await.pop().unwrap();
        let mut expired = lab.store.expire_approvals(10).await.unwrap();
        while expired.changes.is_empty() {
            expired = lab.store.expire_approvals(10).await.unwrap();
        }
        let late = lab.store.decide(&anna(lab.tenant), approval.id, &yes()).await.unwrap_err();
        assert_eq!(late.code(), Code::ApprovalExpired);
        lab.drive().await;
        let run = lab.run(id).await;
        assert_eq!(
            (run.state, verdicts(&run)[1].as_str()),
            (state, "failed approval_expired"),
            "{:?}",
            run.failure
        );
        assert_eq!(lab.read("deployed"), "");
    }
}

/// The clock is the database's: three hours pass when everything in it is three hours older.
#[tokio::test]
async fn an_approval_three_hours_later_goes_on_elsewhere() {
    let lab = lab().await;
    lab.write_agent("policy: { run_timeout_seconds: 30 }");
    let id = lab.submit("please").await;
    lab.drive().await;
    lab.lose_workers().await;
    lab.let_time_pass(TimeDelta::hours(3)).await;
    assert_eq!(lab.store.end_overdue(10).await.unwrap().ended, 0, "a run that waits for a person has time");
    let approval = pending(&lab).await.pop().unwrap();
    lab.store.decide(&anna(lab.tenant), approval.id, &yes()).await.unwrap();
    assert_eq!(lab.drive().await, 1);
    let run = lab.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert!(run.paused >= std::time::Duration::from_secs(3 * 60 * 60), "{:?}", run.paused);
    assert_eq!(lab.read("deployed"), "deployed\n");
}

#[tokio::test]
async fn cancelling_a_run_that_waits_withdraws_its_question() {
    let lab = lab().await;
    let id = lab.submit("please").await;
    lab.drive().await;
    let approval = pending(&lab).await.pop().unwrap();
    lab.store.request_cancel(lab.tenant, id, "enough").await.unwrap();
    let approval = lab.store.get_approval(lab.tenant, approval.id).await.unwrap();
    assert_eq!(approval.state, ApprovalState::Withdrawn);
    let late = lab.store.decide(&anna(lab.tenant), approval.id, &yes()).await.unwrap_err();
    assert_eq!(late.code(), Code::ApprovalDecided);
    assert_eq!(lab.drive().await, 0);
    // The next message finds a conversation that is complete.
    let run = lab.submit("and now?").await;
    lab.drive().await;
    assert_ne!(lab.run(run).await.state, RunState::Failed);
}

#[tokio::test]
async fn dying_after_any_commit_asks_once_and_deploys_once() {
    for commit in 1..=5 {
        let lab = lab().await;
        let id = lab.submit("please").await;
        lab.die_or_leave_after(commit).await;
        lab.drive().await;
        let questions = pending(&lab).await;
        assert_eq!(questions.len(), 1, "after commit {commit}");
        lab.store.decide(&anna(lab.tenant), questions[0].id, &yes()).await.unwrap();
        lab.drive().await;
        let run = lab.run(id).await;
        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        assert_eq!(lab.read("deployed"), "deployed\n", "after commit {commit}");
    }
}

/// What is to end a run ends it, whoever is left to see that.
#[tokio::test]
async fn a_policy_to_fail_survives_its_worker() {
    for commit in 1..=4 {
        let permissions = SessionPermissions { unattended: Some(Unattended::Fail), ..asks() };
        let lab = Lab::new(TURNS).await.with_permissions(permissions).await;
        let id = lab.submit("please").await;
        lab.die_or_leave_after(commit).await;
        lab.drive().await;
        let run = lab.run(id).await;
        assert_eq!(run.state, RunState::Failed, "after commit {commit}");
        assert_eq!(run.failure.unwrap().code, "approval_unattended", "after commit {commit}");
        assert_eq!((lab.read("looked"), lab.read("deployed")), (String::new(), String::new()));
    }
}

#[tokio::test]
async fn what_was_approved_is_what_is_called() {
    let lab = lab().await;
    let id = lab.submit("please").await;
    lab.drive().await;
    let approval = pending(&lab).await.pop().unwrap();
    lab.store.decide(&anna(lab.tenant), approval.id, &yes()).await.unwrap();
    lab.tamper(
        "UPDATE approvals SET request = json_set(request, '$.call_hash', \
         replace(replace(request ->> '$.call_hash', 'a', 'b'), '1', '2'))",
    )
    .await;
    lab.drive().await;
    assert_eq!(verdicts(&lab.run(id).await)[1], "failed approval_changed");
    assert_eq!(lab.read("deployed"), "");
}
