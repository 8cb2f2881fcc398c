//! Approvals: deciding, expiring, listing.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, EventBody, RunState,
    approval::{ApprovalState, DecisionRequest},
    identity::{Principal, Scope},
    limits::MAX_RULES,
    permission::{PermissionAction, PermissionMode, PermissionRule, SessionPermissions},
    run::ParkReason,
};
use remuda_store::{ApprovalFilter, Commit, NewApproval, NewSession, RunTransition, SessionUpdate};
use remuda_testkit::wait_for;

use crate::{
    fixture::{Fixture, LONG_LEASE, PATIENCE, completed, names, page, refusal},
    tree_helpers::{approve, new_approval, parked_for_approvals},
};

pub(crate) async fn decision_resumes_the_run(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let (session, asked) = (grant.fence.session, new_approval(Some(Duration::from_secs(3600))));
    let committed = fixture.store.commit(parked_for_approvals(&grant, std::slice::from_ref(&asked))).await?;
    assert_eq!((names(&committed.events), committed.released), (vec!["run.parked"], true));
    let open = fixture.store.get_approval(fixture.tenant, asked.id).await?;
    assert_eq!((open.state, &open.request, open.run), (ApprovalState::Pending, &asked.request, grant.run.id));
    let lives = open.expires_at.context("no expiry")? - open.created_at;
    assert_eq!(lives.to_std()?, Duration::from_secs(3600));
    let answer =
        DecisionRequest { message: "go on".into(), call_hash: Some(asked.request.call_hash), ..approve() };
    let decided = fixture.store.decide(&fixture.approver(), asked.id, &answer).await?;
    assert_eq!(decided.approval, fixture.store.get_approval(fixture.tenant, asked.id).await?);
    let decision = decided.approval.decision.context("no decision")?;
    assert_eq!((decision.by.as_str(), decision.message.as_str()), ("anna", "go on"));
    assert_eq!((decided.change.session, decided.change.wake), (session, true));
    assert_eq!(names(&decided.change.events), ["approval.decided", "run.resumed"]);
    let told = EventBody::ApprovalDecided {
        approval: asked.id,
        call: asked.request.call,
        state: ApprovalState::Approved,
        by: Some("anna".into()),
        message: "go on".into(),
    };
    assert_eq!((&decided.change.events[0].body, decided.change.events[0].run), (&told, Some(grant.run.id)));
    let run = fixture.run(grant.run.id).await?;
    assert_eq!((run.state, run.parked), (RunState::Queued, None));
    fixture.execute_head_run(session).await?;
    fixture.check(session).await
}

pub(crate) async fn approval_is_decided_once_and_by_an_authorized_caller(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let mut asked = new_approval(None);
    asked.request.approvers = vec!["anna".into(), "cid".into()];
    fixture.store.commit(parked_for_approvals(&grant, std::slice::from_ref(&asked))).await?;
    let anna = fixture.approver();
    let code = |caller: Principal, answer: DecisionRequest| async move {
        refusal(fixture.store.decide(&caller, asked.id, &answer).await)
    };
    let other =
        |tenant, subject: &str, scope| Principal { tenant, subject: subject.into(), scopes: vec![scope] };
    let stranger = fixture.stranger().await?;
    assert_eq!(code(other(stranger, "anna", Scope::Approve), approve()).await, Code::ApprovalNotFound);
    assert_eq!(refusal(fixture.store.get_approval(stranger, asked.id).await), Code::ApprovalNotFound);
    assert_eq!(code(other(fixture.tenant, "ben", Scope::Approve), approve()).await, Code::PermissionDenied);
    assert_eq!(code(other(fixture.tenant, "anna", Scope::Write), approve()).await, Code::PermissionDenied);
    let unseen =
        DecisionRequest { call_hash: Some(remuda_domain::content::ContentHash::of("else")), ..approve() };
    assert_eq!(code(anna.clone(), unseen).await, Code::ApprovalChanged);
    assert_eq!(fixture.state(grant.run.id).await?, RunState::Parked);
    let no = DecisionRequest { approve: false, ..approve() };
    let denied = fixture.store.decide(&anna, asked.id, &no).await?.approval;
    assert_eq!(denied.state, ApprovalState::Denied);
    assert_eq!(code(anna, approve()).await, Code::ApprovalDecided);
    assert_eq!(fixture.store.get_approval(fixture.tenant, asked.id).await?, denied);
    fixture.check(grant.fence.session).await
}

