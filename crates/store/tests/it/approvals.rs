//! Calls that wait for a person.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, EventBody, RunState,
    approval::{Answer, ApprovalState},
    identity::{Principal, Scope},
    limits::MAX_RULES,
    permission::{PermissionAction, PermissionMode, PermissionRule, SessionPermissions},
    run::ParkReason,
};
use remuda_store::{ApprovalFilter, Commit, NewApproval, NewSession, SessionUpdate, Then};
use remuda_testkit::wait_for;

use crate::{
    family::{asking, question, yes},
    lab::{LONG_LEASE, Lab, PATIENCE, completed, names, page, refusal},
};

pub(crate) async fn a_decision_lets_the_run_go_on(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let (session, asked) = (grant.fence.session, question(Some(Duration::from_secs(3600))));
    let committed = lab.store.commit(asking(&grant, std::slice::from_ref(&asked))).await?;
    assert_eq!((names(&committed.events), committed.released), (vec!["run.parked"], true));
    let open = lab.store.get_approval(lab.tenant, asked.id).await?;
    assert_eq!((open.state, &open.request, open.run), (ApprovalState::Pending, &asked.request, grant.run.id));
    let lives = open.expires_at.context("no expiry")? - open.created_at;
    assert_eq!(lives.to_std()?, Duration::from_secs(3600));
    let answer = Answer { message: "go on".into(), call_hash: Some(asked.request.call_hash), ..yes() };
    let decided = lab.store.decide(&lab.anna(), asked.id, &answer).await?;
    assert_eq!(decided.approval, lab.store.get_approval(lab.tenant, asked.id).await?);
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
    let run = lab.run(grant.run.id).await?;
    assert_eq!((run.state, run.parked), (RunState::Queued, None));
    lab.work_off(session).await?;
    lab.check(session).await
}

pub(crate) async fn a_decision_is_made_once_and_by_the_right_one(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let mut asked = question(None);
    asked.request.approvers = vec!["anna".into(), "cid".into()];
    lab.store.commit(asking(&grant, std::slice::from_ref(&asked))).await?;
    let anna = lab.anna();
    let code = |caller: Principal, answer: Answer| async move {
        refusal(lab.store.decide(&caller, asked.id, &answer).await)
    };
    let other =
        |tenant, subject: &str, scope| Principal { tenant, subject: subject.into(), scopes: vec![scope] };
    let stranger = lab.stranger().await?;
    assert_eq!(code(other(stranger, "anna", Scope::Approve), yes()).await, Code::ApprovalNotFound);
    assert_eq!(refusal(lab.store.get_approval(stranger, asked.id).await), Code::ApprovalNotFound);
    assert_eq!(code(other(lab.tenant, "ben", Scope::Approve), yes()).await, Code::PermissionDenied);
    assert_eq!(code(other(lab.tenant, "anna", Scope::Write), yes()).await, Code::PermissionDenied);
    let unseen = Answer { call_hash: Some(remuda_domain::content::ContentHash::of("else")), ..yes() };
    assert_eq!(code(anna.clone(), unseen).await, Code::ApprovalChanged);
    assert_eq!(lab.state(grant.run.id).await?, RunState::Parked);
    let no = Answer { approve: false, ..yes() };
    let denied = lab.store.decide(&anna, asked.id, &no).await?.approval;
    assert_eq!(denied.state, ApprovalState::Denied);
    assert_eq!(code(anna, yes()).await, Code::ApprovalDecided);
    assert_eq!(lab.store.get_approval(lab.tenant, asked.id).await?, denied);
    lab.check(grant.fence.session).await
}

pub(crate) async fn two_answers_at_once_make_one_decision(lab: &Lab) -> Result<()> {
    for _ in 0..10 {
        let grant = lab.executing().await?;
        let asked = question(None);
        lab.store.commit(asking(&grant, std::slice::from_ref(&asked))).await?;
        let (caller, yes, no) = (lab.anna(), yes(), Answer { approve: false, ..yes() });
        let (one, two) =
            tokio::join!(lab.store.decide(&caller, asked.id, &yes), lab.store.decide(&caller, asked.id, &no));
        assert!(one.is_ok() != two.is_ok());
        let events = lab.events_of(grant.fence.session).await?;
        assert_eq!(names(&events)[2..], ["run.parked", "approval.decided", "run.resumed"]);
    }
    Ok(())
}

