//! Child runs, and parents that wait for them.

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use remuda_domain::{
    Code, RunState, SessionId,
    permission::{PermissionMode, SessionPermissions},
    run::ParkReason,
    session::SessionRef,
};
use remuda_store::{CancelScope, Claim, Commit, NewChild, NewSession, ParkRequest, RunTransition, connect};

use crate::{
    fixture::{Fixture, LONG_LEASE, completed, done, ending, names, page, progress, refusal, step},
    messages::{answered, model_step},
    tree_helpers::{child, child_of, creating_children, parked_for_children},
};

pub(crate) async fn repeated_commit_creates_children_once(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let (parent, session) = (grant.run.id, grant.fence.session);
    let mut small = child();
    let permissions =
        SessionPermissions { mode: Some(PermissionMode::Plan), ..SessionPermissions::default() };
    if let Some(new) = &mut small.new_session {
        new.permissions = permissions.clone();
    }
    let children = [small.clone(), child()];
    let commit = Commit { steps: vec![step(&grant, 0)], ..creating_children(&grant, &children) };
    let committed = fixture.store.commit(commit.clone()).await?;
    assert_eq!(committed.children.len(), 2);
    for (change, child) in committed.children.iter().zip(&children) {
        assert_eq!((change.session, change.wake), (child.run.session, true));
        assert_eq!(names(&change.events), ["session.created", "run.queued"]);
        let made = fixture.get_session(child.run.session).await?;
        assert_eq!((made.parent, made.depth, made.pending), (Some(session), 1, 1));
        assert_eq!((made.agent.as_deref(), made.workspace), (Some("scout"), fixture.workspace));
        let run = fixture.run(child.run.id).await?;
        assert_eq!((run.parent, run.state, run.timeout), (Some(parent), RunState::Queued, child.run.timeout));
        fixture.check(child.run.session).await?;
    }
    assert_eq!(fixture.get_session(small.run.session).await?.permissions, permissions);
    // The first response was lost: the children are woken again, but not created again.
    let again = fixture.store.commit(commit).await?;
    assert_eq!(
        again.children.iter().map(|it| (it.wake, it.events.len())).collect::<Vec<_>>(),
        [(true, 0); 2]
    );
    let below = fixture.store.list_child_sessions(fixture.tenant, session, &page(5)).await?.items;
    assert_eq!(
        below.iter().map(|it| it.id).collect::<Vec<_>>(),
        [children[0].run.session, children[1].run.session]
    );
    let stranger = fixture.stranger().await?;
    assert_eq!(
        refusal(fixture.store.list_child_sessions(stranger, session, &page(5)).await),
        Code::SessionNotFound
    );
    // The grant of a child contains its depth and permissions.
    let below = fixture.granted(small.run.session, fixture.worker(LONG_LEASE).await?).await?;
    assert_eq!((below.depth, below.permissions.clone(), below.budgeted), (1, permissions, None));
    let grandchild = child();
    fixture.store.commit(creating_children(&below, std::slice::from_ref(&grandchild))).await?;
    assert_eq!(fixture.get_session(grandchild.run.session).await?.depth, 2);
    fixture.check(session).await
}

pub(crate) async fn depth_counts_for_sessions_created_by_callers(fixture: &Fixture) -> Result<()> {
    let root = fixture.session().await?;
    let below = NewSession { parent: Some(root), ..fixture.new_session(None) };
    assert_eq!(fixture.store.create_session(&below).await?.value.depth, 1);
    let lowest = NewSession { parent: Some(below.id), ..fixture.new_session(None) };
    assert_eq!(fixture.store.create_session(&lowest).await?.value.depth, 2);
    Ok(())
}

