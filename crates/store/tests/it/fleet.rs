//! The fleet: workers, leases, what must be woken.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, Pool, SessionId, WorkerId,
    run::ParkReason,
    session::Owner,
    worker::{Worker, WorkerState},
};
use remuda_store::{
    Commit, Heartbeat, NewSession, Options, Parking, PoolDepth, PoolStats, Runnable, Then, connect,
};
use remuda_testkit::wait_for;

use crate::lab::{LONG_LEASE, Lab, PATIENCE, SHORT_LEASE, completed, parking, refusal, registration};

fn beat(worker: WorkerId) -> Heartbeat {
    Heartbeat { worker, lease: LONG_LEASE, running: Vec::new() }
}

async fn worker(lab: &Lab, id: WorkerId) -> Result<Worker> {
    let all = lab.store.list_workers(true).await?;
    all.into_iter().find(|it| it.registration.id == id).context("no such worker")
}

pub(crate) async fn workers_come_and_go(lab: &Lab) -> Result<()> {
    let gpu = registration("gpu".parse()?, 7);
    lab.store.register_worker(&gpu, LONG_LEASE).await?;
    let plain = lab.worker(LONG_LEASE).await?;
    let found = worker(lab, gpu.id).await?;
    assert_eq!((&found.registration, found.state, found.busy), (&gpu, WorkerState::Active, 0));
    assert!(found.lease_until > found.started_at);
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    lab.store.renew_lease(&Heartbeat { running: vec![run], ..beat(plain) }).await?;
    assert_eq!(worker(lab, plain).await?.busy, 1);
    lab.store.retire_worker(gpu.id).await?;
    assert_eq!(worker(lab, gpu.id).await?.state, WorkerState::Gone);
    let alive = lab.store.list_workers(false).await?;
    assert_eq!(alive.iter().map(|it| it.registration.id).collect::<Vec<_>>(), [plain]);
    assert_eq!(refusal(lab.store.register_worker(&gpu, LONG_LEASE).await), Code::AlreadyExists);
    assert_eq!(lab.store.expire_all_leases().await?, 1);
    assert_eq!(refusal(lab.store.renew_lease(&beat(plain)).await), Code::OwnershipLost);
    assert_eq!(lab.store.list_workers(false).await?, []);
    lab.store.ping().await?;
    Ok(())
}

pub(crate) async fn a_drain_order_reaches_its_worker(lab: &Lab) -> Result<()> {
    let (one, two) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    assert_eq!(lab.store.drain_worker(one).await?.state, WorkerState::Draining);
    assert_eq!(lab.store.drain_worker(one).await?.registration.id, one);
    assert!(lab.store.renew_lease(&beat(one)).await?.drain);
    assert!(!lab.store.renew_lease(&beat(two)).await?.drain);
    assert_eq!(refusal(lab.store.drain_worker(WorkerId::new()).await), Code::WorkerNotFound);
    lab.store.retire_worker(two).await?;
    assert_eq!(lab.store.drain_worker(two).await?.state, WorkerState::Gone);
    Ok(())
}

pub(crate) async fn ended_leases_cannot_be_renewed(lab: &Lab) -> Result<()> {
    let worker = lab.worker(SHORT_LEASE).await?;
    lab.store.renew_lease(&Heartbeat { lease: SHORT_LEASE, ..beat(worker) }).await?;
    lab.outlive(worker).await;
    assert_eq!(refusal(lab.store.renew_lease(&beat(worker)).await), Code::OwnershipLost);
    assert_eq!(refusal(lab.store.renew_lease(&beat(WorkerId::new())).await), Code::OwnershipLost);
    Ok(())
}

pub(crate) async fn runnable_sessions_are_those_without_a_live_owner(lab: &Lab) -> Result<()> {
    let mut sessions = Vec::new();
    for _ in 0..6 {
        sessions.push(lab.session().await?);
    }
    // 0 idle, 1 owned, 2 owner gone, 3 waiting, 4 cancelled, 5 released.
    for session in &sessions[1..] {
        lab.submit(*session).await?;
        lab.submit(*session).await?;
    }
    let (live, dying) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    lab.granted(sessions[1], live).await?;
    lab.granted(sessions[2], dying).await?;
    lab.store.retire_worker(dying).await?;
    for run in lab.runs_of(sessions[4]).await? {
        lab.store.request_cancel(lab.tenant, run.id, "x").await?;
    }
    lab.store.release(lab.granted(sessions[5], live).await?.fence).await?;
    let expected = [sessions[2], sessions[3], sessions[5]];
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = lab.store.runnable_sessions(after, 2).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.session);
        seen.extend(page);
    }
    let runnable =
        |session: &SessionId| Runnable { tenant: lab.tenant, session: *session, pool: Pool::default() };
    assert_eq!(seen, expected.iter().map(runnable).collect::<Vec<_>>());
    for session in &sessions {
        assert_eq!(lab.store.is_runnable(lab.tenant, *session).await?, expected.contains(session));
    }
    Ok(())
}

