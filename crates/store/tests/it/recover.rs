//! What becomes of runs whose owner is gone, gave them up, or waits.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, EventBody, RunInput, RunState, SessionId, limits::MAX_LOST_ATTEMPTS, run::ParkReason, step::Step,
    task::TaskRound, tool::CallStatus,
};
use remuda_store::{Claim, Commit, Lost, NewRun, NewSession, Reach, Then};
use remuda_testkit::wait_for;

use crate::lab::{
    LONG_LEASE, Lab, PATIENCE, SHORT_LEASE, announced, completed, done, ending, names, parking, progress,
    refusal, step,
};

pub(crate) async fn a_lost_workers_sessions_are_taken_back(lab: &Lab) -> Result<()> {
    let (one, two, idle) = (lab.session().await?, lab.session().await?, lab.session().await?);
    let run = lab.submit(one).await?.run.id;
    lab.submit(two).await?;
    let (dying, heir) = (lab.worker(SHORT_LEASE).await?, lab.worker(LONG_LEASE).await?);
    let old = lab.granted(one, dying).await?;
    lab.granted(two, dying).await?;
    assert!(lab.store.take_back(10).await?.changes.is_empty());
    lab.outlive(dying).await;
    // One at a time, and then no more.
    let taken = lab.store.take_back(1).await?;
    assert_eq!((taken.changes.len(), taken.ended, taken.more), (1, 0, true));
    assert_eq!(lab.store.take_back(5).await?.changes.len(), 1);
    assert!(lab.store.take_back(5).await?.changes.is_empty());
    for session in [one, two] {
        let seen = lab.look(session).await?;
        assert_eq!((seen.owner, seen.current, seen.pending), (None, None, 1));
        let events = lab.events_of(session).await?;
        assert_eq!(names(&events), ["session.created", "run.queued", "run.attempt_lost"]);
        assert_eq!(events[2].body, EventBody::RunAttemptLost { attempts: 1, worker: dying });
        lab.check(session).await?;
    }
    assert!(lab.events_of(idle).await?.len() == 1);
    let waiting = lab.run(run).await?;
    assert_eq!((waiting.state, waiting.attempt, waiting.lost_attempts), (RunState::Queued, 1, 1));
    assert_eq!(refusal(lab.store.commit(completed(&old)).await), Code::OwnershipLost);
    let new = lab.granted(one, heir).await?;
    assert_eq!((new.run.id, new.run.attempt, new.run.started_at), (run, 2, old.run.started_at));
    Ok(())
}

pub(crate) async fn a_live_workers_sessions_stay(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    lab.submit(session).await?;
    let (worker, gone) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    let grant = lab.granted(session, worker).await?;
    lab.store.retire_worker(gone).await?;
    let taken = lab.store.take_back(10).await?;
    assert!(taken.changes.is_empty() && !taken.more);
    lab.store.commit(completed(&grant)).await?;
    lab.check(session).await
}

pub(crate) async fn a_run_that_loses_too_many_workers_fails(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let (poison, innocent) = (lab.submit(session).await?.run.id, lab.submit(session).await?.run.id);
    for attempt in 1..=MAX_LOST_ATTEMPTS {
        let worker = lab.worker(LONG_LEASE).await?;
        let grant = lab.granted(session, worker).await?;
        assert_eq!((grant.run.id, grant.run.attempt), (poison, attempt));
        lab.store.retire_worker(worker).await?;
        // Whoever comes first takes it back, and both do the same.
        if attempt % 2 == 0 {
            let taken = lab.store.take_back(10).await?;
            assert_eq!(taken.ended, u64::from(attempt == MAX_LOST_ATTEMPTS));
        } else {
            let asking = lab.worker(LONG_LEASE).await?;
            match lab.claim(session, asking).await? {
                Claim::TakenBack(change) => assert!(change.wake && !change.events.is_empty()),
                other => panic!("{other:?}"),
            }
        }
    }
    let failed = lab.run(poison).await?;
    assert_eq!((failed.state, failed.attempt, failed.lost_attempts), (RunState::Failed, 5, 5));
    assert_eq!(failed.failure.context("no failure")?.code, "attempts_exhausted");
    let next = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    assert_eq!((next.run.id, next.run.attempt), (innocent, 1));
    lab.store.commit(completed(&next)).await?;
    lab.check(session).await
}

