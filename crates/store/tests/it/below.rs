//! Stopping a run stops what is below it.

use std::time::Duration;

use anyhow::Result;
use remuda_domain::{
    Code, RunId, RunState, SessionId,
    run::{IfBusy, ParkReason},
};
use remuda_store::{CancelSignal, Commit, Grant, NewChild, NewRun, Reach, Then};
use remuda_testkit::wait_for;

use crate::{
    family::{asking, awaiting, child, making, question},
    lab::{LONG_LEASE, Lab, PATIENCE, completed, ending, names, parking, refusal},
};

/// A root that waits for three children: one executes and has a child of its own that waits in line, one waits for a person below
/// which another one executes, one waits in line.
struct Tree {
    root: Grant,
    /// Those that execute.
    executing: Vec<Grant>,
    runs: Vec<RunId>,
    sessions: Vec<SessionId>,
}

async fn tree(lab: &Lab) -> Result<Tree> {
    let root = lab.executing().await?;
    let children = [child(), child(), child()];
    let below = [child(), child()];
    lab.store.commit(Commit { children: children.to_vec(), ..awaiting(&root, &children, 3) }).await?;
    let worker = lab.worker(LONG_LEASE).await?;
    let busy = lab.granted(children[0].session, worker).await?;
    lab.store.commit(making(&busy, &below[..1])).await?;
    let asks = lab.granted(children[1].session, worker).await?;
    lab.store.commit(making(&asks, &below[1..])).await?;
    lab.store.commit(asking(&asks, &[question(None)])).await?;
    let lowest = lab.granted(below[1].session, worker).await?;
    let all = || children.iter().chain(&below);
    let runs = all().map(|child: &NewChild| child.run).chain([root.run.id]).collect();
    let sessions = all().map(|child| child.session).chain([root.fence.session]).collect();
    Ok(Tree { root, executing: vec![busy, lowest], runs, sessions })
}

impl Tree {
    /// The workers stop what they were told to, and then nothing is left.
    async fn conclude(&self, lab: &Lab, signals: &[CancelSignal]) -> Result<()> {
        let mut told: Vec<RunId> = signals.iter().map(|signal| signal.run).collect();
        let mut expected: Vec<RunId> = self.executing.iter().map(|grant| grant.run.id).collect();
        told.sort();
        expected.sort();
        assert_eq!(told, expected);
        for grant in &self.executing {
            let committed = lab.store.commit(ending(grant, RunState::Cancelled)).await?;
            assert!(!committed.has_children, "they were reached already");
            assert!(lab.tell_parent(&committed).await?.is_none(), "its parent has ended");
        }
        for run in &self.runs {
            assert!(lab.state(*run).await?.is_terminal());
        }
        for session in &self.sessions {
            lab.check(*session).await?;
        }
        assert_eq!(lab.store.count_sessions_with_work().await?, 0);
        Ok(())
    }
}

pub(crate) async fn cancelling_the_root_reaches_all(lab: &Lab) -> Result<()> {
    let tree = tree(lab).await?;
    let cancelled = lab.store.request_cancel(lab.tenant, tree.root.run.id, "enough").await?;
    assert_eq!((cancelled.run.state, cancelled.signal), (RunState::Cancelled, None));
    // From the top down, so nobody was woken by the end of what it waited for.
    let resumed = |events: &[remuda_domain::Event]| names(events).contains(&"run.resumed");
    assert!(!cancelled.below.changes.iter().any(|change| resumed(&change.events)));
    assert_eq!(cancelled.below.ended.len(), 3);
    let asks = lab.events_of(tree.sessions[1]).await?;
    assert_eq!(names(&asks)[names(&asks).len() - 2..], ["approval.decided", "run.cancelled"]);
    tree.conclude(lab, &cancelled.below.requested).await
}

