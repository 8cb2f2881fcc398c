//! Runs that commits of their parents make, and parents that wait for them.

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use remuda_domain::{
    Code, RunState, SessionId,
    permission::{PermissionMode, SessionPermissions},
    run::ParkReason,
    session::SessionRef,
};
use remuda_store::{Claim, Commit, NewChild, NewSession, Parking, Reach, Then, connect};

use crate::{
    family::{awaiting, child, child_of, making},
    lab::{LONG_LEASE, Lab, completed, done, ending, names, page, progress, refusal, step},
    messages::{answered, model_step},
};

pub(crate) async fn a_commit_makes_children_once(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let (parent, session) = (grant.run.id, grant.fence.session);
    let mut small = child();
    let permissions =
        SessionPermissions { mode: Some(PermissionMode::Plan), ..SessionPermissions::default() };
    if let Some(new) = &mut small.new_session {
        new.permissions = permissions.clone();
    }
    let children = [small.clone(), child()];
    let commit = Commit { steps: vec![step(&grant, 0)], ..making(&grant, &children) };
    let committed = lab.store.commit(commit.clone()).await?;
    assert_eq!(committed.children.len(), 2);
    for (change, child) in committed.children.iter().zip(&children) {
        assert_eq!((change.session, change.wake), (child.session, true));
        assert_eq!(names(&change.events), ["session.created", "run.queued"]);
        let made = lab.look(child.session).await?;
        assert_eq!((made.parent, made.depth, made.pending), (Some(session), 1, 1));
        assert_eq!((made.agent.as_deref(), made.workspace), (Some("scout"), lab.workspace));
        let run = lab.run(child.run).await?;
        assert_eq!((run.parent, run.state, run.timeout), (Some(parent), RunState::Queued, child.timeout));
        lab.check(child.session).await?;
    }
    assert_eq!(lab.look(small.session).await?.permissions, permissions);
    // Its answer was lost: they are woken again, and not made again.
    let again = lab.store.commit(commit).await?;
    assert_eq!(
        again.children.iter().map(|it| (it.wake, it.events.len())).collect::<Vec<_>>(),
        [(true, 0); 2]
    );
    let below = lab.store.list_child_sessions(lab.tenant, session, &page(5)).await?.items;
    assert_eq!(below.iter().map(|it| it.id).collect::<Vec<_>>(), [children[0].session, children[1].session]);
    let stranger = lab.stranger().await?;
    assert_eq!(
        refusal(lab.store.list_child_sessions(stranger, session, &page(5)).await),
        Code::SessionNotFound
    );
    // Whoever executes one is told how deep it is, and what it may do.
    let below = lab.granted(small.session, lab.worker(LONG_LEASE).await?).await?;
    assert_eq!((below.depth, below.permissions.clone(), below.budgeted), (1, permissions, None));
    let grandchild = child();
    lab.store.commit(making(&below, std::slice::from_ref(&grandchild))).await?;
    assert_eq!(lab.look(grandchild.session).await?.depth, 2);
    lab.check(session).await
}

pub(crate) async fn depth_counts_for_callers_too(lab: &Lab) -> Result<()> {
    let root = lab.session().await?;
    let below = NewSession { parent: Some(root), ..lab.new_session(None) };
    assert_eq!(lab.store.create_session(&below).await?.value.depth, 1);
    let lowest = NewSession { parent: Some(below.id), ..lab.new_session(None) };
    assert_eq!(lab.store.create_session(&lowest).await?.value.depth, 2);
    Ok(())
}

/// A child's session can be used again, while it is free and its parent's.
pub(crate) async fn a_task_is_gone_on_with(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let first = child();
    lab.store.commit(making(&grant, std::slice::from_ref(&first))).await?;
    let next = child_of(first.session);
    let before = (lab.look(grant.fence.session).await?, lab.events_of(grant.fence.session).await?);
    let refused = |child: NewChild| {
        let grant = grant.clone();
        async move {
            let commit = Commit { steps: vec![step(&grant, 0)], ..making(&grant, &[child]) };
            refusal(lab.store.commit(commit).await)
        }
    };
    assert_eq!(refused(next.clone()).await, Code::SessionBusy);
    lab.work_off(first.session).await?;
    assert_eq!(refused(child_of(SessionId::new())).await, Code::TaskNotFound);
    assert_eq!(refused(child_of(lab.session().await?)).await, Code::TaskNotFound);
    assert_eq!(refused(child_of(grant.fence.session)).await, Code::TaskNotFound);
    let twice = [next.clone(), child_of(first.session)];
    assert_eq!(refusal(lab.store.commit(making(&grant, &twice)).await), Code::SessionBusy);
    // Nothing of a refused commit was written.
    assert_eq!((lab.look(grant.fence.session).await?, lab.events_of(grant.fence.session).await?), before);
    assert_eq!(lab.store.list_steps(lab.tenant, grant.run.id).await?, []);
    let committed = lab.store.commit(making(&grant, std::slice::from_ref(&next))).await?;
    assert_eq!(names(&committed.children[0].events), ["run.queued"]);
    assert_eq!(lab.run(next.run).await?.seq, 2);
    lab.work_off(first.session).await?;
    lab.store.close_session(lab.tenant, first.session).await?;
    assert_eq!(refused(child_of(first.session)).await, Code::TaskNotFound);
    lab.check(first.session).await
}