pub(crate) async fn concurrent_decisions_yield_one(fixture: &Fixture) -> Result<()> {
    for _ in 0..10 {
        let grant = fixture.executing().await?;
        let asked = new_approval(None);
        fixture.store.commit(parked_for_approvals(&grant, std::slice::from_ref(&asked))).await?;
        let (caller, approve, no) =
            (fixture.approver(), approve(), DecisionRequest { approve: false, ..approve() });
        let (one, two) = tokio::join!(
            fixture.store.decide(&caller, asked.id, &approve),
            fixture.store.decide(&caller, asked.id, &no)
        );
        assert!(one.is_ok() != two.is_ok());
        let events = fixture.events_of(grant.fence.session).await?;
        assert_eq!(names(&events)[2..], ["run.parked", "approval.decided", "run.resumed"]);
    }
    Ok(())
}

/// A run requests several approvals at once; decisions arrive one by one, some before the run is parked.
pub(crate) async fn run_waits_for_all_its_approvals(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let asked = [new_approval(None), new_approval(None), new_approval(None)];
    let early = Commit::new(grant.fence, grant.run.id, RunTransition::Continue);
    fixture.store.commit(Commit { approvals: asked[..2].to_vec(), ..early }).await?;
    let first = fixture.store.decide(&fixture.approver(), asked[0].id, &approve()).await?;
    assert_eq!((names(&first.change.events), first.change.wake), (vec!["approval.decided"], false));
    let waits = Commit { approvals: asked[2..].to_vec(), ..parked_for_approvals(&grant, &asked) };
    fixture.store.commit(waits).await?;
    let second = fixture.store.decide(&fixture.approver(), asked[1].id, &approve()).await?;
    assert_eq!((names(&second.change.events), second.change.wake), (vec!["approval.decided"], false));
    let third = fixture.store.decide(&fixture.approver(), asked[2].id, &approve()).await?;
    assert_eq!(
        (names(&third.change.events), third.change.wake),
        (vec!["approval.decided", "run.resumed"], true)
    );
    // Decided before the run is parked: then it is not parked.
    let grant = fixture.granted(grant.fence.session, fixture.worker(LONG_LEASE).await?).await?;
    let again = Commit { approvals: Vec::new(), ..parked_for_approvals(&grant, &asked) };
    let committed = fixture.store.commit(again).await?;
    assert!(committed.events.is_empty() && committed.released);
    assert_eq!(fixture.state(grant.run.id).await?, RunState::Queued);
    fixture.check(grant.fence.session).await
}

pub(crate) async fn ended_run_withdraws_its_pending_approvals(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let asked = new_approval(Some(Duration::from_millis(1)));
    fixture.store.commit(parked_for_approvals(&grant, std::slice::from_ref(&asked))).await?;
    let cancelled = fixture.store.request_cancel(fixture.tenant, grant.run.id, "enough").await?;
    assert_eq!(names(&cancelled.change.events), ["approval.decided", "run.cancelled"]);
    let state = |id| async move { anyhow::Ok(fixture.store.get_approval(fixture.tenant, id).await?.state) };
    assert_eq!(state(asked.id).await?, ApprovalState::Withdrawn);
    assert_eq!(
        refusal(fixture.store.decide(&fixture.approver(), asked.id, &approve()).await),
        Code::ApprovalDecided
    );
    assert!(fixture.store.expire_approvals(10).await?.changes.is_empty());
    // The same for a run that its worker ends.
    let grant = fixture.executing().await?;
    let asked = new_approval(None);
    let early = Commit::new(grant.fence, grant.run.id, RunTransition::Continue);
    fixture.store.commit(Commit { approvals: vec![asked.clone()], ..early }).await?;
    let committed = fixture.store.commit(completed(&grant)).await?;
    assert_eq!(names(&committed.events), ["approval.decided", "run.completed"]);
    assert_eq!(state(asked.id).await?, ApprovalState::Withdrawn);
    fixture.check(grant.fence.session).await
}

