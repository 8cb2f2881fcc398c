//! Many callers at once, and callers that go away.

use std::{collections::HashSet, time::Duration};

use anyhow::{Result, ensure};
use futures::future::{join_all, try_join_all};
use remuda_domain::{Code, RunState, SessionId};
use remuda_store::connect;
use remuda_testkit::wait_for;

use crate::lab::{LONG_LEASE, Lab, PATIENCE, completed, done, progress, step};

async fn sessions(lab: &Lab, count: usize) -> Result<Vec<SessionId>> {
    try_join_all((0..count).map(|_| lab.session())).await
}

pub(crate) async fn one_key_makes_one_run(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let second = connect(&lab.options()).await?;
    let stores = [&lab.store, &second];
    let submits = (0..100).map(|n| stores[n % 2].submit(lab.keyed_run(session, "k", 1)));
    let submitted = try_join_all(submits).await?;
    let runs: HashSet<_> = submitted.iter().map(|it| it.run.id).collect();
    assert_eq!(runs.len(), 1);
    assert_eq!(submitted.iter().filter(|it| !it.deduplicated).count(), 1);
    assert_eq!(lab.look(session).await?.pending, 1);
    // Different requests under one key in one flush: one is accepted, the rest conflict.
    let submits = (0..50).map(|n| lab.store.submit(lab.keyed_run(session, "l", n)));
    let outcomes = join_all(submits).await;
    assert_eq!(outcomes.iter().filter(|it| it.is_ok()).count(), 1);
    let conflict = |error: &remuda_domain::Error| error.code() == Code::IdempotencyConflict;
    assert!(outcomes.iter().filter_map(|it| it.as_ref().err()).all(conflict));
    lab.check(session).await
}

pub(crate) async fn every_session_counts_without_holes(lab: &Lab) -> Result<()> {
    let sessions = sessions(lab, 20).await?;
    let submits = (0..500).map(|n| lab.store.submit(lab.new_run(sessions[n % 20])));
    let submitted = try_join_all(submits).await?;
    for session in sessions {
        let mut seqs: Vec<_> =
            submitted.iter().filter(|it| it.run.session == session).map(|it| it.run.seq).collect();
        seqs.sort_unstable();
        assert_eq!(seqs, (1..=25).collect::<Vec<_>>());
        lab.check(session).await?;
    }
    Ok(())
}

pub(crate) async fn many_sessions_commit_together(lab: &Lab) -> Result<()> {
    let (sessions, worker) = (sessions(lab, 60).await?, lab.worker(LONG_LEASE).await?);
    try_join_all(sessions.iter().flat_map(|it| [lab.submit(*it), lab.submit(*it)])).await?;
    let mut grants = try_join_all(sessions.iter().map(|it| lab.granted(*it, worker))).await?;
    for last in [false, true] {
        let steps: Vec<_> = grants.iter().map(|grant| step(grant, 0)).collect();
        try_join_all(
            grants.iter().zip(&steps).map(|(grant, it)| lab.store.commit(progress(grant, vec![it.clone()]))),
        )
        .await?;
        let ends = grants.iter().zip(&steps).map(|(grant, it)| {
            let commit = completed(grant);
            lab.store.commit(remuda_store::Commit {
                steps: vec![done(it, &grant.fence.session.to_string())],
                ..commit
            })
        });
        let committed = try_join_all(ends).await?;
        for (grant, committed) in grants.iter_mut().zip(committed) {
            let run = lab.run(grant.run.id).await?;
            assert_eq!(run.state, RunState::Completed);
            assert_eq!(run.outcomes[0].output, grant.fence.session.to_string());
            assert_eq!((committed.released, committed.next.is_none()), (last, last));
            if let Some(next) = committed.next {
                assert_eq!(next.fence, grant.fence);
                *grant = *next;
            }
        }
    }
    for session in sessions {
        lab.check(session).await?;
    }
    Ok(())
}

/// Two processes write the same sessions and keys in opposite orders: no deadlock, no lost answer.
pub(crate) async fn two_stores_share_sessions_and_keys(lab: &Lab) -> Result<()> {
    let sessions = sessions(lab, 10).await?;
    let second = connect(&lab.options()).await?;
    let workers = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    for round in 0..10 {
        // The same keys for different sessions: only one store gets each of them.
        let forth = (0..40).map(|n| lab.keyed_run(sessions[n % 10], &format!("{round}-{n}"), 1));
        let back = (0..40).rev().map(|n| lab.keyed_run(sessions[(n + 3) % 10], &format!("{round}-{n}"), 2));
        let (forth, back) = tokio::join!(
            join_all(forth.map(|run| lab.store.submit(run))),
            join_all(back.map(|run| second.submit(run))),
        );
        let accepted = forth.iter().chain(&back).filter(|it| it.is_ok()).count();
        assert_eq!(accepted, 40);
        let conflict = |error: &remuda_domain::Error| error.code() == Code::IdempotencyConflict;
        assert!(forth.iter().chain(&back).filter_map(|it| it.as_ref().err()).all(conflict));
        // Both claim everything, in opposite orders.
        let (one, two) = tokio::join!(
            join_all(sessions.iter().map(|it| lab.store.claim(lab.tenant, *it, workers.0))),
            join_all(sessions.iter().rev().map(|it| second.claim(lab.tenant, *it, workers.1))),
        );
        for (store, claims) in [(&lab.store, one), (&second, two)] {
            for claim in claims {
                if let remuda_store::Claim::Granted(grant) = claim? {
                    store.commit(crate::lab::giving_up(&grant)).await?;
                }
            }
        }
    }
    for session in sessions {
        lab.check(session).await?;
    }
    Ok(())
}

pub(crate) async fn dropped_calls_leave_nothing_open(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    for n in 0..200u64 {
        let run = lab.submit(session).await?.run.id;
        let new = lab.new_session(None);
        let patience = Duration::from_micros(n * 10);
        tokio::select! {
            biased;
            () = tokio::time::sleep(patience) => {}
            done = lab.store.create_session(&new) => drop(done?),
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(patience) => {}
            done = lab.store.request_cancel(lab.tenant, run, "dropped") => drop(done?),
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(patience) => {}
            done = lab.store.situation(lab.tenant, run) => drop(done?),
        }
    }
    // What was begun is done to its end, without its caller.
    wait_for("open transactions to end", PATIENCE, || async {
        crate::plans::open_transactions(lab).await.is_ok_and(|open| open == 0)
    })
    .await;
    lab.check_soon(session).await?;
    let after = try_join_all((0..40).map(|_| lab.submit(session))).await?;
    ensure!(after.len() == 40, "the store is not usable");
    lab.check_soon(session).await
}