pub(crate) async fn cancelling_a_session_reaches_what_works_for_it(lab: &Lab) -> Result<()> {
    for reach in [Reach::Session, Reach::Tree] {
        let tree = tree(lab).await?;
        let cancelled =
            lab.store.cancel_session(lab.tenant, tree.root.fence.session, reach, "enough").await?;
        assert_eq!((cancelled.ended.len(), cancelled.requested.len()), (4, 2), "{reach:?}");
        tree.conclude(lab, &cancelled.requested).await?;
    }
    Ok(())
}

pub(crate) async fn interrupting_reaches_what_is_below(lab: &Lab) -> Result<()> {
    let tree = tree(lab).await?;
    let session = tree.root.fence.session;
    let newer = NewRun { if_busy: IfBusy::Interrupt, ..lab.new_run(session) };
    let submitted = lab.store.submit(newer).await?;
    assert_eq!((submitted.interrupted.as_slice(), submitted.signal), ([tree.root.run.id].as_slice(), None));
    assert_eq!(submitted.below.ended.len(), 3);
    lab.work_off(session).await?;
    tree.conclude(lab, &submitted.below.requested).await
}

pub(crate) async fn an_executing_root_is_asked_and_its_children_stopped(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let children = [child(), child()];
    lab.store.commit(making(&grant, &children)).await?;
    let cancelled = lab.store.request_cancel(lab.tenant, grant.run.id, "enough").await?;
    assert_eq!(cancelled.signal, Some(grant.fence.worker));
    assert_eq!((cancelled.below.ended.len(), cancelled.below.requested.len()), (2, 0));
    // It had not heard of it yet, and makes another one.
    let late = child();
    lab.store.commit(making(&grant, std::slice::from_ref(&late))).await?;
    let committed = lab.store.commit(ending(&grant, RunState::Cancelled)).await?;
    assert!(committed.has_children);
    let stopped = lab.store.cancel_children(lab.tenant, grant.run.id, "over").await?;
    assert_eq!(stopped.ended, [late.run]);
    let (stranger, run) = (lab.stranger().await?, grant.run.id);
    assert_eq!(refusal(lab.store.cancel_children(stranger, run, "x").await), Code::RunNotFound);
    lab.check(late.session).await
}

pub(crate) async fn orphans_are_found(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let (mine, executing, lower) = (child(), child(), child());
    lab.store.commit(making(&grant, &[mine.clone(), executing.clone()])).await?;
    let worker = lab.worker(LONG_LEASE).await?;
    let below = lab.granted(executing.session, worker).await?;
    lab.store.commit(making(&below, std::slice::from_ref(&lower))).await?;
    assert!(lab.store.stop_orphans(None, 10).await?.done.ended.is_empty());
    // Whoever ended the parent did not get to tell anybody.
    assert!(lab.store.commit(completed(&grant)).await?.has_children);
    let stopped = lab.store.stop_orphans(None, 10).await?.done;
    let mut ended = stopped.ended.clone();
    let mut expected = vec![mine.run, lower.run];
    ended.sort();
    expected.sort();
    assert_eq!(ended, expected);
    assert_eq!(stopped.requested.iter().map(|it| it.run).collect::<Vec<_>>(), [executing.run]);
    let failure = lab.run(mine.run).await?.failure.map(|failure| failure.message);
    assert_eq!(failure.as_deref(), Some("the run that it worked for has ended"));
    // The one that executes knows, and is not found again and again.
    let again = lab.store.stop_orphans(None, 10).await?.done;
    assert!(again.ended.is_empty() && again.requested.is_empty());
    lab.store.commit(ending(&below, RunState::Cancelled)).await?;
    lab.check(lower.session).await
}