pub(crate) async fn a_hand_over_is_no_lost_attempt(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let (first, second) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    let grant = lab.granted(session, first).await?;
    let begun = step(&grant, 0);
    let hand_over = Commit { then: Then::HandOver, ..progress(&grant, vec![done(&begun, "x")]) };
    let committed = lab.store.commit(hand_over.clone()).await?;
    assert_eq!(names(&committed.events), ["tool.started", "run.handed_over"]);
    assert!(committed.released && committed.next.is_none());
    // Its answer was lost, and it is repeated.
    let again = lab.store.commit(hand_over).await?;
    assert!(again.released && again.events.is_empty());
    let waiting = lab.run(run).await?;
    assert_eq!((waiting.state, waiting.attempt, waiting.lost_attempts), (RunState::Queued, 1, 0));
    let next = lab.granted(session, second).await?;
    assert_eq!((next.run.attempt, next.steps.len(), next.run.started_at), (2, 1, grant.run.started_at));
    assert!(next.time_left <= Duration::from_secs(60) && next.time_left > Duration::from_secs(30));
    lab.store.commit(completed(&next)).await?;
    assert_eq!(lab.run(run).await?.attempt, 2);
    lab.check(session).await
}

/// The answer to a commit may be lost with the connection; then it is sent again as it was.
pub(crate) async fn a_repeated_commit_is_done_once(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    lab.submit(session).await?;
    let second = lab.submit(session).await?.run.id;
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    let commit = progress(&grant, vec![step(&grant, 0)]);
    assert_eq!(lab.store.commit(commit.clone()).await?.events.len(), 1);
    assert_eq!(lab.store.commit(commit).await?.events.len(), 0);
    assert_eq!(lab.events_of(session).await?.len(), 4);
    let end = completed(&grant);
    let next = lab.store.commit(end.clone()).await?.next.context("no next run")?;
    let again = lab.store.commit(end.clone()).await?;
    let same = again.next.context("the repeated end leads nowhere")?;
    assert_eq!((same.run.id, same.run.attempt, same.fence), (second, 1, next.fence));
    assert!(again.events.is_empty() && !again.released);
    let last = completed(&next);
    assert!(lab.store.commit(last.clone()).await?.released);
    assert!(lab.store.commit(last.clone()).await?.released);
    // Once another owner has written, nobody can tell, and nobody has to.
    lab.submit(session).await?;
    let other = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    assert_eq!(refusal(lab.store.commit(last).await), Code::OwnershipLost);
    lab.store.commit(completed(&other)).await?;
    assert_eq!(refusal(lab.store.commit(end).await), Code::OwnershipLost);
    lab.check(session).await
}

