//! The fleet: workers, leases, queue statistics.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, Pool, SessionId, WorkerId,
    run::ParkReason,
    session::Owner,
    worker::{Worker, WorkerState},
};
use remuda_store::{
    Commit, Heartbeat, NewSession, Options, ParkRequest, PoolDepth, PoolStats, RunTransition,
    RunnableSession, connect,
};
use remuda_testkit::wait_for;

use crate::fixture::{Fixture, LONG_LEASE, PATIENCE, SHORT_LEASE, completed, parking, refusal, registration};

fn beat(worker: WorkerId) -> Heartbeat {
    Heartbeat { worker, lease: LONG_LEASE, running: Vec::new(), worked: Vec::new() }
}

async fn worker(fixture: &Fixture, id: WorkerId) -> Result<Worker> {
    let all = fixture.store.list_workers(true).await?;
    all.into_iter().find(|it| it.registration.id == id).context("no such worker")
}

pub(crate) async fn worker_registers_renews_and_retires(fixture: &Fixture) -> Result<()> {
    let gpu = registration("gpu".parse()?, 7);
    fixture.store.register_worker(&gpu, LONG_LEASE).await?;
    let plain = fixture.worker(LONG_LEASE).await?;
    let found = worker(fixture, gpu.id).await?;
    assert_eq!((&found.registration, found.state, found.busy), (&gpu, WorkerState::Active, 0));
    assert!(found.lease_until > found.started_at);
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    fixture.store.renew_lease(&Heartbeat { running: vec![run], ..beat(plain) }).await?;
    assert_eq!(worker(fixture, plain).await?.busy, 1);
    fixture.store.retire_worker(gpu.id).await?;
    assert_eq!(worker(fixture, gpu.id).await?.state, WorkerState::Gone);
    let alive = fixture.store.list_workers(false).await?;
    assert_eq!(alive.iter().map(|it| it.registration.id).collect::<Vec<_>>(), [plain]);
    assert_eq!(refusal(fixture.store.register_worker(&gpu, LONG_LEASE).await), Code::AlreadyExists);
    assert_eq!(fixture.store.expire_all_leases().await?, 1);
    assert_eq!(refusal(fixture.store.renew_lease(&beat(plain)).await), Code::OwnershipLost);
    assert_eq!(fixture.store.list_workers(false).await?, []);
    fixture.store.ping().await?;
    Ok(())
}

pub(crate) async fn drain_request_reaches_the_worker_with_its_heartbeat(fixture: &Fixture) -> Result<()> {
    let (one, two) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    assert_eq!(fixture.store.drain_worker(one).await?.state, WorkerState::Draining);
    assert_eq!(fixture.store.drain_worker(one).await?.registration.id, one);
    assert!(fixture.store.renew_lease(&beat(one)).await?.drain);
    assert!(!fixture.store.renew_lease(&beat(two)).await?.drain);
    assert_eq!(refusal(fixture.store.drain_worker(WorkerId::new()).await), Code::WorkerNotFound);
    fixture.store.retire_worker(two).await?;
    assert_eq!(fixture.store.drain_worker(two).await?.state, WorkerState::Gone);
    Ok(())
}

pub(crate) async fn expired_lease_cannot_be_renewed(fixture: &Fixture) -> Result<()> {
    let worker = fixture.worker(SHORT_LEASE).await?;
    fixture.store.renew_lease(&Heartbeat { lease: SHORT_LEASE, ..beat(worker) }).await?;
    fixture.wait_for_lease_expiry(worker).await;
    assert_eq!(refusal(fixture.store.renew_lease(&beat(worker)).await), Code::OwnershipLost);
    assert_eq!(refusal(fixture.store.renew_lease(&beat(WorkerId::new())).await), Code::OwnershipLost);
    Ok(())
}