/// Each look goes on where the last one ended, past those that are no orphans.
pub(crate) async fn orphans_are_found_some_at_a_time(lab: &Lab) -> Result<()> {
    let (cared_for, grant) = (lab.executing().await?, lab.executing().await?);
    let children = [child(), child(), child(), child()];
    lab.store.commit(making(&cared_for, &children[..1])).await?;
    lab.store.commit(making(&grant, &children[1..])).await?;
    lab.store.commit(completed(&grant)).await?;
    let first = lab.store.stop_orphans(None, 2).await?;
    assert_eq!((first.done.ended, first.next), (vec![children[1].run], Some(children[1].run)));
    let second = lab.store.stop_orphans(first.next, 2).await?;
    assert_eq!((second.done.ended.len(), second.next), (2, Some(children[3].run)));
    let third = lab.store.stop_orphans(second.next, 2).await?;
    assert_eq!((third.done.ended.len(), third.next), (0, None));
    assert_eq!(lab.state(children[0].run).await?, RunState::Queued);
    Ok(())
}

/// A run that is asked to stop while it hands over, or parks, ends with what it just began.
pub(crate) async fn what_is_made_with_the_last_breath_is_stopped_too(lab: &Lab) -> Result<()> {
    for park in [false, true] {
        let grant = lab.executing().await?;
        let children = [child()];
        lab.store.request_cancel(lab.tenant, grant.run.id, "enough").await?;
        let commit = match park {
            true => Commit { approvals: vec![question(None)], ..awaiting(&grant, &children, 1) },
            false => Commit::new(grant.fence, grant.run.id, Then::HandOver),
        };
        let committed = lab.store.commit(Commit { children: children.to_vec(), ..commit }).await?;
        assert!(committed.released && committed.has_children, "{committed:?}");
        let expected: &[&str] =
            if park { &["approval.decided", "run.cancelled"] } else { &["run.handed_over", "run.cancelled"] };
        assert_eq!(names(&committed.events), expected);
        assert_eq!(lab.store.stop_orphans(None, 10).await?.done.ended, [children[0].run]);
    }
    Ok(())
}

/// Whichever way a child ends, its parent hears of it.
pub(crate) async fn lost_children_wake_their_parent(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let children = [child()];
    lab.store.commit(Commit { children: children.to_vec(), ..awaiting(&grant, &children, 1) }).await?;
    let dying = lab.worker(LONG_LEASE).await?;
    lab.granted(children[0].session, dying).await?;
    lab.store.request_cancel(lab.tenant, children[0].run, "stop").await?;
    lab.store.retire_worker(dying).await?;
    let taken = lab.store.take_back(10).await?;
    assert_eq!(taken.ended, 1);
    let resumed = taken.changes.iter().find(|change| change.session == grant.fence.session);
    assert_eq!(resumed.map(|change| names(&change.events)), Some(vec!["run.resumed"]));
    assert_eq!(lab.state(grant.run.id).await?, RunState::Queued);
    Ok(())
}

pub(crate) async fn children_that_run_out_of_time_wake_their_parent(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let hasty = NewChild { timeout: Duration::from_millis(300), ..child() };
    let children = [hasty];
    lab.store.commit(Commit { children: children.to_vec(), ..awaiting(&grant, &children, 1) }).await?;
    let below = lab.granted(children[0].session, lab.worker(LONG_LEASE).await?).await?;
    lab.store.release(below.fence).await?;
    wait_for("the parent to go on", PATIENCE, || async {
        let ended = lab.store.end_overdue(10).await.ok()?;
        // On a machine that stood still it is over with its release, and then nobody tells.
        let by_others = lab.state(children[0].run).await.ok()?.is_terminal() && ended.ended == 0;
        let changes = match by_others {
            true => lab.store.resume_ready(None, 10).await.ok()?.done,
            false => ended.changes,
        };
        changes.iter().any(|change| change.session == grant.fence.session).then_some(())
    })
    .await;
    assert_eq!(lab.state(grant.run.id).await?, RunState::Queued);
    Ok(())
}

/// A run without any relatives pays for none.
pub(crate) async fn a_run_alone_has_nobody(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    lab.store.commit(parking(&grant, ParkReason::External)).await?;
    let cancelled = lab.store.request_cancel(lab.tenant, grant.run.id, "x").await?;
    assert!(cancelled.below.changes.is_empty() && cancelled.below.ended.is_empty());
    assert_eq!(lab.run(grant.run.id).await?.parent, None);
    Ok(())
}