/// A child session can be reused by its parent while it is idle.
pub(crate) async fn child_session_can_be_continued_while_idle(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let first = child();
    fixture.store.commit(creating_children(&grant, std::slice::from_ref(&first))).await?;
    let next = child_of(first.run.session);
    let before =
        (fixture.get_session(grant.fence.session).await?, fixture.events_of(grant.fence.session).await?);
    let refused = |child: NewChild| {
        let grant = grant.clone();
        async move {
            let commit = Commit { steps: vec![step(&grant, 0)], ..creating_children(&grant, &[child]) };
            refusal(fixture.store.commit(commit).await)
        }
    };
    assert_eq!(refused(next.clone()).await, Code::SessionBusy);
    fixture.execute_head_run(first.run.session).await?;
    assert_eq!(refused(child_of(SessionId::new())).await, Code::TaskNotFound);
    assert_eq!(refused(child_of(fixture.session().await?)).await, Code::TaskNotFound);
    assert_eq!(refused(child_of(grant.fence.session)).await, Code::TaskNotFound);
    let twice = [next.clone(), child_of(first.run.session)];
    assert_eq!(refusal(fixture.store.commit(creating_children(&grant, &twice)).await), Code::SessionBusy);
    // A refused commit writes nothing.
    assert_eq!(
        (fixture.get_session(grant.fence.session).await?, fixture.events_of(grant.fence.session).await?),
        before
    );
    assert_eq!(fixture.store.list_steps(fixture.tenant, grant.run.id).await?, []);
    let committed = fixture.store.commit(creating_children(&grant, std::slice::from_ref(&next))).await?;
    assert_eq!(names(&committed.children[0].events), ["run.queued"]);
    assert_eq!(fixture.run(next.run.id).await?.seq, 2);
    fixture.execute_head_run(first.run.session).await?;
    fixture.store.close_session(fixture.tenant, first.run.session).await?;
    assert_eq!(refused(child_of(first.run.session)).await, Code::TaskNotFound);
    fixture.check(first.run.session).await
}

pub(crate) async fn parent_resumes_when_enough_children_have_ended(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let (parent, session) = (grant.run.id, grant.fence.session);
    let children = [child(), child()];
    let waiting = Commit { children: children.to_vec(), ..parked_for_children(&grant, &children, 2) };
    let committed = fixture.store.commit(waiting).await?;
    assert_eq!((names(&committed.events), committed.released), (vec!["run.parked"], true));
    assert_eq!(committed.children.len(), 2);
    let parked = fixture.run(parent).await?;
    assert_eq!(
        (parked.state, parked.parked.map(|it| it.reason)),
        (RunState::Parked, Some(ParkReason::Children))
    );
    let first = fixture.execute_head_run(children[0].run.session).await?;
    assert_eq!((first.parent, first.has_children), (Some(parent), false));
    assert!(fixture.resume_parent(&first).await?.is_none(), "one of two");
    assert!(fixture.store.resume_ready(None, 10).await?.result.is_empty());
    let second = fixture.execute_head_run(children[1].run.session).await?;
    let stranger = fixture.stranger().await?;
    assert!(fixture.store.resume_if_ready(stranger, parent).await?.is_none());
    let change = fixture.resume_parent(&second).await?.context("the parent waits on")?;
    assert_eq!((change.session, change.wake, names(&change.events)), (session, true, vec!["run.resumed"]));
    assert!(fixture.resume_parent(&second).await?.is_none(), "once");
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    assert_eq!((grant.run.id, grant.run.attempt), (parent, 2));
    assert!(!fixture.store.commit(completed(&grant)).await?.has_children);
    fixture.check(session).await
}