pub(crate) async fn a_parent_goes_on_when_its_children_have_ended(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let (parent, session) = (grant.run.id, grant.fence.session);
    let children = [child(), child()];
    let waiting = Commit { children: children.to_vec(), ..awaiting(&grant, &children, 2) };
    let committed = lab.store.commit(waiting).await?;
    assert_eq!((names(&committed.events), committed.released), (vec!["run.parked"], true));
    assert_eq!(committed.children.len(), 2);
    let parked = lab.run(parent).await?;
    assert_eq!(
        (parked.state, parked.parked.map(|it| it.reason)),
        (RunState::Parked, Some(ParkReason::Children))
    );
    let first = lab.work_off(children[0].session).await?;
    assert_eq!((first.parent, first.has_children), (Some(parent), false));
    assert!(lab.tell_parent(&first).await?.is_none(), "one of two");
    assert!(lab.store.resume_ready(None, 10).await?.done.is_empty());
    let second = lab.work_off(children[1].session).await?;
    let stranger = lab.stranger().await?;
    assert!(lab.store.settle_parked(stranger, parent).await?.is_none());
    let change = lab.tell_parent(&second).await?.context("the parent waits on")?;
    assert_eq!((change.session, change.wake, names(&change.events)), (session, true, vec!["run.resumed"]));
    assert!(lab.tell_parent(&second).await?.is_none(), "once");
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    assert_eq!((grant.run.id, grant.run.attempt), (parent, 2));
    assert!(!lab.store.commit(completed(&grant)).await?.has_children);
    lab.check(session).await
}

pub(crate) async fn what_has_come_is_not_waited_for(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let children = [child(), child()];
    lab.store.commit(making(&grant, &children)).await?;
    lab.work_off(children[0].session).await?;
    // One is enough, and it has ended before the parent waits.
    let committed = lab.store.commit(awaiting(&grant, &children, 1)).await?;
    assert!(committed.events.is_empty() && committed.released);
    assert_eq!(lab.state(grant.run.id).await?, RunState::Queued);
    let grant = lab.granted(grant.fence.session, lab.worker(LONG_LEASE).await?).await?;
    // Whoever waits for nothing, or for what does not exist, waits not at all.
    let committed = lab.store.commit(awaiting(&grant, &[child()], 1)).await?;
    assert!(committed.events.is_empty());
    let grant = lab.granted(grant.fence.session, lab.worker(LONG_LEASE).await?).await?;
    let nothing = Parking { needed: 3, ..Parking::on(ParkReason::Children) };
    lab.store.commit(Commit::new(grant.fence, grant.run.id, Then::Park(nothing))).await?;
    let grant = lab.granted(grant.fence.session, lab.worker(LONG_LEASE).await?).await?;
    lab.store.commit(awaiting(&grant, &children, 2)).await?;
    assert_eq!(lab.state(grant.run.id).await?, RunState::Parked);
    lab.check(grant.fence.session).await
}

pub(crate) async fn nobody_has_to_tell(lab: &Lab) -> Result<()> {
    let mut parents = Vec::new();
    for _ in 0..3 {
        let grant = lab.executing().await?;
        let children = [child(), child()];
        lab.store.commit(Commit { children: children.to_vec(), ..awaiting(&grant, &children, 1) }).await?;
        lab.work_off(children[1].session).await?;
        parents.push(grant);
    }
    // Some at a time, and each look goes on where the last one ended.
    let resumed = lab.store.resume_ready(None, 2).await?;
    assert_eq!((resumed.done.len(), resumed.next), (2, Some(parents[1].run.id)));
    let resumed = lab.store.resume_ready(resumed.next, 2).await?;
    assert_eq!((resumed.done.len(), resumed.next), (1, None));
    assert!(lab.store.resume_ready(None, 2).await?.done.is_empty());
    for grant in parents {
        assert_eq!(lab.state(grant.run.id).await?, RunState::Queued);
        lab.check(grant.fence.session).await?;
    }
    Ok(())
}

/// Ends of children and the parking of their parent at the same time: whoever comes second sees the other.
pub(crate) async fn no_wake_up_is_lost(lab: &Lab) -> Result<()> {
    let other = connect(&lab.options()).await?;
    for round in 0..40_u32 {
        let grant = lab.executing().await?;
        let children = [child(), child(), child()];
        lab.store.commit(making(&grant, &children)).await?;
        let worker = lab.worker(LONG_LEASE).await?;
        let below = try_join_all(children.iter().map(|child| lab.granted(child.session, worker))).await?;
        let ends = below.iter().map(|grant| async {
            let committed = other.commit(completed(grant)).await?;
            other.settle_parked(lab.tenant, committed.parent.context("no parent")?).await?;
            anyhow::Ok(())
        });
        let needed = 1 + round % 3;
        let park = lab.store.commit(awaiting(&grant, &children, needed));
        let (parked, ended) = tokio::join!(park, try_join_all(ends));
        parked?;
        ended?;
        assert_eq!(lab.state(grant.run.id).await?, RunState::Queued, "round {round}");
        lab.check(grant.fence.session).await?;
    }
    Ok(())
}

