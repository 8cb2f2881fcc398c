//! Runs whose owner is lost, hands over, or parks.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, EventBody, RunId, RunInput, RunState, SessionId, background_task::TaskRound,
    limits::MAX_LOST_ATTEMPTS, run::ParkReason, step::Step, tool::CallStatus,
};
use remuda_store::{CancelScope, Claim, Commit, Heartbeat, LostAttempt, NewSession, RunTransition};

use crate::{
    fixture::{
        Fixture, LONG_LEASE, SHORT_LEASE, announced, completed, done, ending, names, parking, progress,
        refusal, step,
    },
    query_plans::execute,
};

pub(crate) async fn sessions_of_a_lost_worker_are_reclaimed(fixture: &Fixture) -> Result<()> {
    let (one, two, idle) = (fixture.session().await?, fixture.session().await?, fixture.session().await?);
    let run = fixture.submit(one).await?.run.id;
    fixture.submit(two).await?;
    let (dying, heir) = (fixture.worker(SHORT_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    let old = fixture.granted(one, dying).await?;
    fixture.granted(two, dying).await?;
    assert!(fixture.store.reclaim_sessions(10).await?.changes.is_empty());
    fixture.wait_for_lease_expiry(dying).await;
    // One at a time, and then no more.
    let taken = fixture.store.reclaim_sessions(1).await?;
    assert_eq!((taken.changes.len(), taken.ended, taken.more), (1, 0, true));
    assert_eq!(fixture.store.reclaim_sessions(5).await?.changes.len(), 1);
    assert!(fixture.store.reclaim_sessions(5).await?.changes.is_empty());
    for session in [one, two] {
        let seen = fixture.get_session(session).await?;
        assert_eq!((seen.owner, seen.current, seen.pending), (None, None, 1));
        let events = fixture.events_of(session).await?;
        assert_eq!(names(&events), ["session.created", "run.queued", "run.attempt_lost"]);
        assert_eq!(events[2].body, EventBody::RunAttemptLost { attempts: 1, worker: dying });
        fixture.check(session).await?;
    }
    assert!(fixture.events_of(idle).await?.len() == 1);
    let waiting = fixture.run(run).await?;
    assert_eq!((waiting.state, waiting.attempt, waiting.lost_attempts), (RunState::Queued, 1, 1));
    assert_eq!(refusal(fixture.store.commit(completed(&old)).await), Code::OwnershipLost);
    let new = fixture.granted(one, heir).await?;
    assert_eq!((new.run.id, new.run.attempt, new.run.started_at), (run, 2, old.run.started_at));
    Ok(())
}

pub(crate) async fn sessions_of_a_live_worker_are_not_reclaimed(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    let (worker, gone) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    let grant = fixture.granted(session, worker).await?;
    fixture.store.retire_worker(gone).await?;
    let taken = fixture.store.reclaim_sessions(10).await?;
    assert!(taken.changes.is_empty() && !taken.more);
    fixture.store.commit(completed(&grant)).await?;
    fixture.check(session).await
}

pub(crate) async fn run_fails_after_too_many_lost_attempts(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let (poison, innocent) = (fixture.submit(session).await?.run.id, fixture.submit(session).await?.run.id);
    for attempt in 1..=MAX_LOST_ATTEMPTS {
        let worker = fixture.worker(LONG_LEASE).await?;
        let grant = fixture.granted(session, worker).await?;
        assert_eq!((grant.run.id, grant.run.attempt), (poison, attempt));
        fixture.store.retire_worker(worker).await?;
        // Either the scan or the claim reclaims the session, with the same result.
        if attempt % 2 == 0 {
            let taken = fixture.store.reclaim_sessions(10).await?;
            assert_eq!(taken.ended, u64::from(attempt == MAX_LOST_ATTEMPTS));
        } else {
            let parked_for_approvals = fixture.worker(LONG_LEASE).await?;
            match fixture.claim(session, parked_for_approvals).await? {
                Claim::Reclaimed(change) => assert!(change.wake && !change.events.is_empty()),
                other => panic!("{other:?}"),
            }
        }
    }
    let failed = fixture.run(poison).await?;
    assert_eq!((failed.state, failed.attempt, failed.lost_attempts), (RunState::Failed, 5, 5));
    assert_eq!(failed.failure.context("no failure")?.code, "attempts_exhausted");
    let next = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    assert_eq!((next.run.id, next.run.attempt), (innocent, 1));
    fixture.store.commit(completed(&next)).await?;
    fixture.check(session).await
}

pub(crate) async fn hand_over_is_not_a_lost_attempt(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let (first, second) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    let grant = fixture.granted(session, first).await?;
    let begun = step(&grant, 0);
    let hand_over = Commit { then: RunTransition::HandOver, ..progress(&grant, vec![done(&begun, "x")]) };
    let committed = fixture.store.commit(hand_over.clone()).await?;
    assert_eq!(names(&committed.events), ["tool.started", "run.handed_over"]);
    assert!(committed.released && committed.next.is_none());
    // The response was lost, and the commit is repeated.
    let again = fixture.store.commit(hand_over).await?;
    assert!(again.released && again.events.is_empty());
    let waiting = fixture.run(run).await?;
    assert_eq!((waiting.state, waiting.attempt, waiting.lost_attempts), (RunState::Queued, 1, 0));
    let next = fixture.granted(session, second).await?;
    assert_eq!((next.run.attempt, next.steps.len(), next.run.started_at), (2, 1, grant.run.started_at));
    assert!(next.time_left <= Duration::from_secs(60) && next.time_left > Duration::from_secs(30));
    fixture.store.commit(completed(&next)).await?;
    assert_eq!(fixture.run(run).await?.attempt, 2);
    fixture.check(session).await
}

/// The response to a commit may be lost with the connection; then the commit is repeated unchanged.
pub(crate) async fn repeated_commit_takes_effect_once(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    let second = fixture.submit(session).await?.run.id;
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    let commit = progress(&grant, vec![step(&grant, 0)]);
    assert_eq!(fixture.store.commit(commit.clone()).await?.events.len(), 1);
    assert_eq!(fixture.store.commit(commit).await?.events.len(), 0);
    assert_eq!(fixture.events_of(session).await?.len(), 4);
    let end = completed(&grant);
    let next = fixture.store.commit(end.clone()).await?.next.context("no next run")?;
    let again = fixture.store.commit(end.clone()).await?;
    let same = again.next.context("the repeated end leads nowhere")?;
    assert_eq!((same.run.id, same.run.attempt, same.fence), (second, 1, next.fence));
    assert!(again.events.is_empty() && !again.released);
    let last = completed(&next);
    assert!(fixture.store.commit(last.clone()).await?.released);
    assert!(fixture.store.commit(last.clone()).await?.released);
    // After another owner has committed, the repeated commit is refused.
    fixture.submit(session).await?;
    let other = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    assert_eq!(refusal(fixture.store.commit(last).await), Code::OwnershipLost);
    fixture.store.commit(completed(&other)).await?;
    assert_eq!(refusal(fixture.store.commit(end).await), Code::OwnershipLost);
    fixture.check(session).await
}

pub(crate) async fn parked_run_needs_no_worker_and_does_not_use_up_its_time(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let (run, behind) = (fixture.submit(session).await?.run.id, fixture.submit(session).await?.run.id);
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    let park = parking(&grant, ParkReason::Approval);
    let committed = fixture.store.commit(park).await?;
    assert_eq!((names(&committed.events), committed.released), (vec!["run.parked"], true));
    let parked = fixture.run(run).await?;
    assert_eq!(
        (parked.state, parked.parked.map(|it| it.reason)),
        (RunState::Parked, Some(ParkReason::Approval))
    );
    assert_eq!(parked.deadline(), None);
    // It blocks its queue, but no worker can execute it.
    assert!(matches!(fixture.claim(session, worker).await?, Claim::NothingToDo));
    assert!(!fixture.store.is_runnable(fixture.tenant, session).await?);
    assert_eq!(refusal(fixture.store.resume_run(fixture.tenant, behind).await), Code::NotParked);
    assert_eq!(refusal(fixture.store.resume_run(fixture.stranger().await?, run).await), Code::RunNotFound);
    let change = fixture.store.resume_run(fixture.tenant, run).await?;
    assert_eq!((names(&change.events), change.wake), (vec!["run.resumed"], true));
    assert_eq!(refusal(fixture.store.resume_run(fixture.tenant, run).await), Code::NotParked);
    let resumed = fixture.run(run).await?;
    let allowed = chrono::TimeDelta::from_std(resumed.timeout + resumed.paused)?;
    assert_eq!(resumed.deadline(), resumed.started_at.map(|at| at + allowed));
    let next = fixture.granted(session, worker).await?;
    assert_eq!((next.run.id, next.run.attempt, next.run.lost_attempts), (run, 2, 0));
    fixture.store.commit(completed(&next)).await?;
    fixture.check(session).await
}

pub(crate) async fn parked_run_is_cancelled_at_once(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let (run, behind) = (fixture.submit(session).await?.run.id, fixture.submit(session).await?.run.id);
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    fixture.store.commit(parking(&grant, ParkReason::Budget)).await?;
    let cancelled = fixture.store.request_cancel(fixture.tenant, run, "enough").await?;
    assert_eq!((cancelled.run.state, cancelled.signal), (RunState::Cancelled, None));
    assert!(cancelled.change.wake, "the run behind it can start");
    let ended = fixture.run(run).await?;
    assert_eq!((ended.parked, ended.attempt), (None, 1));
    assert_eq!(fixture.granted(session, worker).await?.run.id, behind);
    fixture.check(session).await
}

pub(crate) async fn cancel_records_delivery_and_stop_times(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    // Nothing to acknowledge yet.
    assert!(fixture.store.mark_cancel_delivered(grant.fence, run).await?.is_empty());
    fixture.store.request_cancel(fixture.tenant, run, "stop").await?;
    let events = fixture.store.mark_cancel_delivered(grant.fence, run).await?;
    assert_eq!(names(&events), ["run.cancel_delivered"]);
    assert!(fixture.store.mark_cancel_delivered(grant.fence, run).await?.is_empty());
    let delivered = fixture.run(run).await?.cancel.context("no request")?;
    assert!(delivered.delivered_at >= Some(delivered.at) && delivered.stopped_at.is_none());
    let mut end = ending(&grant, RunState::Cancelled);
    if let RunTransition::End(finish) = &mut end.then {
        finish.stopped_ago = Some(Duration::ZERO);
    }
    fixture.store.commit(end).await?;
    let ended = fixture.run(run).await?;
    let receipts = ended.cancel.context("no request")?;
    assert!(receipts.delivered_at <= receipts.stopped_at && receipts.stopped_at <= ended.finished_at);
    assert!(receipts.stopped_at.is_some() && receipts.reason == "stop");
    assert_eq!(refusal(fixture.store.mark_cancel_delivered(grant.fence, run).await), Code::OwnershipLost);
    fixture.check(session).await
}

pub(crate) async fn run_of_a_lost_worker_is_cancelled_at_once(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let (one, two) = (fixture.submit(session).await?.run.id, fixture.submit(session).await?.run.id);
    let worker = fixture.worker(LONG_LEASE).await?;
    fixture.granted(session, worker).await?;
    // Requested while its worker lived, it ends when it is reclaimed; requested later, it ends at once.
    fixture.store.request_cancel(fixture.tenant, one, "early").await?;
    fixture.store.retire_worker(worker).await?;
    assert_eq!(fixture.store.reclaim_sessions(10).await?.ended, 1);
    let ended = fixture.run(one).await?;
    assert_eq!(ended.state, RunState::Cancelled);
    assert_eq!(ended.outcomes.iter().map(|it| it.status).collect::<Vec<_>>(), [CallStatus::Cancelled]);
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    let RunInput::Tools(input) = &grant.run.input else { panic!("not tools") };
    let begun = Step { work: announced(input.calls[0].clone()), ..step(&grant, 0) };
    fixture.store.commit(progress(&grant, vec![begun.clone()])).await?;
    fixture.store.retire_worker(worker).await?;
    let cancelled = fixture.store.request_cancel(fixture.tenant, two, "late").await?;
    assert_eq!((cancelled.run.state, cancelled.signal), (RunState::Cancelled, None));
    let events = names(&cancelled.change.events);
    assert_eq!(events, ["run.cancel_requested", "run.attempt_lost", "tool.failed", "run.cancelled"]);
    let lost = LostAttempt { run: two, epoch: grant.fence.epoch, attempt: 1 };
    assert_eq!(cancelled.change.lost, Some(lost), "somebody has to tell of it");
    // The unfinished step is settled, under the same id.
    let steps = fixture.store.list_steps(fixture.tenant, two).await?;
    let status = steps[0].call_outcome().map(|outcome| outcome.status);
    assert_eq!((steps.len(), steps[0].id, status), (1, begun.id, Some(CallStatus::Interrupted)));
    assert_eq!(fixture.get_session(session).await?.owner, None);
    fixture.check(session).await
}

pub(crate) async fn hand_over_of_a_cancelled_run_ends_it(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    fixture.store.request_cancel(fixture.tenant, run, "stop").await?;
    let committed = fixture
        .store
        .commit(Commit { then: RunTransition::HandOver, ..progress(&grant, Vec::new()) })
        .await?;
    assert_eq!(names(&committed.events), ["run.handed_over", "run.cancelled"]);
    let ended = fixture.run(run).await?;
    assert_eq!((ended.state, ended.attempt), (RunState::Cancelled, 1));
    assert_eq!(ended.failure.map(|failure| failure.message), Some("stop".into()));
    fixture.check(session).await
}

pub(crate) async fn cancelling_a_session_tree_cancels_all_its_runs(fixture: &Fixture) -> Result<()> {
    let root = fixture.session().await?;
    let below = |parent: SessionId| async move {
        let session = NewSession { parent: Some(parent), ..fixture.new_session(None) };
        anyhow::Ok(fixture.store.create_session(&session).await?.value)
    };
    let child = below(root).await?;
    let grandchild = below(child.id).await?.id;
    let other = fixture.session().await?;
    assert_eq!(child.parent, Some(root));
    for session in [root, child.id, grandchild, other] {
        fixture.submit(session).await?;
        fixture.submit(session).await?;
    }
    let worker = fixture.worker(LONG_LEASE).await?;
    let running = fixture.granted(grandchild, worker).await?;
    let stranger = fixture.stranger().await?;
    assert_eq!(
        refusal(fixture.store.cancel_session(stranger, root, CancelScope::Tree, "x").await),
        Code::SessionNotFound
    );
    let adopted = NewSession { parent: Some(SessionId::new()), ..fixture.new_session(None) };
    let refused =
        fixture.store.create_session(&adopted).await.err().context("a session without its parent")?;
    assert_eq!((refused.code(), refused.field()), (Code::SessionNotFound, Some("parent")));
    let alone = fixture.store.cancel_session(fixture.tenant, root, CancelScope::Session, "one").await?;
    assert_eq!((alone.ended.len(), alone.requested.len()), (2, 0));
    let cancelled = fixture.store.cancel_session(fixture.tenant, root, CancelScope::Tree, "all").await?;
    assert_eq!((cancelled.ended.len(), cancelled.changes.len()), (3, 2));
    let signal = cancelled.requested.first().context("no signal")?;
    assert_eq!((signal.worker, signal.run, cancelled.requested.len()), (worker, running.run.id, 1));
    fixture.store.commit(ending(&running, RunState::Cancelled)).await?;
    for session in [root, child.id, grandchild] {
        assert!(fixture.runs_of(session).await?.iter().all(|run| run.state == RunState::Cancelled));
        fixture.check(session).await?;
    }
    assert!(fixture.runs_of(other).await?.iter().all(|run| run.state == RunState::Queued));
    Ok(())
}

/// Makes the database's clock three hours later, as seen from its rows.
async fn jump_forward(fixture: &Fixture) -> Result<()> {
    let (runs, sessions) = if fixture.is_postgres() {
        (
            "UPDATE runs SET created_at = created_at - interval '3 hours', started_at = started_at - interval '3 hours'",
            "UPDATE sessions SET current_started_at = current_started_at - interval '3 hours'",
        )
    } else {
        (
            "UPDATE runs SET created_at = created_at - 10800000000, started_at = started_at - 10800000000",
            "UPDATE sessions SET current_started_at = current_started_at - 10800000000",
        )
    };
    execute(fixture, runs).await?;
    execute(fixture, sessions).await
}

/// A minute is allowed. Only time that a worker reports is used, whatever the clock says meanwhile.
pub(crate) async fn run_ends_after_its_executed_time_and_not_by_the_clock(fixture: &Fixture) -> Result<()> {
    let (session, minute) = (fixture.session().await?, Duration::from_secs(60));
    let run = fixture.submit(session).await?.run.id;
    let next = fixture.submit(session).await?.run.id;
    let executed = |worker, seconds| Heartbeat {
        worker,
        lease: LONG_LEASE,
        running: vec![RunId::new(), run],
        worked: vec![Duration::from_secs(1000), Duration::from_secs(seconds)],
    };
    // Handed over after ten seconds.
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    assert_eq!(grant.time_left, minute);
    jump_forward(fixture).await?;
    let worked = Duration::from_secs(10);
    let hand_over = Commit { worked, ..Commit::new(grant.fence, run, RunTransition::HandOver) };
    fixture.store.commit(hand_over).await?;
    assert_eq!(fixture.state(run).await?, RunState::Queued);
    // Waits for hours, and is lost after ten more.
    jump_forward(fixture).await?;
    let grant = fixture.granted(session, worker).await?;
    assert_eq!(grant.time_left, minute - worked);
    fixture.store.renew_lease(&executed(worker, 20)).await?;
    jump_forward(fixture).await?;
    fixture.store.expire_all_leases().await?;
    assert_eq!(fixture.store.reclaim_sessions(10).await?.ended, 0);
    // An attempt without a heartbeat uses nothing, but is counted as lost.
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    assert_eq!((grant.time_left, grant.run.lost_attempts), (Duration::from_secs(40), 1));
    fixture.store.expire_all_leases().await?;
    assert_eq!(fixture.store.reclaim_sessions(10).await?.ended, 0);
    // The last heartbeat says that nothing is left.
    let worker = fixture.worker(LONG_LEASE).await?;
    assert_eq!(fixture.granted(session, worker).await?.time_left, Duration::from_secs(40));
    fixture.store.renew_lease(&executed(worker, 61)).await?;
    fixture.store.expire_all_leases().await?;
    assert_eq!(fixture.store.reclaim_sessions(10).await?.ended, 1);
    let ended = fixture.run(run).await?;
    assert_eq!(
        (ended.state, ended.failure.context("no failure")?.code.as_str()),
        (RunState::TimedOut, "run_timed_out")
    );
    let worker = fixture.worker(LONG_LEASE).await?;
    assert_eq!(fixture.granted(session, worker).await?.run.id, next);
    fixture.check(session).await
}

pub(crate) async fn background_tasks_show_their_last_round(fixture: &Fixture) -> Result<()> {
    assert_eq!(fixture.store.list_tasks().await?, []);
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
        fixture.store.record_task(it).await?;
    }
    let tasks = fixture.store.list_tasks().await?;
    assert_eq!(tasks.iter().map(|it| it.last.name.as_str()).collect::<Vec<_>>(), ["heal", "wake"]);
    assert_eq!((tasks[0].rounds, tasks[0].failures, &tasks[0].last), (1, 1, &failed));
    assert_eq!(tasks[0].last_notable.as_ref(), Some(&failed));
    assert_eq!((tasks[1].rounds, tasks[1].failures, &tasks[1].last), (2, 0, &idle));
    assert_eq!(tasks[1].last_notable.as_ref(), Some(&busy));
    Ok(())
}

pub(crate) async fn sessions_with_work_are_counted(fixture: &Fixture) -> Result<()> {
    let (waiting, owned, parked) =
        (fixture.session().await?, fixture.session().await?, fixture.session().await?);
    assert_eq!(fixture.store.count_sessions_with_work().await?, 0);
    for session in [waiting, owned, parked] {
        fixture.submit(session).await?;
        fixture.submit(session).await?;
    }
    let worker = fixture.worker(LONG_LEASE).await?;
    fixture.granted(owned, worker).await?;
    assert_eq!(fixture.store.count_sessions_with_work().await?, 3);
    let grant = fixture.granted(parked, worker).await?;
    fixture.store.commit(parking(&grant, ParkReason::External)).await?;
    assert_eq!(fixture.store.count_sessions_with_work().await?, 2);
    Ok(())
}

pub(crate) async fn next_lease_expiry_is_known(fixture: &Fixture) -> Result<()> {
    assert_eq!(fixture.store.next_lease_expiry().await?, None);
    let (short, _long) = (fixture.worker(SHORT_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    assert!(fixture.store.next_lease_expiry().await?.context("no lease")? <= SHORT_LEASE);
    fixture.wait_for_lease_expiry(short).await;
    // An expired lease is due until its worker is marked gone.
    assert_eq!(fixture.store.next_lease_expiry().await?, Some(Duration::ZERO));
    fixture.store.reclaim_sessions(10).await?;
    assert!(fixture.store.next_lease_expiry().await?.context("no lease")? > SHORT_LEASE);
    Ok(())
}
