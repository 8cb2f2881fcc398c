//! Cancelling a run cancels its descendants.

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, RunId, RunState, SessionId,
    run::{IfBusy, ParkReason},
};
use remuda_store::{CancelScope, CancelSignal, Commit, Grant, NewChild, NewRun, RunTransition};

use crate::{
    fixture::{Fixture, LONG_LEASE, completed, ending, names, parking, refusal},
    tree_helpers::{child, creating_children, new_approval, parked_for_approvals, parked_for_children},
};

/// A root that waits for three children: one executes and has a queued child, one waits for an approval and has an
/// executing child, one is queued.
struct Tree {
    root: Grant,
    /// The executing runs, except the root.
    executing: Vec<Grant>,
    runs: Vec<RunId>,
    sessions: Vec<SessionId>,
}

async fn tree(fixture: &Fixture) -> Result<Tree> {
    let root = fixture.executing().await?;
    let children = [child(), child(), child()];
    let below = [child(), child()];
    fixture
        .store
        .commit(Commit { children: children.to_vec(), ..parked_for_children(&root, &children, 3) })
        .await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    let busy = fixture.granted(children[0].run.session, worker).await?;
    fixture.store.commit(creating_children(&busy, &below[..1])).await?;
    let asks = fixture.granted(children[1].run.session, worker).await?;
    fixture.store.commit(creating_children(&asks, &below[1..])).await?;
    fixture.store.commit(parked_for_approvals(&asks, &[new_approval(None)])).await?;
    let lowest = fixture.granted(below[1].run.session, worker).await?;
    let all = || children.iter().chain(&below);
    let runs = all().map(|child: &NewChild| child.run.id).chain([root.run.id]).collect();
    let sessions = all().map(|child| child.run.session).chain([root.fence.session]).collect();
    Ok(Tree { root, executing: vec![busy, lowest], runs, sessions })
}

impl Tree {
    /// The workers stop the runs they were notified about, and then nothing is left.
    async fn conclude(&self, fixture: &Fixture, signals: &[CancelSignal]) -> Result<()> {
        let mut told: Vec<RunId> = signals.iter().map(|signal| signal.run).collect();
        let mut expected: Vec<RunId> = self.executing.iter().map(|grant| grant.run.id).collect();
        told.sort();
        expected.sort();
        assert_eq!(told, expected);
        for grant in &self.executing {
            let committed = fixture.store.commit(ending(grant, RunState::Cancelled)).await?;
            assert!(!committed.has_children, "they are already cancelled");
            assert!(fixture.resume_parent(&committed).await?.is_none(), "its parent has ended");
        }
        for run in &self.runs {
            assert!(fixture.state(*run).await?.is_terminal());
        }
        for session in &self.sessions {
            fixture.check(*session).await?;
        }
        assert_eq!(fixture.store.count_sessions_with_work().await?, 0);
        Ok(())
    }
}

pub(crate) async fn cancelling_the_root_cancels_all_descendants(fixture: &Fixture) -> Result<()> {
    let tree = tree(fixture).await?;
    let cancelled = fixture.store.request_cancel(fixture.tenant, tree.root.run.id, "enough").await?;
    assert_eq!((cancelled.run.state, cancelled.signal), (RunState::Cancelled, None));
    // From the top down, so that no run was resumed by the end of a child.
    let resumed = |events: &[remuda_domain::Event]| names(events).contains(&"run.resumed");
    assert!(!cancelled.descendants.changes.iter().any(|change| resumed(&change.events)));
    assert_eq!(cancelled.descendants.ended.len(), 3);
    let asks = fixture.events_of(tree.sessions[1]).await?;
    assert_eq!(names(&asks)[names(&asks).len() - 2..], ["approval.decided", "run.cancelled"]);
    tree.conclude(fixture, &cancelled.descendants.requested).await
}