pub(crate) async fn stats_count_what_is_there(lab: &Lab) -> Result<()> {
    assert_eq!(lab.store.queue_stats().await?, []);
    let gpu: Pool = "gpu".parse()?;
    let (owned, waiting) = (lab.session().await?, lab.session().await?);
    let on_gpu = NewSession { pool: gpu.clone(), ..lab.new_session(None) };
    lab.store.create_session(&on_gpu).await?;
    let (worker, draining) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    lab.store.drain_worker(draining).await?;
    for _ in 0..3 {
        lab.submit(owned).await?;
    }
    let oldest = lab.submit(waiting).await?.run.created_at;
    lab.submit(waiting).await?;
    lab.granted(owned, worker).await?;
    let plain = PoolStats {
        pool: Pool::default(),
        runnable_sessions: 1,
        running_sessions: 1,
        queued_runs: 4,
        workers: 1,
        slots: 4,
        oldest_runnable_at: Some(oldest),
    };
    let idle = PoolStats {
        pool: gpu,
        runnable_sessions: 0,
        running_sessions: 0,
        queued_runs: 0,
        workers: 0,
        slots: 0,
        oldest_runnable_at: None,
    };
    assert_eq!(lab.store.queue_stats().await?, [plain.clone(), idle.clone()]);
    // What is parked is not queued, and what a lost worker had does not run.
    lab.store.commit(parking(&lab.granted(waiting, worker).await?, ParkReason::External)).await?;
    lab.store.retire_worker(worker).await?;
    let lost = PoolStats {
        running_sessions: 0,
        workers: 0,
        slots: 0,
        oldest_runnable_at: lab.runs_of(owned).await?.first().map(|run| run.created_at),
        ..plain
    };
    assert_eq!(lab.store.queue_stats().await?, [lost, idle]);
    Ok(())
}

pub(crate) async fn depths_count_what_is_there(lab: &Lab) -> Result<()> {
    assert_eq!(lab.store.queue_depths().await?, []);
    assert_eq!(lab.store.count_parked().await?, []);
    // A session without anything to do is in no line.
    lab.store.create_session(&NewSession { pool: "gpu".parse()?, ..lab.new_session(None) }).await?;
    let depth = |runnable, running, queued, oldest| PoolDepth {
        pool: Pool::default(),
        runnable_sessions: runnable,
        running_sessions: running,
        queued_runs: queued,
        oldest_runnable_at: oldest,
    };
    let worker = lab.worker(LONG_LEASE).await?;
    assert_eq!(lab.store.queue_depths().await?, [depth(0, 0, 0, None)]);

    let (owned, parked, waiting) = (lab.session().await?, lab.session().await?, lab.session().await?);
    for session in [owned, owned, owned, parked, parked] {
        lab.submit(session).await?;
    }
    let oldest = lab.submit(waiting).await?.run.created_at;
    lab.granted(owned, worker).await?;
    let grant = lab.granted(parked, worker).await?;
    let park = Then::Park(Parking::on(ParkReason::External));
    lab.store.commit(Commit::new(grant.fence, grant.run.id, park)).await?;
    // Two behind the one that runs, one behind the one that is parked, and one that could start.
    assert_eq!(lab.store.queue_depths().await?, [depth(1, 1, 4, Some(oldest))]);
    assert_eq!(lab.store.count_parked().await?, [(ParkReason::External, 1)]);

    // What a lost worker had could start again.
    lab.store.retire_worker(worker).await?;
    let [depth] = lab.store.queue_depths().await?.try_into().map_err(|it| anyhow::anyhow!("{it:?}"))?;
    assert_eq!((depth.runnable_sessions, depth.running_sessions, depth.queued_runs), (2, 0, 5));
    Ok(())
}

