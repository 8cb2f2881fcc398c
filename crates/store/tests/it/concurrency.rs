//! Concurrent callers, and callers that go away.

use std::{collections::HashSet, time::Duration};

use anyhow::{Result, ensure};
use futures::future::{join_all, try_join_all};
use remuda_domain::{Code, RunState, SessionId};
use remuda_store::connect;
use remuda_testkit::wait_for;

use crate::fixture::{Fixture, LONG_LEASE, PATIENCE, completed, done, progress, step};

async fn sessions(fixture: &Fixture, count: usize) -> Result<Vec<SessionId>> {
    try_join_all((0..count).map(|_| fixture.session())).await
}

pub(crate) async fn concurrent_submits_with_one_key_create_one_run(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let second = connect(&fixture.options()).await?;
    let stores = [&fixture.store, &second];
    let submits = (0..100).map(|n| stores[n % 2].submit(fixture.keyed_run(session, "k", 1)));
    let submitted = try_join_all(submits).await?;
    let runs: HashSet<_> = submitted.iter().map(|it| it.run.id).collect();
    assert_eq!(runs.len(), 1);
    assert_eq!(submitted.iter().filter(|it| !it.deduplicated).count(), 1);
    assert_eq!(fixture.get_session(session).await?.pending, 1);
    // Different requests under one key in one flush: one is accepted, the rest conflict.
    let submits = (0..50).map(|n| fixture.store.submit(fixture.keyed_run(session, "l", n)));
    let outcomes = join_all(submits).await;
    assert_eq!(outcomes.iter().filter(|it| it.is_ok()).count(), 1);
    let conflict = |error: &remuda_domain::Error| error.code() == Code::IdempotencyConflict;
    assert!(outcomes.iter().filter_map(|it| it.as_ref().err()).all(conflict));
    fixture.check(session).await
}

pub(crate) async fn concurrent_submits_get_consecutive_sequence_numbers(fixture: &Fixture) -> Result<()> {
    let sessions = sessions(fixture, 20).await?;
    let submits = (0..500).map(|n| fixture.store.submit(fixture.new_run(sessions[n % 20])));
    let submitted = try_join_all(submits).await?;
    for session in sessions {
        let mut seqs: Vec<_> =
            submitted.iter().filter(|it| it.run.session == session).map(|it| it.run.seq).collect();
        seqs.sort_unstable();
        assert_eq!(seqs, (1..=25).collect::<Vec<_>>());
        fixture.check(session).await?;
    }
    Ok(())
}

pub(crate) async fn many_sessions_commit_together(fixture: &Fixture) -> Result<()> {
    let (sessions, worker) = (sessions(fixture, 60).await?, fixture.worker(LONG_LEASE).await?);
    try_join_all(sessions.iter().flat_map(|it| [fixture.submit(*it), fixture.submit(*it)])).await?;
    let mut grants = try_join_all(sessions.iter().map(|it| fixture.granted(*it, worker))).await?;
    for last in [false, true] {
        let steps: Vec<_> = grants.iter().map(|grant| step(grant, 0)).collect();
        try_join_all(
            grants
                .iter()
                .zip(&steps)
                .map(|(grant, it)| fixture.store.commit(progress(grant, vec![it.clone()]))),
        )
        .await?;
        let ends = grants.iter().zip(&steps).map(|(grant, it)| {
            let commit = completed(grant);
            fixture.store.commit(remuda_store::Commit {
                steps: vec![done(it, &grant.fence.session.to_string())],
                ..commit
            })
        });
        let committed = try_join_all(ends).await?;
        for (grant, committed) in grants.iter_mut().zip(committed) {
            let run = fixture.run(grant.run.id).await?;
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
        fixture.check(session).await?;
    }
    Ok(())
}

/// Two processes write the same sessions and keys in opposite orders: no deadlock, no lost response.
pub(crate) async fn two_stores_share_sessions_and_keys_without_deadlock(fixture: &Fixture) -> Result<()> {
    let sessions = sessions(fixture, 10).await?;
    let second = connect(&fixture.options()).await?;
    let workers = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    for round in 0..10 {
        // The same keys for different sessions: only one store gets each of them.
        let forth = (0..40).map(|n| fixture.keyed_run(sessions[n % 10], &format!("{round}-{n}"), 1));
        let back =
            (0..40).rev().map(|n| fixture.keyed_run(sessions[(n + 3) % 10], &format!("{round}-{n}"), 2));
        let (forth, back) = tokio::join!(
            join_all(forth.map(|run| fixture.store.submit(run))),
            join_all(back.map(|run| second.submit(run))),
        );
        let accepted = forth.iter().chain(&back).filter(|it| it.is_ok()).count();
        assert_eq!(accepted, 40);
        let conflict = |error: &remuda_domain::Error| error.code() == Code::IdempotencyConflict;
        assert!(forth.iter().chain(&back).filter_map(|it| it.as_ref().err()).all(conflict));
        // Both claim everything, in opposite orders.
        let (one, two) = tokio::join!(
            join_all(sessions.iter().map(|it| fixture.store.claim(fixture.tenant, *it, workers.0))),
            join_all(sessions.iter().rev().map(|it| second.claim(fixture.tenant, *it, workers.1))),
        );
        for (store, claims) in [(&fixture.store, one), (&second, two)] {
            for claim in claims {
                if let remuda_store::Claim::Granted(grant) = claim? {
                    store.commit(crate::fixture::completed_with_release(&grant)).await?;
                }
            }
        }
    }
    for session in sessions {
        fixture.check(session).await?;
    }
    Ok(())
}

pub(crate) async fn dropped_calls_leave_no_open_transaction(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    for n in 0..200u64 {
        let run = fixture.submit(session).await?.run.id;
        let new = fixture.new_session(None);
        let patience = Duration::from_micros(n * 10);
        tokio::select! {
            biased;
            () = tokio::time::sleep(patience) => {}
            done = fixture.store.create_session(&new) => drop(done?),
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(patience) => {}
            done = fixture.store.request_cancel(fixture.tenant, run, "dropped") => drop(done?),
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(patience) => {}
            done = fixture.store.diagnostics(fixture.tenant, run) => drop(done?),
        }
    }
    // A change runs to completion without its caller.
    wait_for("open transactions to end", PATIENCE, || async {
        crate::query_plans::open_transactions(fixture).await.is_ok_and(|open| open == 0)
    })
    .await;
    fixture.check_eventually(session).await?;
    let after = try_join_all((0..40).map(|_| fixture.submit(session))).await?;
    ensure!(after.len() == 40, "the store is not usable");
    fixture.check_eventually(session).await
}