pub(crate) async fn approvals_expire(fixture: &Fixture) -> Result<()> {
    assert_eq!(fixture.store.next_approval_expiry().await?, None);
    let mut grants = Vec::new();
    for _ in 0..3 {
        let grant = fixture.executing().await?;
        let asked = new_approval(Some(Duration::from_millis(1)));
        fixture.store.commit(parked_for_approvals(&grant, std::slice::from_ref(&asked))).await?;
        grants.push((grant, asked));
    }
    let patient = fixture.executing().await?;
    let later = new_approval(Some(Duration::from_secs(100)));
    fixture.store.commit(parked_for_approvals(&patient, std::slice::from_ref(&later))).await?;
    wait_for("an approval to be due", PATIENCE, || async {
        fixture.store.next_approval_expiry().await.is_ok_and(|left| left == Some(Duration::ZERO))
    })
    .await;
    // A decision after the deadline is refused, even if the approval is not marked expired yet.
    wait_for("all approvals to be due", PATIENCE, || async {
        let late = fixture.store.decide(&fixture.approver(), grants[2].1.id, &approve()).await;
        late.is_err_and(|error| error.code() == Code::ApprovalExpired)
    })
    .await;
    let expired = fixture.store.expire_approvals(2).await?;
    assert_eq!((expired.changes.len(), expired.more), (2, true));
    assert!(
        expired.changes.iter().all(|it| it.wake && names(&it.events) == ["approval.decided", "run.resumed"])
    );
    assert_eq!(fixture.store.expire_approvals(2).await?.changes.len(), 1);
    for (grant, asked) in grants {
        assert_eq!(fixture.store.get_approval(fixture.tenant, asked.id).await?.state, ApprovalState::Expired);
        assert_eq!(
            refusal(fixture.store.decide(&fixture.approver(), asked.id, &approve()).await),
            Code::ApprovalExpired
        );
        assert_eq!(fixture.state(grant.run.id).await?, RunState::Queued);
        fixture.check(grant.fence.session).await?;
    }
    assert_eq!(fixture.state(patient.run.id).await?, RunState::Parked);
    assert!(fixture.store.next_approval_expiry().await?.context("no end")? > Duration::from_secs(10));
    Ok(())
}

pub(crate) async fn always_adds_rules_to_the_session(fixture: &Fixture) -> Result<()> {
    let permissions =
        SessionPermissions { mode: Some(PermissionMode::Default), ..SessionPermissions::default() };
    let new = NewSession { permissions: permissions.clone(), ..fixture.new_session(None) };
    let made = fixture.store.create_session(&new).await?.value;
    assert_eq!(made.permissions, permissions);
    fixture.submit(new.id).await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    let always = DecisionRequest { always: true, ..approve() };
    for round in 0..2 {
        let grant = fixture.granted(new.id, worker).await?;
        assert_eq!(grant.permissions.rules.len(), round.min(1), "a repeated rule is stored once");
        let asked = new_approval(None);
        fixture.store.commit(parked_for_approvals(&grant, std::slice::from_ref(&asked))).await?;
        let decided = fixture.store.decide(&fixture.approver(), asked.id, &always).await?;
        assert!(decided.approval.decision.is_some_and(|decision| decision.always));
    }
    let now = fixture.get_session(new.id).await?.permissions;
    assert_eq!((now.mode, now.rules), (permissions.mode, new_approval(None).request.always));
    // The number of rules is limited; at the limit nothing is decided.
    let rule = |number: usize| PermissionRule::new("bash", number.to_string(), PermissionAction::Ask);
    let full =
        SessionPermissions { rules: (0..MAX_RULES).map(rule).collect(), ..SessionPermissions::default() };
    let update = SessionUpdate { permissions: Some(full.clone()), ..SessionUpdate::default() };
    let updated = fixture.store.update_session(fixture.tenant, new.id, &update).await?;
    assert_eq!((updated.value.permissions, names(&updated.events)), (full.clone(), vec!["session.updated"]));
    let grant = fixture.granted(new.id, worker).await?;
    let asked = new_approval(None);
    fixture.store.commit(parked_for_approvals(&grant, std::slice::from_ref(&asked))).await?;
    assert_eq!(refusal(fixture.store.decide(&fixture.approver(), asked.id, &always).await), Code::TooLarge);
    assert_eq!(fixture.state(grant.run.id).await?, RunState::Parked);
    assert_eq!(fixture.get_session(new.id).await?.permissions, full);
    let none = SessionUpdate { permissions: Some(SessionPermissions::default()), ..SessionUpdate::default() };
    fixture.store.update_session(fixture.tenant, new.id, &none).await?;
    assert!(fixture.get_session(new.id).await?.permissions.is_default());
    let title = SessionUpdate { title: Some("x".into()), ..SessionUpdate::default() };
    fixture.store.update_session(fixture.tenant, new.id, &update).await?;
    assert_eq!(fixture.store.update_session(fixture.tenant, new.id, &title).await?.value.permissions, full);
    fixture.check(new.id).await
}