pub(crate) async fn a_parked_run_holds_no_worker_and_its_time_stands_still(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let (run, behind) = (lab.submit(session).await?.run.id, lab.submit(session).await?.run.id);
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(session, worker).await?;
    let park = parking(&grant, ParkReason::Approval);
    let committed = lab.store.commit(park).await?;
    assert_eq!((names(&committed.events), committed.released), (vec!["run.parked"], true));
    let parked = lab.run(run).await?;
    assert_eq!(
        (parked.state, parked.parked.map(|it| it.reason)),
        (RunState::Parked, Some(ParkReason::Approval))
    );
    assert_eq!(parked.deadline(), None);
    // It holds its line, but no worker can do anything about it.
    assert!(matches!(lab.claim(session, worker).await?, Claim::NothingToDo));
    assert!(!lab.store.is_runnable(lab.tenant, session).await?);
    assert_eq!(refusal(lab.store.resume_run(lab.tenant, behind).await), Code::NotParked);
    assert_eq!(refusal(lab.store.resume_run(lab.stranger().await?, run).await), Code::RunNotFound);
    let change = lab.store.resume_run(lab.tenant, run).await?;
    assert_eq!((names(&change.events), change.wake), (vec!["run.resumed"], true));
    assert_eq!(refusal(lab.store.resume_run(lab.tenant, run).await), Code::NotParked);
    let resumed = lab.run(run).await?;
    let allowed = chrono::TimeDelta::from_std(resumed.timeout + resumed.paused)?;
    assert_eq!(resumed.deadline(), resumed.started_at.map(|at| at + allowed));
    let next = lab.granted(session, worker).await?;
    assert_eq!((next.run.id, next.run.attempt, next.run.lost_attempts), (run, 2, 0));
    lab.store.commit(completed(&next)).await?;
    lab.check(session).await
}

pub(crate) async fn a_parked_run_is_cancelled_at_once(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let (run, behind) = (lab.submit(session).await?.run.id, lab.submit(session).await?.run.id);
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(session, worker).await?;
    lab.store.commit(parking(&grant, ParkReason::Budget)).await?;
    let cancelled = lab.store.request_cancel(lab.tenant, run, "enough").await?;
    assert_eq!((cancelled.run.state, cancelled.signal), (RunState::Cancelled, None));
    assert!(cancelled.change.wake, "the run behind it can start");
    let ended = lab.run(run).await?;
    assert_eq!((ended.parked, ended.attempt), (None, 1));
    assert_eq!(lab.granted(session, worker).await?.run.id, behind);
    lab.check(session).await
}

pub(crate) async fn a_cancel_leaves_receipts(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(session, worker).await?;
    // Nothing to acknowledge yet.
    assert!(lab.store.cancel_delivered(grant.fence, run).await?.is_empty());
    lab.store.request_cancel(lab.tenant, run, "stop").await?;
    let events = lab.store.cancel_delivered(grant.fence, run).await?;
    assert_eq!(names(&events), ["run.cancel_delivered"]);
    assert!(lab.store.cancel_delivered(grant.fence, run).await?.is_empty());
    let delivered = lab.run(run).await?.cancel.context("no request")?;
    assert!(delivered.delivered_at >= Some(delivered.at) && delivered.stopped_at.is_none());
    let mut end = ending(&grant, RunState::Cancelled);
    if let Then::End(finish) = &mut end.then {
        finish.stopped_ago = Some(Duration::ZERO);
    }
    lab.store.commit(end).await?;
    let ended = lab.run(run).await?;
    let receipts = ended.cancel.context("no request")?;
    assert!(receipts.delivered_at <= receipts.stopped_at && receipts.stopped_at <= ended.finished_at);
    assert!(receipts.stopped_at.is_some() && receipts.reason == "stop");
    assert_eq!(refusal(lab.store.cancel_delivered(grant.fence, run).await), Code::OwnershipLost);
    lab.check(session).await
}