pub(crate) async fn satisfied_wait_does_not_park_the_run(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let children = [child(), child()];
    fixture.store.commit(creating_children(&grant, &children)).await?;
    fixture.execute_head_run(children[0].run.session).await?;
    // One child is enough, and it has ended before the parent parks.
    let committed = fixture.store.commit(parked_for_children(&grant, &children, 1)).await?;
    assert!(committed.events.is_empty() && committed.released);
    assert_eq!(fixture.state(grant.run.id).await?, RunState::Queued);
    let grant = fixture.granted(grant.fence.session, fixture.worker(LONG_LEASE).await?).await?;
    // A run that waits for nothing, or for runs that do not exist, is not parked.
    let committed = fixture.store.commit(parked_for_children(&grant, &[child()], 1)).await?;
    assert!(committed.events.is_empty());
    let grant = fixture.granted(grant.fence.session, fixture.worker(LONG_LEASE).await?).await?;
    let nothing = ParkRequest { needed: 3, ..ParkRequest::on(ParkReason::Children) };
    fixture.store.commit(Commit::new(grant.fence, grant.run.id, RunTransition::Park(nothing))).await?;
    let grant = fixture.granted(grant.fence.session, fixture.worker(LONG_LEASE).await?).await?;
    fixture.store.commit(parked_for_children(&grant, &children, 2)).await?;
    assert_eq!(fixture.state(grant.run.id).await?, RunState::Parked);
    fixture.check(grant.fence.session).await
}

pub(crate) async fn resume_ready_resumes_parents_without_notification(fixture: &Fixture) -> Result<()> {
    let mut parents = Vec::new();
    for _ in 0..3 {
        let grant = fixture.executing().await?;
        let children = [child(), child()];
        fixture
            .store
            .commit(Commit { children: children.to_vec(), ..parked_for_children(&grant, &children, 1) })
            .await?;
        fixture.execute_head_run(children[1].run.session).await?;
        parents.push(grant);
    }
    // Page by page; each page continues where the last one ended.
    let resumed = fixture.store.resume_ready(None, 2).await?;
    assert_eq!((resumed.result.len(), resumed.next), (2, Some(parents[1].run.id)));
    let resumed = fixture.store.resume_ready(resumed.next, 2).await?;
    assert_eq!((resumed.result.len(), resumed.next), (1, None));
    assert!(fixture.store.resume_ready(None, 2).await?.result.is_empty());
    for grant in parents {
        assert_eq!(fixture.state(grant.run.id).await?, RunState::Queued);
        fixture.check(grant.fence.session).await?;
    }
    Ok(())
}

/// Children end while their parent parks: whichever comes second sees the other.
pub(crate) async fn concurrent_child_ends_and_parking_lose_no_wake_up(fixture: &Fixture) -> Result<()> {
    let other = connect(&fixture.options()).await?;
    for round in 0..40_u32 {
        let grant = fixture.executing().await?;
        let children = [child(), child(), child()];
        fixture.store.commit(creating_children(&grant, &children)).await?;
        let worker = fixture.worker(LONG_LEASE).await?;
        let below =
            try_join_all(children.iter().map(|child| fixture.granted(child.run.session, worker))).await?;
        let ends = below.iter().map(|grant| async {
            let committed = other.commit(completed(grant)).await?;
            other.resume_if_ready(fixture.tenant, committed.parent.context("no parent")?).await?;
            anyhow::Ok(())
        });
        let needed = 1 + round % 3;
        let park = fixture.store.commit(parked_for_children(&grant, &children, needed));
        let (parked, ended) = tokio::join!(park, try_join_all(ends));
        parked?;
        ended?;
        assert_eq!(fixture.state(grant.run.id).await?, RunState::Queued, "round {round}");
        fixture.check(grant.fence.session).await?;
    }
    Ok(())
}

pub(crate) async fn cancelled_child_resumes_its_parent(fixture: &Fixture) -> Result<()> {
    for by_session in [false, true] {
        let grant = fixture.executing().await?;
        let children = [child()];
        fixture
            .store
            .commit(Commit { children: children.to_vec(), ..parked_for_children(&grant, &children, 1) })
            .await?;
        let changes = if by_session {
            let reach = CancelScope::Session;
            fixture
                .store
                .cancel_session(fixture.tenant, children[0].run.session, reach, "not you")
                .await?
                .changes
        } else {
            let cancelled =
                fixture.store.request_cancel(fixture.tenant, children[0].run.id, "not you").await?;
            assert_eq!(cancelled.run.state, RunState::Cancelled);
            cancelled.descendants.changes
        };
        let change = changes.iter().find(|change| change.session == grant.fence.session);
        assert_eq!(change.map(|it| (it.wake, names(&it.events))), Some((true, vec!["run.resumed"])));
        let reports = fixture.store.child_reports(fixture.tenant, &[children[0].run.id]).await?;
        assert_eq!(reports[0].state, RunState::Cancelled);
        assert_eq!(reports[0].failure.as_ref().map(|it| it.message.as_str()), Some("not you"));
        assert_eq!(fixture.state(grant.run.id).await?, RunState::Queued);
    }
    Ok(())
}