pub(crate) async fn runnable_sessions_are_those_without_a_live_owner(fixture: &Fixture) -> Result<()> {
    let mut sessions = Vec::new();
    for _ in 0..6 {
        sessions.push(fixture.session().await?);
    }
    // 0 idle, 1 owned, 2 owner gone, 3 waiting, 4 cancelled, 5 released.
    for session in &sessions[1..] {
        fixture.submit(*session).await?;
        fixture.submit(*session).await?;
    }
    let (live, dying) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    fixture.granted(sessions[1], live).await?;
    fixture.granted(sessions[2], dying).await?;
    fixture.store.retire_worker(dying).await?;
    for run in fixture.runs_of(sessions[4]).await? {
        fixture.store.request_cancel(fixture.tenant, run.id, "x").await?;
    }
    fixture.store.release(fixture.granted(sessions[5], live).await?.fence).await?;
    let expected = [sessions[2], sessions[3], sessions[5]];
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = fixture.store.runnable_sessions(after, 2).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.session);
        seen.extend(page);
    }
    let runnable = |session: &SessionId| RunnableSession {
        tenant: fixture.tenant,
        session: *session,
        pool: Pool::default(),
    };
    assert_eq!(seen, expected.iter().map(runnable).collect::<Vec<_>>());
    for session in &sessions {
        assert_eq!(fixture.store.is_runnable(fixture.tenant, *session).await?, expected.contains(session));
    }
    Ok(())
}

pub(crate) async fn queue_stats_count_sessions_runs_and_workers(fixture: &Fixture) -> Result<()> {
    assert_eq!(fixture.store.queue_stats().await?, []);
    let gpu: Pool = "gpu".parse()?;
    let (owned, waiting) = (fixture.session().await?, fixture.session().await?);
    let on_gpu = NewSession { pool: gpu.clone(), ..fixture.new_session(None) };
    fixture.store.create_session(&on_gpu).await?;
    let (worker, draining) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    fixture.store.drain_worker(draining).await?;
    for _ in 0..3 {
        fixture.submit(owned).await?;
    }
    let oldest = fixture.submit(waiting).await?.run.created_at;
    fixture.submit(waiting).await?;
    fixture.granted(owned, worker).await?;
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
    assert_eq!(fixture.store.queue_stats().await?, [plain.clone(), idle.clone()]);
    // Parked runs are not queued, and a lost worker's run does not execute.
    fixture.store.commit(parking(&fixture.granted(waiting, worker).await?, ParkReason::External)).await?;
    fixture.store.retire_worker(worker).await?;
    let lost = PoolStats {
        running_sessions: 0,
        workers: 0,
        slots: 0,
        oldest_runnable_at: fixture.runs_of(owned).await?.first().map(|run| run.created_at),
        ..plain
    };
    assert_eq!(fixture.store.queue_stats().await?, [lost, idle]);
    Ok(())
}

pub(crate) async fn queue_depths_count_sessions_and_runs(fixture: &Fixture) -> Result<()> {
    assert_eq!(fixture.store.queue_depths().await?, []);
    assert_eq!(fixture.store.count_parked().await?, []);
    // A session without runs is in no queue.
    fixture.store.create_session(&NewSession { pool: "gpu".parse()?, ..fixture.new_session(None) }).await?;
    let depth = |runnable, running, queued, oldest| PoolDepth {
        pool: Pool::default(),
        runnable_sessions: runnable,
        running_sessions: running,
        queued_runs: queued,
        oldest_runnable_at: oldest,
    };
    let worker = fixture.worker(LONG_LEASE).await?;
    assert_eq!(fixture.store.queue_depths().await?, [depth(0, 0, 0, None)]);

    let (owned, parked, waiting) =
        (fixture.session().await?, fixture.session().await?, fixture.session().await?);
    for session in [owned, owned, owned, parked, parked] {
        fixture.submit(session).await?;
    }
    let oldest = fixture.submit(waiting).await?.run.created_at;
    fixture.granted(owned, worker).await?;
    let grant = fixture.granted(parked, worker).await?;
    let park = RunTransition::Park(ParkRequest::on(ParkReason::External));
    fixture.store.commit(Commit::new(grant.fence, grant.run.id, park)).await?;
    // Two after the executing run, one after the parked one, and one that could start.
    assert_eq!(fixture.store.queue_depths().await?, [depth(1, 1, 4, Some(oldest))]);
    assert_eq!(fixture.store.count_parked().await?, [(ParkReason::External, 1)]);

    // A lost worker's run could start again.
    fixture.store.retire_worker(worker).await?;
    let [depth] = fixture.store.queue_depths().await?.try_into().map_err(|it| anyhow::anyhow!("{it:?}"))?;
    assert_eq!((depth.runnable_sessions, depth.running_sessions, depth.queued_runs), (2, 0, 5));
    Ok(())
}

pub(crate) async fn parked_time_does_not_count_as_waiting_for_a_worker(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    let park = RunTransition::Park(ParkRequest::on(ParkReason::External));
    fixture.store.commit(Commit::new(grant.fence, run, park)).await?;
    fixture.store.resume_run(fixture.tenant, run).await?;
    let resumed = fixture.run(run).await?;
    let ready = resumed.started_at.context("it started")? + resumed.paused;
    assert!(ready > resumed.created_at);
    assert_eq!(fixture.store.queue_depths().await?[0].oldest_runnable_at, Some(ready));
    Ok(())
}