pub(crate) async fn a_lost_workers_run_is_cancelled_at_once(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let (one, two) = (lab.submit(session).await?.run.id, lab.submit(session).await?.run.id);
    let worker = lab.worker(LONG_LEASE).await?;
    lab.granted(session, worker).await?;
    // Asked for while it lived, it ends when it is taken back; asked for later, at once.
    lab.store.request_cancel(lab.tenant, one, "early").await?;
    lab.store.retire_worker(worker).await?;
    assert_eq!(lab.store.take_back(10).await?.ended, 1);
    let ended = lab.run(one).await?;
    assert_eq!(ended.state, RunState::Cancelled);
    assert_eq!(ended.outcomes.iter().map(|it| it.status).collect::<Vec<_>>(), [CallStatus::Cancelled]);
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(session, worker).await?;
    let RunInput::Tools(input) = &grant.run.input else { panic!("not tools") };
    let begun = Step { work: announced(input.calls[0].clone()), ..step(&grant, 0) };
    lab.store.commit(progress(&grant, vec![begun.clone()])).await?;
    lab.store.retire_worker(worker).await?;
    let cancelled = lab.store.request_cancel(lab.tenant, two, "late").await?;
    assert_eq!((cancelled.run.state, cancelled.signal), (RunState::Cancelled, None));
    let events = names(&cancelled.change.events);
    assert_eq!(events, ["run.cancel_requested", "run.attempt_lost", "tool.failed", "run.cancelled"]);
    let lost = Lost { run: two, epoch: grant.fence.epoch, attempt: 1 };
    assert_eq!(cancelled.change.lost, Some(lost), "somebody has to tell of it");
    // What was begun is accounted for, in the same step.
    let steps = lab.store.list_steps(lab.tenant, two).await?;
    let status = steps[0].call_outcome().map(|outcome| outcome.status);
    assert_eq!((steps.len(), steps[0].id, status), (1, begun.id, Some(CallStatus::Interrupted)));
    assert_eq!(lab.look(session).await?.owner, None);
    lab.check(session).await
}

pub(crate) async fn a_handed_over_run_ends_when_cancelled(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    lab.store.request_cancel(lab.tenant, run, "stop").await?;
    let committed = lab.store.commit(Commit { then: Then::HandOver, ..progress(&grant, Vec::new()) }).await?;
    assert_eq!(names(&committed.events), ["run.handed_over", "run.cancelled"]);
    let ended = lab.run(run).await?;
    assert_eq!((ended.state, ended.attempt), (RunState::Cancelled, 1));
    assert_eq!(ended.failure.map(|failure| failure.message), Some("stop".into()));
    lab.check(session).await
}

pub(crate) async fn a_tree_is_cancelled_whole(lab: &Lab) -> Result<()> {
    let root = lab.session().await?;
    let below = |parent: SessionId| async move {
        let session = NewSession { parent: Some(parent), ..lab.new_session(None) };
        anyhow::Ok(lab.store.create_session(&session).await?.value)
    };
    let child = below(root).await?;
    let grandchild = below(child.id).await?.id;
    let other = lab.session().await?;
    assert_eq!(child.parent, Some(root));
    for session in [root, child.id, grandchild, other] {
        lab.submit(session).await?;
        lab.submit(session).await?;
    }
    let worker = lab.worker(LONG_LEASE).await?;
    let running = lab.granted(grandchild, worker).await?;
    let stranger = lab.stranger().await?;
    assert_eq!(
        refusal(lab.store.cancel_session(stranger, root, Reach::Tree, "x").await),
        Code::SessionNotFound
    );
    let adopted = NewSession { parent: Some(SessionId::new()), ..lab.new_session(None) };
    let refused = lab.store.create_session(&adopted).await.err().context("a session without its parent")?;
    assert_eq!((refused.code(), refused.field()), (Code::SessionNotFound, Some("parent")));
    let alone = lab.store.cancel_session(lab.tenant, root, Reach::Session, "one").await?;
    assert_eq!((alone.ended.len(), alone.requested.len()), (2, 0));
    let cancelled = lab.store.cancel_session(lab.tenant, root, Reach::Tree, "all").await?;
    assert_eq!((cancelled.ended.len(), cancelled.changes.len()), (3, 2));
    let signal = cancelled.requested.first().context("nobody is told")?;
    assert_eq!((signal.worker, signal.run, cancelled.requested.len()), (worker, running.run.id, 1));
    lab.store.commit(ending(&running, RunState::Cancelled)).await?;
    for session in [root, child.id, grandchild] {
        assert!(lab.runs_of(session).await?.iter().all(|run| run.state == RunState::Cancelled));
        lab.check(session).await?;
    }
    assert!(lab.runs_of(other).await?.iter().all(|run| run.state == RunState::Queued));
    Ok(())
}