pub(crate) async fn child_reports_contain_states_and_answers(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let children = [child(), child(), child(), child()];
    fixture.store.commit(creating_children(&grant, &children)).await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    let talks = fixture.granted(children[0].run.session, worker).await?;
    let earlier = done(&step(&talks, 0), "a tool's result");
    fixture.store.commit(progress(&talks, vec![earlier])).await?;
    let steps = vec![model_step(&talks, 1, Some(answered("all is well")))];
    fixture.store.commit(Commit { steps, ..completed(&talks) }).await?;
    let calls = fixture.granted(children[1].run.session, worker).await?;
    let long = "é".repeat(200 * 1024);
    fixture.store.commit(Commit { steps: vec![done(&step(&calls, 0), &long)], ..completed(&calls) }).await?;
    let fails = fixture.granted(children[2].run.session, worker).await?;
    fixture.store.commit(ending(&fails, RunState::Failed)).await?;
    let runs: Vec<_> =
        children.iter().map(|child| child.run.id).chain([remuda_domain::RunId::new()]).collect();
    let mut reports = fixture.store.child_reports(fixture.tenant, &runs).await?;
    reports.sort_by_key(|report| runs.iter().position(|run| *run == report.run));
    assert_eq!(reports.len(), 4);
    assert_eq!((reports[0].state, reports[0].answer.as_deref()), (RunState::Completed, Some("all is well")));
    let answer = reports[1].answer.as_deref().context("no answer")?;
    assert!(answer.len() <= 256 * 1024 && answer.len() > 255 * 1024 && long.starts_with(answer));
    assert_eq!((reports[2].state, reports[2].answer.as_deref()), (RunState::Failed, None));
    assert_eq!((reports[3].state, reports[3].session), (RunState::Queued, children[3].run.session));
    assert_eq!(fixture.store.child_reports(fixture.stranger().await?, &runs).await?, []);
    Ok(())
}

/// One worker slot is enough for a tree of any size: parents hold none while they wait.
pub(crate) async fn one_worker_executes_a_whole_tree(fixture: &Fixture) -> Result<()> {
    let root = fixture.executing().await?;
    let worker = root.fence.worker;
    let mut waiting = vec![(root.fence.session, 0_u32)];
    fixture.store.release(root.fence).await?;
    let (mut most, mut ended) = (0, 0);
    while let Some((session, depth)) = waiting.pop() {
        let Claim::Granted(grant) = fixture.claim(session, worker).await? else {
            anyhow::bail!("not granted")
        };
        most = most.max(depth);
        let was_parked = names(&fixture.events_of(session).await?).contains(&"run.parked");
        if depth < 2 && !was_parked {
            let children: Vec<_> = (0..4).map(|_| child()).collect();
            let commit = Commit { children: children.clone(), ..parked_for_children(&grant, &children, 4) };
            fixture.store.commit(commit).await?;
            waiting.extend(children.iter().map(|child| (child.run.session, depth + 1)));
            continue;
        }
        let next = fixture.store.commit(completed(&grant)).await?;
        ended += 1;
        if let Some(change) = fixture.resume_parent(&next).await? {
            waiting.push((change.session, depth - 1));
        }
    }
    assert_eq!((most, ended), (2, 1 + 4 + 16));
    assert_eq!(fixture.state(root.run.id).await?, RunState::Completed);
    assert_eq!(fixture.store.count_sessions_with_work().await?, 0);
    let found = fixture.store.get_session(fixture.tenant, &SessionRef::Id(root.fence.session)).await?;
    assert_eq!(found.pending, 0);
    Ok(())
}