/// Several calls are asked about at once; the answers come one by one, some before the run waits.
pub(crate) async fn all_answers_are_waited_for(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let asked = [question(None), question(None), question(None)];
    let early = Commit::new(grant.fence, grant.run.id, Then::Continue);
    lab.store.commit(Commit { approvals: asked[..2].to_vec(), ..early }).await?;
    let first = lab.store.decide(&lab.anna(), asked[0].id, &yes()).await?;
    assert_eq!((names(&first.change.events), first.change.wake), (vec!["approval.decided"], false));
    let waits = Commit { approvals: asked[2..].to_vec(), ..asking(&grant, &asked) };
    lab.store.commit(waits).await?;
    let second = lab.store.decide(&lab.anna(), asked[1].id, &yes()).await?;
    assert_eq!((names(&second.change.events), second.change.wake), (vec!["approval.decided"], false));
    let third = lab.store.decide(&lab.anna(), asked[2].id, &yes()).await?;
    assert_eq!(
        (names(&third.change.events), third.change.wake),
        (vec!["approval.decided", "run.resumed"], true)
    );
    // Decided before the run waits: then it does not.
    let grant = lab.granted(grant.fence.session, lab.worker(LONG_LEASE).await?).await?;
    let again = Commit { approvals: Vec::new(), ..asking(&grant, &asked) };
    let committed = lab.store.commit(again).await?;
    assert!(committed.events.is_empty() && committed.released);
    assert_eq!(lab.state(grant.run.id).await?, RunState::Queued);
    lab.check(grant.fence.session).await
}

pub(crate) async fn an_ended_run_withdraws_its_questions(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let asked = question(Some(Duration::from_millis(1)));
    lab.store.commit(asking(&grant, std::slice::from_ref(&asked))).await?;
    let cancelled = lab.store.request_cancel(lab.tenant, grant.run.id, "enough").await?;
    assert_eq!(names(&cancelled.change.events), ["approval.decided", "run.cancelled"]);
    let state = |id| async move { anyhow::Ok(lab.store.get_approval(lab.tenant, id).await?.state) };
    assert_eq!(state(asked.id).await?, ApprovalState::Withdrawn);
    assert_eq!(refusal(lab.store.decide(&lab.anna(), asked.id, &yes()).await), Code::ApprovalDecided);
    assert!(lab.store.expire_approvals(10).await?.changes.is_empty());
    // The same for one that its worker ends.
    let grant = lab.executing().await?;
    let asked = question(None);
    let early = Commit::new(grant.fence, grant.run.id, Then::Continue);
    lab.store.commit(Commit { approvals: vec![asked.clone()], ..early }).await?;
    let committed = lab.store.commit(completed(&grant)).await?;
    assert_eq!(names(&committed.events), ["approval.decided", "run.completed"]);
    assert_eq!(state(asked.id).await?, ApprovalState::Withdrawn);
    lab.check(grant.fence.session).await
}

pub(crate) async fn questions_expire(lab: &Lab) -> Result<()> {
    assert_eq!(lab.store.next_approval_end().await?, None);
    let mut grants = Vec::new();
    for _ in 0..3 {
        let grant = lab.executing().await?;
        let asked = question(Some(Duration::from_millis(1)));
        lab.store.commit(asking(&grant, std::slice::from_ref(&asked))).await?;
        grants.push((grant, asked));
    }
    let patient = lab.executing().await?;
    let later = question(Some(Duration::from_secs(100)));
    lab.store.commit(asking(&patient, std::slice::from_ref(&later))).await?;
    wait_for("an approval to be due", PATIENCE, || async {
        lab.store.next_approval_end().await.is_ok_and(|left| left == Some(Duration::ZERO))
    })
    .await;
    // Whoever answers now is too late, even if nobody has closed the question yet.
    wait_for("all approvals to be due", PATIENCE, || async {
        let late = lab.store.decide(&lab.anna(), grants[2].1.id, &yes()).await;
        late.is_err_and(|error| error.code() == Code::ApprovalExpired)
    })
    .await;
    let expired = lab.store.expire_approvals(2).await?;
    assert_eq!((expired.changes.len(), expired.more), (2, true));
    assert!(
        expired.changes.iter().all(|it| it.wake && names(&it.events) == ["approval.decided", "run.resumed"])
    );
    assert_eq!(lab.store.expire_approvals(2).await?.changes.len(), 1);
    for (grant, asked) in grants {
        assert_eq!(lab.store.get_approval(lab.tenant, asked.id).await?.state, ApprovalState::Expired);
        assert_eq!(refusal(lab.store.decide(&lab.anna(), asked.id, &yes()).await), Code::ApprovalExpired);
        assert_eq!(lab.state(grant.run.id).await?, RunState::Queued);
        lab.check(grant.fence.session).await?;
    }
    assert_eq!(lab.state(patient.run.id).await?, RunState::Parked);
    assert!(lab.store.next_approval_end().await?.context("no end")? > Duration::from_secs(10));
    Ok(())
}