pub(crate) async fn one_holder_has_the_leader_lease_at_a_time(fixture: &Fixture) -> Result<()> {
    let lead = |holder: &'static str, lease| fixture.store.acquire_leader_lease("sweep", holder, lease);
    assert!(lead("a", SHORT_LEASE).await?);
    assert!(!lead("b", SHORT_LEASE).await?);
    assert!(lead("a", SHORT_LEASE).await?);
    assert!(fixture.store.acquire_leader_lease("other", "b", LONG_LEASE).await?);
    wait_for("the leader's lease to end", PATIENCE, || async {
        fixture.store.acquire_leader_lease("sweep", "b", LONG_LEASE).await.unwrap_or(false)
    })
    .await;
    assert!(!lead("a", LONG_LEASE).await?);
    let many = futures::future::try_join_all((0..20).map(|n| {
        let holder = n.to_string();
        async move { fixture.store.acquire_leader_lease("fresh", &holder, LONG_LEASE).await }
    }))
    .await?;
    assert_eq!(many.iter().filter(|leads| **leads).count(), 1);
    Ok(())
}

pub(crate) async fn expired_idempotency_keys_are_deleted(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let forgetful = connect(&Options { idempotency_ttl: Duration::ZERO, ..fixture.options() }).await?;
    let kept = fixture.store.submit(fixture.keyed_run(session, "kept", 1)).await?.run.id;
    let first = forgetful.submit(fixture.keyed_run(session, "gone", 1)).await?.run.id;
    wait_for("the key to expire", PATIENCE, || async {
        fixture.store.delete_expired_keys().await.is_ok_and(|deleted| deleted == 1)
    })
    .await;
    assert_eq!(fixture.store.delete_expired_keys().await?, 0);
    assert_eq!(fixture.store.submit(fixture.keyed_run(session, "kept", 1)).await?.run.id, kept);
    let anew = fixture.store.submit(fixture.keyed_run(session, "gone", 2)).await?;
    assert!(!anew.deduplicated && anew.run.id != first);
    // An arbitrarily long time to live is accepted.
    let eternal = connect(&Options { idempotency_ttl: Duration::MAX, ..fixture.options() }).await?;
    eternal.submit(fixture.keyed_run(session, "eternal", 1)).await?;
    assert!(eternal.submit(fixture.keyed_run(session, "eternal", 1)).await?.deduplicated);
    Ok(())
}

pub(crate) async fn diagnostics_explain_why_a_run_waits(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(fixture.submit(session).await?.run);
    }
    let first = fixture.store.diagnostics(fixture.tenant, runs[0].id).await?;
    assert_eq!((first.ahead, first.blocked_by, first.head.owner), (0, None, Owner::Nobody));
    assert_eq!((first.workers, first.free_slots), (0, 0));
    fixture.store.request_cancel(fixture.tenant, runs[2].id, "x").await?;
    let (owner, idle) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    fixture.store.register_worker(&registration("gpu".parse()?, 9), LONG_LEASE).await?;
    let grant = fixture.granted(session, owner).await?;
    fixture.store.renew_lease(&Heartbeat { running: vec![runs[0].id], ..beat(owner) }).await?;
    let last = fixture.store.diagnostics(fixture.tenant, runs[3].id).await?;
    assert_eq!(last.run, fixture.run(runs[3].id).await?);
    assert_eq!((last.ahead, last.blocked_by), (2, Some(runs[1].id)));
    assert_eq!((last.head.pending, last.head.current), (3, Some(runs[0].id)));
    assert!(
        matches!(last.head.owner, Owner::Alive { worker, lease_left } if worker == owner && !lease_left.is_zero())
    );
    assert_eq!((last.workers, last.free_slots), (2, 7));
    fixture.store.drain_worker(idle).await?;
    fixture.store.commit(completed(&grant)).await?;
    fixture.store.retire_worker(owner).await?;
    let last = fixture.store.diagnostics(fixture.tenant, runs[3].id).await?;
    assert_eq!((last.ahead, last.blocked_by, last.workers), (1, Some(runs[1].id), 0));
    assert_eq!(last.head.owner, Owner::Expired { worker: owner });
    Ok(())
}