pub(crate) async fn a_cancelled_child_wakes_its_parent(lab: &Lab) -> Result<()> {
    for by_session in [false, true] {
        let grant = lab.executing().await?;
        let children = [child()];
        lab.store.commit(Commit { children: children.to_vec(), ..awaiting(&grant, &children, 1) }).await?;
        let changes = if by_session {
            let reach = Reach::Session;
            lab.store.cancel_session(lab.tenant, children[0].session, reach, "not you").await?.changes
        } else {
            let cancelled = lab.store.request_cancel(lab.tenant, children[0].run, "not you").await?;
            assert_eq!(cancelled.run.state, RunState::Cancelled);
            cancelled.below.changes
        };
        let change = changes.iter().find(|change| change.session == grant.fence.session);
        assert_eq!(change.map(|it| (it.wake, names(&it.events))), Some((true, vec!["run.resumed"])));
        let reports = lab.store.look_at_children(lab.tenant, &[children[0].run]).await?;
        assert_eq!(reports[0].state, RunState::Cancelled);
        assert_eq!(reports[0].failure.as_ref().map(|it| it.message.as_str()), Some("not you"));
        assert_eq!(lab.state(grant.run.id).await?, RunState::Queued);
    }
    Ok(())
}

pub(crate) async fn parents_learn_what_became_of_children(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let children = [child(), child(), child(), child()];
    lab.store.commit(making(&grant, &children)).await?;
    let worker = lab.worker(LONG_LEASE).await?;
    let talks = lab.granted(children[0].session, worker).await?;
    let earlier = done(&step(&talks, 0), "a tool's result");
    lab.store.commit(progress(&talks, vec![earlier])).await?;
    let steps = vec![model_step(&talks, 1, Some(answered("all is well")))];
    lab.store.commit(Commit { steps, ..completed(&talks) }).await?;
    let calls = lab.granted(children[1].session, worker).await?;
    let long = "é".repeat(200 * 1024);
    lab.store.commit(Commit { steps: vec![done(&step(&calls, 0), &long)], ..completed(&calls) }).await?;
    let fails = lab.granted(children[2].session, worker).await?;
    lab.store.commit(ending(&fails, RunState::Failed)).await?;
    let runs: Vec<_> = children.iter().map(|child| child.run).chain([remuda_domain::RunId::new()]).collect();
    let mut reports = lab.store.look_at_children(lab.tenant, &runs).await?;
    reports.sort_by_key(|report| runs.iter().position(|run| *run == report.run));
    assert_eq!(reports.len(), 4);
    assert_eq!((reports[0].state, reports[0].answer.as_deref()), (RunState::Completed, Some("all is well")));
    let answer = reports[1].answer.as_deref().context("no answer")?;
    assert!(answer.len() <= 256 * 1024 && answer.len() > 255 * 1024 && long.starts_with(answer));
    assert_eq!((reports[2].state, reports[2].answer.as_deref()), (RunState::Failed, None));
    assert_eq!((reports[3].state, reports[3].session), (RunState::Queued, children[3].session));
    assert_eq!(lab.store.look_at_children(lab.stranger().await?, &runs).await?, []);
    Ok(())
}

/// One worker at a time, however large the tree: parents hold none while they wait.
pub(crate) async fn one_worker_works_off_a_tree(lab: &Lab) -> Result<()> {
    let root = lab.executing().await?;
    let worker = root.fence.worker;
    let mut waiting = vec![(root.fence.session, 0_u32)];
    lab.store.release(root.fence).await?;
    let (mut most, mut ended) = (0, 0);
    while let Some((session, depth)) = waiting.pop() {
        let Claim::Granted(grant) = lab.claim(session, worker).await? else { anyhow::bail!("not granted") };
        most = most.max(depth);
        let was_parked = names(&lab.events_of(session).await?).contains(&"run.parked");
        if depth < 2 && !was_parked {
            let children: Vec<_> = (0..4).map(|_| child()).collect();
            let commit = Commit { children: children.clone(), ..awaiting(&grant, &children, 4) };
            lab.store.commit(commit).await?;
            waiting.extend(children.iter().map(|child| (child.session, depth + 1)));
            continue;
        }
        let next = lab.store.commit(completed(&grant)).await?;
        ended += 1;
        if let Some(change) = lab.tell_parent(&next).await? {
            waiting.push((change.session, depth - 1));
        }
    }
    assert_eq!((most, ended), (2, 1 + 4 + 16));
    assert_eq!(lab.state(root.run.id).await?, RunState::Completed);
    assert_eq!(lab.store.count_sessions_with_work().await?, 0);
    let found = lab.store.get_session(lab.tenant, &SessionRef::Id(root.fence.session)).await?;
    assert_eq!(found.pending, 0);
    Ok(())
}