pub(crate) async fn runs_without_an_owner_run_out_of_time(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let short = NewRun { timeout: Duration::from_millis(1), ..lab.new_run(session) };
    let run = lab.store.submit(short).await?.run.id;
    let next = lab.submit(session).await?.run.id;
    // Waiting for its first start costs no time.
    assert_eq!(lab.store.end_overdue(10).await?.ended, 0);
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(session, worker).await?;
    // An owner sees to it by itself.
    assert_eq!(lab.store.end_overdue(10).await?.ended, 0);
    lab.store.release(grant.fence).await?;
    wait_for("the end of a run that nobody executes", PATIENCE, || async {
        let ended = lab.store.end_overdue(10).await.is_ok();
        ended && lab.run(run).await.is_ok_and(|run| run.state == RunState::TimedOut)
    })
    .await;
    assert_eq!(lab.run(run).await?.failure.context("no failure")?.code, "run_timed_out");
    assert_eq!(lab.granted(session, worker).await?.run.id, next);
    lab.check(session).await
}

pub(crate) async fn tasks_show_their_last_round(lab: &Lab) -> Result<()> {
    assert_eq!(lab.store.list_tasks().await?, []);
    let at = chrono::DateTime::from_timestamp(1_800_000_000, 0).context("time")?;
    let round = |name: &str, result| TaskRound {
        name: name.to_owned(),
        holder: "here".to_owned(),
        started_at: at,
        duration: Duration::from_millis(3),
        result,
    };
    let busy = round("wake", Ok(BTreeMap::from([("woken".to_owned(), 2)])));
    let idle = round("wake", Ok(BTreeMap::new()));
    let failed = round("heal", Err("no NATS".to_owned()));
    for it in [&busy, &idle, &failed] {
        lab.store.record_task(it).await?;
    }
    let tasks = lab.store.list_tasks().await?;
    assert_eq!(tasks.iter().map(|it| it.last.name.as_str()).collect::<Vec<_>>(), ["heal", "wake"]);
    assert_eq!((tasks[0].rounds, tasks[0].failures, &tasks[0].last), (1, 1, &failed));
    assert_eq!(tasks[0].last_notable.as_ref(), Some(&failed));
    assert_eq!((tasks[1].rounds, tasks[1].failures, &tasks[1].last), (2, 0, &idle));
    assert_eq!(tasks[1].last_notable.as_ref(), Some(&busy));
    Ok(())
}

pub(crate) async fn sessions_with_work_are_counted(lab: &Lab) -> Result<()> {
    let (waiting, owned, parked) = (lab.session().await?, lab.session().await?, lab.session().await?);
    assert_eq!(lab.store.count_sessions_with_work().await?, 0);
    for session in [waiting, owned, parked] {
        lab.submit(session).await?;
        lab.submit(session).await?;
    }
    let worker = lab.worker(LONG_LEASE).await?;
    lab.granted(owned, worker).await?;
    assert_eq!(lab.store.count_sessions_with_work().await?, 3);
    let grant = lab.granted(parked, worker).await?;
    lab.store.commit(parking(&grant, ParkReason::External)).await?;
    assert_eq!(lab.store.count_sessions_with_work().await?, 2);
    Ok(())
}

pub(crate) async fn the_next_lease_end_is_known(lab: &Lab) -> Result<()> {
    assert_eq!(lab.store.next_lease_end().await?, None);
    let (short, _long) = (lab.worker(SHORT_LEASE).await?, lab.worker(LONG_LEASE).await?);
    assert!(lab.store.next_lease_end().await?.context("no lease")? <= SHORT_LEASE);
    lab.outlive(short).await;
    // An ended lease is due until its worker is written off.
    assert_eq!(lab.store.next_lease_end().await?, Some(Duration::ZERO));
    lab.store.take_back(10).await?;
    assert!(lab.store.next_lease_end().await?.context("no lease")? > SHORT_LEASE);
    Ok(())
}
