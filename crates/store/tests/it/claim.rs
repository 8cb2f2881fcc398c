//! Claims: which worker gets a session.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;
use remuda_domain::{Code, RunState, SessionId, WorkerId};
use remuda_store::{Claim, Heartbeat};

use crate::fixture::{
    Fixture, LONG_LEASE, SHORT_LEASE, completed, done, progress, refusal, registration, step,
};

fn beat(worker: WorkerId) -> Heartbeat {
    Heartbeat { worker, lease: LONG_LEASE, running: Vec::new(), worked: Vec::new() }
}

pub(crate) async fn head_runs_are_granted_in_queue_order(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let (first, second) = (fixture.submit(session).await?.run, fixture.submit(session).await?.run);
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    assert_eq!((grant.run.id, grant.run.attempt, grant.run.state), (first.id, 1, RunState::Running));
    assert_eq!((grant.run.input.clone(), grant.workspace_root.as_str()), (first.input, "/srv/root"));
    assert_eq!((grant.fence.worker, grant.fence.epoch, grant.fence.session), (worker, 1, session));
    assert!(grant.steps.is_empty() && grant.run.started_at.is_some());
    let seen = fixture.get_session(session).await?;
    assert_eq!((seen.owner, seen.current, seen.epoch), (Some(worker), Some(first.id), 1));
    let running = fixture.run(first.id).await?;
    assert_eq!((running.state, running.attempt), (RunState::Running, 1));
    assert_eq!(running.started_at, grant.run.started_at);
    assert_eq!(fixture.run(second.id).await?.state, RunState::Queued);
    fixture.check(session).await
}

pub(crate) async fn claim_is_refused_while_the_owner_is_alive(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    let (owner, other) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    let grant = fixture.granted(session, owner).await?;
    match fixture.claim(session, other).await? {
        Claim::Refused { owner: named, retry_after } => {
            assert_eq!(named, owner);
            assert!(retry_after > LONG_LEASE / 2 && retry_after <= LONG_LEASE, "{retry_after:?}");
        }
        unexpected => panic!("{unexpected:?}"),
    }
    assert_eq!(fixture.get_session(session).await?.epoch, grant.fence.epoch);
    fixture.store.commit(completed(&grant)).await?;
    Ok(())
}

pub(crate) async fn second_claim_of_the_same_worker_fences_the_first(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    let old = fixture.granted(session, worker).await?;
    let new = fixture.granted(session, worker).await?;
    assert_eq!((new.fence.epoch, new.run.attempt), (old.fence.epoch + 1, 1));
    assert_eq!(refusal(fixture.store.commit(completed(&old)).await), Code::OwnershipLost);
    fixture.store.commit(completed(&new)).await?;
    fixture.check(session).await
}

