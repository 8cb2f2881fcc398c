//! Ownership: who gets a session, and who does not.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;
use remuda_domain::{Code, RunState, SessionId, WorkerId};
use remuda_store::{Claim, Heartbeat};

use crate::lab::{LONG_LEASE, Lab, SHORT_LEASE, completed, done, progress, refusal, step};

fn beat(worker: WorkerId) -> Heartbeat {
    Heartbeat { worker, lease: LONG_LEASE, running: Vec::new() }
}

pub(crate) async fn the_head_run_is_granted_in_order(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let (first, second) = (lab.submit(session).await?.run, lab.submit(session).await?.run);
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(session, worker).await?;
    assert_eq!((grant.run.id, grant.run.attempt, grant.run.state), (first.id, 1, RunState::Running));
    assert_eq!((grant.run.input.clone(), grant.workspace_root.as_str()), (first.input, "/srv/root"));
    assert_eq!((grant.fence.worker, grant.fence.epoch, grant.fence.session), (worker, 1, session));
    assert!(grant.steps.is_empty() && grant.run.started_at.is_some());
    let seen = lab.look(session).await?;
    assert_eq!((seen.owner, seen.current, seen.epoch), (Some(worker), Some(first.id), 1));
    let running = lab.run(first.id).await?;
    assert_eq!((running.state, running.attempt), (RunState::Running, 1));
    assert_eq!(running.started_at, grant.run.started_at);
    assert_eq!(lab.run(second.id).await?.state, RunState::Queued);
    lab.check(session).await
}

pub(crate) async fn a_live_owner_is_not_overruled(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    lab.submit(session).await?;
    let (owner, other) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    let grant = lab.granted(session, owner).await?;
    match lab.claim(session, other).await? {
        Claim::Refused { owner: named, retry_after } => {
            assert_eq!(named, owner);
            assert!(retry_after > LONG_LEASE / 2 && retry_after <= LONG_LEASE, "{retry_after:?}");
        }
        unexpected => panic!("{unexpected:?}"),
    }
    assert_eq!(lab.look(session).await?.epoch, grant.fence.epoch);
    lab.store.commit(completed(&grant)).await?;
    Ok(())
}

pub(crate) async fn claiming_again_fences_the_first_claim(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    lab.submit(session).await?;
    let worker = lab.worker(LONG_LEASE).await?;
    let old = lab.granted(session, worker).await?;
    let new = lab.granted(session, worker).await?;
    assert_eq!((new.fence.epoch, new.run.attempt), (old.fence.epoch + 1, 1));
    assert_eq!(refusal(lab.store.commit(completed(&old)).await), Code::OwnershipLost);
    lab.store.commit(completed(&new)).await?;
    lab.check(session).await
}

pub(crate) async fn a_takeover_after_the_lease_resumes_the_run(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let (dying, heir) = (lab.worker(SHORT_LEASE).await?, lab.worker(LONG_LEASE).await?);
    let old = lab.granted(session, dying).await?;
    let (first, second) = (step(&old, 0), step(&old, 1));
    lab.store.commit(progress(&old, vec![first.clone()])).await?;
    let first = done(&first, "result");
    lab.store.commit(progress(&old, vec![first.clone(), second.clone()])).await?;
    assert!(matches!(lab.claim(session, heir).await?, Claim::Refused { .. }));
    assert!(!lab.store.is_runnable(lab.tenant, session).await?);
    lab.outlive(dying).await;
    assert!(lab.store.is_runnable(lab.tenant, session).await?);
    let new = lab.granted(session, heir).await?;
    assert_eq!((new.run.id, new.run.attempt, new.fence.epoch), (run, 2, 2));
    assert_eq!(new.run.started_at, old.run.started_at);
    assert_eq!(new.steps, [first, second]);
    // Whoever was written off stays so, even if it wakes up.
    assert_eq!(refusal(lab.store.renew_lease(&beat(dying)).await), Code::OwnershipLost);
    assert_eq!(refusal(lab.store.commit(completed(&old)).await), Code::OwnershipLost);
    assert_eq!(lab.run(run).await?.attempt, 2);
    lab.store.commit(completed(&new)).await?;
    let ended = lab.run(run).await?;
    assert_eq!((ended.state, ended.attempt, ended.outcomes.len()), (RunState::Completed, 2, 1));
    lab.check(session).await
}

pub(crate) async fn a_retired_owner_is_taken_over_at_once(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    lab.submit(session).await?;
    let (leaving, heir) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    lab.granted(session, leaving).await?;
    lab.store.retire_worker(leaving).await?;
    assert_eq!(lab.granted(session, heir).await?.run.attempt, 2);
    Ok(())
}

pub(crate) async fn one_of_many_claims_is_granted(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    lab.submit(session).await?;
    for round in 1..=4 {
        let workers = try_join_all((0..20).map(|_| lab.worker(LONG_LEASE))).await?;
        let claims = try_join_all(workers.iter().map(|worker| lab.claim(session, *worker))).await?;
        let granted: Vec<_> = claims
            .iter()
            .filter_map(|claim| match claim {
                Claim::Granted(grant) => Some(grant.fence.worker),
                Claim::Refused { .. } | Claim::NothingToDo | Claim::TakenBack(_) => None,
            })
            .collect();
        assert_eq!(granted.len(), 1);
        for claim in &claims {
            match claim {
                Claim::Granted(grant) => assert_eq!(grant.fence.epoch, round),
                // Also those of the very same flush learn when to ask again.
                Claim::Refused { owner, retry_after } => {
                    assert_eq!(*owner, granted[0]);
                    assert!(*retry_after > Duration::from_secs(1), "{retry_after:?}");
                }
                Claim::NothingToDo | Claim::TakenBack(_) => panic!("a run waits, yet {claim:?}"),
            }
        }
        lab.store.retire_worker(granted[0]).await?;
        lab.store.take_back(10).await?;
    }
    lab.check(session).await
}

/// A worker that lost its lease and does not know it must not get what others could take from it at once.
pub(crate) async fn claims_of_a_lost_worker_are_refused(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    lab.submit(session).await?;
    let (expired, retired) = (lab.worker(Duration::from_millis(1)).await?, lab.worker(LONG_LEASE).await?);
    lab.store.retire_worker(retired).await?;
    lab.outlive(expired).await;
    for worker in [expired, retired, WorkerId::new()] {
        assert_eq!(refusal(lab.store.claim(lab.tenant, session, worker).await), Code::OwnershipLost);
    }
    let seen = lab.look(session).await?;
    assert_eq!((seen.owner, seen.epoch), (None, 0));
    Ok(())
}

pub(crate) async fn nothing_to_do_is_said(lab: &Lab) -> Result<()> {
    let (session, stranger) = (lab.session().await?, lab.stranger().await?);
    let worker = lab.worker(LONG_LEASE).await?;
    assert!(matches!(lab.claim(session, worker).await?, Claim::NothingToDo));
    assert!(matches!(lab.claim(SessionId::new(), worker).await?, Claim::NothingToDo));
    let run = lab.submit(session).await?.run.id;
    assert!(matches!(lab.store.claim(stranger, session, worker).await?, Claim::NothingToDo));
    lab.store.request_cancel(lab.tenant, run, "no").await?;
    assert!(matches!(lab.claim(session, worker).await?, Claim::NothingToDo));
    assert_eq!(lab.look(session).await?.epoch, 0);
    lab.submit(session).await?;
    let grant = lab.granted(session, worker).await?;
    lab.store.commit(completed(&grant)).await?;
    assert!(matches!(lab.claim(session, worker).await?, Claim::NothingToDo));
    Ok(())
}