pub(crate) async fn approvals_are_listed(fixture: &Fixture) -> Result<()> {
    let mut all: Vec<(NewApproval, remuda_store::Grant)> = Vec::new();
    for _ in 0..3 {
        let grant = fixture.executing().await?;
        let asked = new_approval(None);
        fixture.store.commit(parked_for_approvals(&grant, std::slice::from_ref(&asked))).await?;
        all.push((asked, grant));
    }
    fixture.store.decide(&fixture.approver(), all[1].0.id, &approve()).await?;
    let list = |filter: ApprovalFilter, tenant| async move {
        let found = fixture.store.list_approvals(tenant, &filter, &page(10)).await?.items;
        anyhow::Ok(found.iter().map(|it| it.id).collect::<Vec<_>>())
    };
    let ids: Vec<_> = all.iter().map(|(asked, _)| asked.id).collect();
    let every = ApprovalFilter::default();
    assert_eq!(list(every.clone(), fixture.tenant).await?, [ids[2], ids[1], ids[0]], "newest first");
    let pending = ApprovalFilter { state: Some(ApprovalState::Pending), ..every.clone() };
    assert_eq!(list(pending.clone(), fixture.tenant).await?, [ids[2], ids[0]]);
    let of_session = ApprovalFilter { session: Some(all[0].1.fence.session), ..every.clone() };
    assert_eq!(list(of_session, fixture.tenant).await?, [ids[0]]);
    let of_run = ApprovalFilter { run: Some(all[1].1.run.id), ..pending.clone() };
    assert_eq!(list(of_run, fixture.tenant).await?, []);
    assert_eq!(list(every.clone(), fixture.stranger().await?).await?, []);
    let first = fixture.store.list_approvals(fixture.tenant, &every, &page(2)).await?;
    assert_eq!(first.items.len(), 2);
    let rest = remuda_domain::page::PageRequest { size: 2, token: first.next };
    assert_eq!(fixture.store.list_approvals(fixture.tenant, &every, &rest).await?.items[0].id, ids[0]);
    Ok(())
}

pub(crate) async fn waiting_for_approvals_uses_no_time(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let asked = new_approval(None);
    fixture.store.commit(parked_for_approvals(&grant, std::slice::from_ref(&asked))).await?;
    let parked = fixture.run(grant.run.id).await?.parked.context("not parked")?;
    assert_eq!(parked.reason, ParkReason::Approval);
    tokio::time::sleep(Duration::from_millis(30)).await;
    let decided = fixture.store.decide(&fixture.approver(), asked.id, &approve()).await?;
    let waited = decided.change.events[1].at - parked.at;
    let paused = fixture.run(grant.run.id).await?.paused;
    assert!(paused.abs_diff(waited.to_std()?) <= Duration::from_millis(2), "{paused:?} of {waited:?}");
    Ok(())
}