pub(crate) async fn expired_lease_is_taken_over_and_the_run_resumes(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let (dying, heir) = (fixture.worker(SHORT_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    let old = fixture.granted(session, dying).await?;
    let (first, second) = (step(&old, 0), step(&old, 1));
    fixture.store.commit(progress(&old, vec![first.clone()])).await?;
    let first = done(&first, "result");
    fixture.store.commit(progress(&old, vec![first.clone(), second.clone()])).await?;
    assert!(matches!(fixture.claim(session, heir).await?, Claim::Refused { .. }));
    assert!(!fixture.store.is_runnable(fixture.tenant, session).await?);
    fixture.wait_for_lease_expiry(dying).await;
    assert!(fixture.store.is_runnable(fixture.tenant, session).await?);
    let new = fixture.granted(session, heir).await?;
    assert_eq!((new.run.id, new.run.attempt, new.fence.epoch), (run, 2, 2));
    assert_eq!(new.run.started_at, old.run.started_at);
    assert_eq!(new.steps, [first, second]);
    // A worker that was marked gone stays gone, even if it wakes up.
    assert_eq!(refusal(fixture.store.renew_lease(&beat(dying)).await), Code::OwnershipLost);
    assert_eq!(refusal(fixture.store.commit(completed(&old)).await), Code::OwnershipLost);
    assert_eq!(fixture.run(run).await?.attempt, 2);
    fixture.store.commit(completed(&new)).await?;
    let ended = fixture.run(run).await?;
    assert_eq!((ended.state, ended.attempt, ended.outcomes.len()), (RunState::Completed, 2, 1));
    fixture.check(session).await
}

pub(crate) async fn session_of_a_retired_worker_is_taken_over_at_once(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    let (leaving, heir) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    fixture.granted(session, leaving).await?;
    fixture.store.retire_worker(leaving).await?;
    assert_eq!(fixture.granted(session, heir).await?.run.attempt, 2);
    Ok(())
}

pub(crate) async fn one_of_many_concurrent_claims_is_granted(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    for round in 1..=4 {
        let workers = try_join_all((0..20).map(|_| fixture.worker(LONG_LEASE))).await?;
        let claims = try_join_all(workers.iter().map(|worker| fixture.claim(session, *worker))).await?;
        let granted: Vec<_> = claims
            .iter()
            .filter_map(|claim| match claim {
                Claim::Granted(grant) => Some(grant.fence.worker),
                Claim::Refused { .. } | Claim::NothingToDo | Claim::OtherPool | Claim::Reclaimed(_) => None,
            })
            .collect();
        assert_eq!(granted.len(), 1);
        for claim in &claims {
            match claim {
                Claim::Granted(grant) => assert_eq!(grant.fence.epoch, round),
                // Claims of the same flush also learn when to retry.
                Claim::Refused { owner, retry_after } => {
                    assert_eq!(*owner, granted[0]);
                    assert!(*retry_after > Duration::from_secs(1), "{retry_after:?}");
                }
                Claim::NothingToDo | Claim::OtherPool | Claim::Reclaimed(_) => {
                    panic!("a run is queued, but got {claim:?}")
                }
            }
        }
        fixture.store.retire_worker(granted[0]).await?;
        fixture.store.reclaim_sessions(10).await?;
    }
    fixture.check(session).await
}

/// A worker that does not know that its lease has expired must not get a session: another worker could take it over
/// immediately.
pub(crate) async fn claim_of_a_worker_without_a_lease_is_refused(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    let (expired, retired) =
        (fixture.worker(Duration::from_millis(1)).await?, fixture.worker(LONG_LEASE).await?);
    fixture.store.retire_worker(retired).await?;
    fixture.wait_for_lease_expiry(expired).await;
    for worker in [expired, retired, WorkerId::new()] {
        assert_eq!(refusal(fixture.store.claim(fixture.tenant, session, worker).await), Code::OwnershipLost);
    }
    let seen = fixture.get_session(session).await?;
    assert_eq!((seen.owner, seen.epoch), (None, 0));
    Ok(())
}

pub(crate) async fn claim_without_runnable_runs_returns_nothing_to_do(fixture: &Fixture) -> Result<()> {
    let (session, stranger) = (fixture.session().await?, fixture.stranger().await?);
    let worker = fixture.worker(LONG_LEASE).await?;
    assert!(matches!(fixture.claim(session, worker).await?, Claim::NothingToDo));
    assert!(matches!(fixture.claim(SessionId::new(), worker).await?, Claim::NothingToDo));
    let run = fixture.submit(session).await?.run.id;
    assert!(matches!(fixture.store.claim(stranger, session, worker).await?, Claim::NothingToDo));
    fixture.store.request_cancel(fixture.tenant, run, "no").await?;
    assert!(matches!(fixture.claim(session, worker).await?, Claim::NothingToDo));
    assert_eq!(fixture.get_session(session).await?.epoch, 0);
    fixture.submit(session).await?;
    let grant = fixture.granted(session, worker).await?;
    fixture.store.commit(completed(&grant)).await?;
    assert!(matches!(fixture.claim(session, worker).await?, Claim::NothingToDo));
    Ok(())
}

/// A token of another pool's session may be forged.
pub(crate) async fn session_of_another_pool_is_not_granted(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    let other = registration("gpu".parse()?, 1);
    fixture.store.register_worker(&other, LONG_LEASE).await?;
    assert!(matches!(fixture.claim(session, other.id).await?, Claim::OtherPool));
    // Neither in a batch with claims that are granted.
    let (worker, second) = (fixture.worker(LONG_LEASE).await?, fixture.session().await?);
    fixture.submit(second).await?;
    let claims = try_join_all([fixture.claim(session, other.id), fixture.claim(second, worker)]).await?;
    assert!(matches!(claims[..], [Claim::OtherPool, Claim::Granted(_)]), "{claims:?}");
    let seen = fixture.get_session(session).await?;
    assert_eq!((seen.owner, seen.epoch), (None, 0));
    fixture.granted(session, worker).await?;
    fixture.check(session).await
}