pub(crate) async fn always_is_remembered(lab: &Lab) -> Result<()> {
    let permissions =
        SessionPermissions { mode: Some(PermissionMode::Default), ..SessionPermissions::default() };
    let new = NewSession { permissions: permissions.clone(), ..lab.new_session(None) };
    let made = lab.store.create_session(&new).await?.value;
    assert_eq!(made.permissions, permissions);
    lab.submit(new.id).await?;
    let worker = lab.worker(LONG_LEASE).await?;
    let always = Answer { always: true, ..yes() };
    for round in 0..2 {
        let grant = lab.granted(new.id, worker).await?;
        assert_eq!(grant.permissions.rules.len(), round.min(1), "asked again, a rule stands once");
        let asked = question(None);
        lab.store.commit(asking(&grant, std::slice::from_ref(&asked))).await?;
        let decided = lab.store.decide(&lab.anna(), asked.id, &always).await?;
        assert!(decided.approval.decision.is_some_and(|decision| decision.always));
    }
    let now = lab.look(new.id).await?.permissions;
    assert_eq!((now.mode, now.rules), (permissions.mode, question(None).request.always));
    // There is room for so many and no more; then nothing is decided.
    let rule = |number: usize| PermissionRule::new("bash", number.to_string(), PermissionAction::Ask);
    let full =
        SessionPermissions { rules: (0..MAX_RULES).map(rule).collect(), ..SessionPermissions::default() };
    let update = SessionUpdate { permissions: Some(full.clone()), ..SessionUpdate::default() };
    let updated = lab.store.update_session(lab.tenant, new.id, &update).await?;
    assert_eq!((updated.value.permissions, names(&updated.events)), (full.clone(), vec!["session.updated"]));
    let grant = lab.granted(new.id, worker).await?;
    let asked = question(None);
    lab.store.commit(asking(&grant, std::slice::from_ref(&asked))).await?;
    assert_eq!(refusal(lab.store.decide(&lab.anna(), asked.id, &always).await), Code::TooLarge);
    assert_eq!(lab.state(grant.run.id).await?, RunState::Parked);
    assert_eq!(lab.look(new.id).await?.permissions, full);
    let none = SessionUpdate { permissions: Some(SessionPermissions::default()), ..SessionUpdate::default() };
    lab.store.update_session(lab.tenant, new.id, &none).await?;
    assert!(lab.look(new.id).await?.permissions.is_default());
    let title = SessionUpdate { title: Some("x".into()), ..SessionUpdate::default() };
    lab.store.update_session(lab.tenant, new.id, &update).await?;
    assert_eq!(lab.store.update_session(lab.tenant, new.id, &title).await?.value.permissions, full);
    lab.check(new.id).await
}

pub(crate) async fn approvals_are_listed(lab: &Lab) -> Result<()> {
    let mut all: Vec<(NewApproval, remuda_store::Grant)> = Vec::new();
    for _ in 0..3 {
        let grant = lab.executing().await?;
        let asked = question(None);
        lab.store.commit(asking(&grant, std::slice::from_ref(&asked))).await?;
        all.push((asked, grant));
    }
    lab.store.decide(&lab.anna(), all[1].0.id, &yes()).await?;
    let list = |filter: ApprovalFilter, tenant| async move {
        let found = lab.store.list_approvals(tenant, &filter, &page(10)).await?.items;
        anyhow::Ok(found.iter().map(|it| it.id).collect::<Vec<_>>())
    };
    let ids: Vec<_> = all.iter().map(|(asked, _)| asked.id).collect();
    let every = ApprovalFilter::default();
    assert_eq!(list(every.clone(), lab.tenant).await?, [ids[2], ids[1], ids[0]], "newest first");
    let pending = ApprovalFilter { state: Some(ApprovalState::Pending), ..every.clone() };
    assert_eq!(list(pending.clone(), lab.tenant).await?, [ids[2], ids[0]]);
    let of_session = ApprovalFilter { session: Some(all[0].1.fence.session), ..every.clone() };
    assert_eq!(list(of_session, lab.tenant).await?, [ids[0]]);
    let of_run = ApprovalFilter { run: Some(all[1].1.run.id), ..pending.clone() };
    assert_eq!(list(of_run, lab.tenant).await?, []);
    assert_eq!(list(every.clone(), lab.stranger().await?).await?, []);
    let first = lab.store.list_approvals(lab.tenant, &every, &page(2)).await?;
    assert_eq!(first.items.len(), 2);
    let rest = remuda_domain::page::PageRequest { size: 2, token: first.next };
    assert_eq!(lab.store.list_approvals(lab.tenant, &every, &rest).await?.items[0].id, ids[0]);
    Ok(())
}

pub(crate) async fn waiting_for_people_costs_no_time(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let asked = question(None);
    lab.store.commit(asking(&grant, std::slice::from_ref(&asked))).await?;
    let parked = lab.run(grant.run.id).await?.parked.context("not parked")?;
    assert_eq!(parked.reason, ParkReason::Approval);
    tokio::time::sleep(Duration::from_millis(30)).await;
    let decided = lab.store.decide(&lab.anna(), asked.id, &yes()).await?;
    let waited = decided.change.events[1].at - parked.at;
    let paused = lab.run(grant.run.id).await?.paused;
    assert!(paused.abs_diff(waited.to_std()?) <= Duration::from_millis(2), "{paused:?} of {waited:?}");
    Ok(())
}