pub(crate) async fn cancelling_a_session_cancels_descendants_of_its_runs(fixture: &Fixture) -> Result<()> {
    for reach in [CancelScope::Session, CancelScope::Tree] {
        let tree = tree(fixture).await?;
        let cancelled =
            fixture.store.cancel_session(fixture.tenant, tree.root.fence.session, reach, "enough").await?;
        assert_eq!((cancelled.ended.len(), cancelled.requested.len()), (4, 2), "{reach:?}");
        tree.conclude(fixture, &cancelled.requested).await?;
    }
    Ok(())
}

pub(crate) async fn interrupt_cancels_descendants(fixture: &Fixture) -> Result<()> {
    let tree = tree(fixture).await?;
    let session = tree.root.fence.session;
    let newer = NewRun { if_busy: IfBusy::Interrupt, ..fixture.new_run(session) };
    let submitted = fixture.store.submit(newer).await?;
    assert_eq!((submitted.interrupted.as_slice(), submitted.signal), ([tree.root.run.id].as_slice(), None));
    assert_eq!(submitted.descendants.ended.len(), 3);
    fixture.execute_head_run(session).await?;
    tree.conclude(fixture, &submitted.descendants.requested).await
}

pub(crate) async fn cancelling_an_executing_root_marks_it_and_ends_its_children(
    fixture: &Fixture,
) -> Result<()> {
    let grant = fixture.executing().await?;
    let children = [child(), child()];
    fixture.store.commit(creating_children(&grant, &children)).await?;
    let cancelled = fixture.store.request_cancel(fixture.tenant, grant.run.id, "enough").await?;
    assert_eq!(cancelled.signal, Some(grant.fence.worker));
    assert_eq!((cancelled.descendants.ended.len(), cancelled.descendants.requested.len()), (2, 0));
    // It has not received the signal yet, and creates another child.
    let late = child();
    fixture.store.commit(creating_children(&grant, std::slice::from_ref(&late))).await?;
    let committed = fixture.store.commit(ending(&grant, RunState::Cancelled)).await?;
    assert!(committed.has_children);
    let stopped = fixture.store.cancel_children(fixture.tenant, grant.run.id, "over").await?;
    assert_eq!(stopped.ended, [late.run.id]);
    let (stranger, run) = (fixture.stranger().await?, grant.run.id);
    assert_eq!(refusal(fixture.store.cancel_children(stranger, run, "x").await), Code::RunNotFound);
    fixture.check(late.run.session).await
}

pub(crate) async fn orphans_are_cancelled(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let (mine, executing, lower) = (child(), child(), child());
    fixture.store.commit(creating_children(&grant, &[mine.clone(), executing.clone()])).await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    let below = fixture.granted(executing.run.session, worker).await?;
    fixture.store.commit(creating_children(&below, std::slice::from_ref(&lower))).await?;
    assert!(fixture.store.stop_orphans(None, 10).await?.result.ended.is_empty());
    // The worker that ended the parent crashed before it could cancel the children.
    assert!(fixture.store.commit(completed(&grant)).await?.has_children);
    let stopped = fixture.store.stop_orphans(None, 10).await?.result;
    let mut ended = stopped.ended.clone();
    let mut expected = vec![mine.run.id, lower.run.id];
    ended.sort();
    expected.sort();
    assert_eq!(ended, expected);
    assert_eq!(stopped.requested.iter().map(|it| it.run).collect::<Vec<_>>(), [executing.run.id]);
    let failure = fixture.run(mine.run.id).await?.failure.map(|failure| failure.message);
    assert_eq!(failure.as_deref(), Some("the parent run has ended"));
    // The executing run was already notified and is not reported again.
    let again = fixture.store.stop_orphans(None, 10).await?.result;
    assert!(again.ended.is_empty() && again.requested.is_empty());
    fixture.store.commit(ending(&below, RunState::Cancelled)).await?;
    fixture.check(lower.run.session).await
}