pub(crate) async fn a_wait_for_something_else_is_no_wait_for_a_worker(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    let park = Then::Park(Parking::on(ParkReason::External));
    lab.store.commit(Commit::new(grant.fence, run, park)).await?;
    lab.store.resume_run(lab.tenant, run).await?;
    let resumed = lab.run(run).await?;
    let ready = resumed.started_at.context("it started")? + resumed.paused;
    assert!(ready > resumed.created_at);
    assert_eq!(lab.store.queue_depths().await?[0].oldest_runnable_at, Some(ready));
    Ok(())
}

pub(crate) async fn one_leads_at_a_time(lab: &Lab) -> Result<()> {
    let lead = |holder: &'static str, lease| lab.store.lead("sweep", holder, lease);
    assert!(lead("a", SHORT_LEASE).await?);
    assert!(!lead("b", SHORT_LEASE).await?);
    assert!(lead("a", SHORT_LEASE).await?);
    assert!(lab.store.lead("other", "b", LONG_LEASE).await?);
    wait_for("the leader's lease to end", PATIENCE, || async {
        lab.store.lead("sweep", "b", LONG_LEASE).await.unwrap_or(false)
    })
    .await;
    assert!(!lead("a", LONG_LEASE).await?);
    let many = futures::future::try_join_all((0..20).map(|n| {
        let holder = n.to_string();
        async move { lab.store.lead("fresh", &holder, LONG_LEASE).await }
    }))
    .await?;
    assert_eq!(many.iter().filter(|leads| **leads).count(), 1);
    Ok(())
}

pub(crate) async fn expired_keys_are_deleted(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let forgetful = connect(&Options { idempotency_ttl: Duration::ZERO, ..lab.options() }).await?;
    let kept = lab.store.submit(lab.keyed_run(session, "kept", 1)).await?.run.id;
    let first = forgetful.submit(lab.keyed_run(session, "gone", 1)).await?.run.id;
    wait_for("the key to expire", PATIENCE, || async {
        lab.store.delete_expired_keys().await.is_ok_and(|deleted| deleted == 1)
    })
    .await;
    assert_eq!(lab.store.delete_expired_keys().await?, 0);
    assert_eq!(lab.store.submit(lab.keyed_run(session, "kept", 1)).await?.run.id, kept);
    let anew = lab.store.submit(lab.keyed_run(session, "gone", 2)).await?;
    assert!(!anew.deduplicated && anew.run.id != first);
    // No time to live is too long.
    let eternal = connect(&Options { idempotency_ttl: Duration::MAX, ..lab.options() }).await?;
    eternal.submit(lab.keyed_run(session, "eternal", 1)).await?;
    assert!(eternal.submit(lab.keyed_run(session, "eternal", 1)).await?.deduplicated);
    Ok(())
}

pub(crate) async fn a_situation_explains_the_wait(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(lab.submit(session).await?.run);
    }
    let first = lab.store.situation(lab.tenant, runs[0].id).await?;
    assert_eq!((first.ahead, first.blocked_by, first.head.owner), (0, None, Owner::Nobody));
    assert_eq!((first.workers, first.free_slots), (0, 0));
    lab.store.request_cancel(lab.tenant, runs[2].id, "x").await?;
    let (owner, idle) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    lab.store.register_worker(&registration("gpu".parse()?, 9), LONG_LEASE).await?;
    let grant = lab.granted(session, owner).await?;
    lab.store.renew_lease(&Heartbeat { running: vec![runs[0].id], ..beat(owner) }).await?;
    let last = lab.store.situation(lab.tenant, runs[3].id).await?;
    assert_eq!(last.run, lab.run(runs[3].id).await?);
    assert_eq!((last.ahead, last.blocked_by), (2, Some(runs[1].id)));
    assert_eq!((last.head.pending, last.head.current), (3, Some(runs[0].id)));
    assert!(
        matches!(last.head.owner, Owner::Alive { worker, lease_left } if worker == owner && !lease_left.is_zero())
    );
    assert_eq!((last.workers, last.free_slots), (2, 7));
    lab.store.drain_worker(idle).await?;
    lab.store.commit(completed(&grant)).await?;
    lab.store.retire_worker(owner).await?;
    let last = lab.store.situation(lab.tenant, runs[3].id).await?;
    assert_eq!((last.ahead, last.blocked_by, last.workers), (1, Some(runs[1].id), 0));
    assert_eq!(last.head.owner, Owner::Expired { worker: owner });
    Ok(())
}