/// Each page continues where the last one ended, and skips runs that are not orphans.
pub(crate) async fn orphan_scan_continues_page_by_page(fixture: &Fixture) -> Result<()> {
    let (cared_for, grant) = (fixture.executing().await?, fixture.executing().await?);
    let children = [child(), child(), child(), child()];
    fixture.store.commit(creating_children(&cared_for, &children[..1])).await?;
    fixture.store.commit(creating_children(&grant, &children[1..])).await?;
    fixture.store.commit(completed(&grant)).await?;
    let first = fixture.store.stop_orphans(None, 2).await?;
    assert_eq!((first.result.ended, first.next), (vec![children[1].run.id], Some(children[1].run.id)));
    let second = fixture.store.stop_orphans(first.next, 2).await?;
    assert_eq!((second.result.ended.len(), second.next), (2, Some(children[3].run.id)));
    let third = fixture.store.stop_orphans(second.next, 2).await?;
    assert_eq!((third.result.ended.len(), third.next), (0, None));
    assert_eq!(fixture.state(children[0].run.id).await?, RunState::Queued);
    Ok(())
}

/// A run that is cancelled while it hands over or parks ends together with the children it has just created.
pub(crate) async fn children_created_by_the_last_commit_of_a_cancelled_run_are_cancelled(
    fixture: &Fixture,
) -> Result<()> {
    for park in [false, true] {
        let grant = fixture.executing().await?;
        let children = [child()];
        fixture.store.request_cancel(fixture.tenant, grant.run.id, "enough").await?;
        let commit = match park {
            true => {
                Commit { approvals: vec![new_approval(None)], ..parked_for_children(&grant, &children, 1) }
            }
            false => Commit::new(grant.fence, grant.run.id, RunTransition::HandOver),
        };
        let committed = fixture.store.commit(Commit { children: children.to_vec(), ..commit }).await?;
        assert!(committed.released && committed.has_children, "{committed:?}");
        let expected: &[&str] =
            if park { &["approval.decided", "run.cancelled"] } else { &["run.handed_over", "run.cancelled"] };
        assert_eq!(names(&committed.events), expected);
        assert_eq!(fixture.store.stop_orphans(None, 10).await?.result.ended, [children[0].run.id]);
    }
    Ok(())
}

/// However a child ends, its parent resumes.
pub(crate) async fn lost_child_resumes_its_parent(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let children = [child()];
    fixture
        .store
        .commit(Commit { children: children.to_vec(), ..parked_for_children(&grant, &children, 1) })
        .await?;
    let dying = fixture.worker(LONG_LEASE).await?;
    fixture.granted(children[0].run.session, dying).await?;
    fixture.store.request_cancel(fixture.tenant, children[0].run.id, "stop").await?;
    fixture.store.retire_worker(dying).await?;
    let taken = fixture.store.reclaim_sessions(10).await?;
    assert_eq!(taken.ended, 1);
    let resumed = taken.changes.iter().find(|change| change.session == grant.fence.session);
    assert_eq!(resumed.map(|change| names(&change.events)), Some(vec!["run.resumed"]));
    assert_eq!(fixture.state(grant.run.id).await?, RunState::Queued);
    Ok(())
}

pub(crate) async fn child_that_used_up_its_time_resumes_its_parent(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let children = [child()];
    fixture
        .store
        .commit(Commit { children: children.to_vec(), ..parked_for_children(&grant, &children, 1) })
        .await?;
    let below = fixture.granted(children[0].run.session, fixture.worker(LONG_LEASE).await?).await?;
    let (run, worked) = (children[0].run.id, below.time_left);
    let hand_over = Commit { worked, ..Commit::new(below.fence, run, RunTransition::HandOver) };
    let ended = fixture.store.commit(hand_over).await?;
    assert_eq!((fixture.state(run).await?, ended.parent), (RunState::TimedOut, Some(grant.run.id)));
    fixture.resume_parent(&ended).await?.context("the parent waits on")?;
    assert_eq!(fixture.state(grant.run.id).await?, RunState::Queued);
    Ok(())
}

/// A run without relatives causes no extra work.
pub(crate) async fn run_without_relatives_has_no_descendants(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    fixture.store.commit(parking(&grant, ParkReason::External)).await?;
    let cancelled = fixture.store.request_cancel(fixture.tenant, grant.run.id, "x").await?;
    assert!(cancelled.descendants.changes.is_empty() && cancelled.descendants.ended.is_empty());
    assert_eq!(fixture.run(grant.run.id).await?.parent, None);
    Ok(())
}
