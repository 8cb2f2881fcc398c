//! Commits of owners.

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, EventBody, RunId, RunState,
    budget::Limit,
    event::NewEvent,
    message::Role,
    run::{Failure, RunEnd},
};
use remuda_store::{Claim, Commit, Finish, Grant, NewRun, RunTransition};

use crate::fixture::{
    Fixture, LONG_LEASE, call_of, completed, completed_with_release, done, ending, message, names, outcome,
    page, progress, refusal, step,
};

pub(crate) async fn committed_progress_is_visible_and_passed_to_the_next_owner(
    fixture: &Fixture,
) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let (first, second) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    let grant = fixture.granted(session, first).await?;
    let steps = vec![step(&grant, 0), step(&grant, 1)];
    let committed = fixture.store.commit(progress(&grant, steps.clone())).await?;
    assert_eq!(names(&committed.events), ["tool.started", "tool.started"]);
    assert_eq!(committed.events.iter().map(|it| it.cursor).collect::<Vec<_>>(), [3, 4]);
    assert!(committed.next.is_none() && !committed.released);
    assert_eq!(fixture.store.list_steps(fixture.tenant, run).await?, steps);
    let steps = vec![done(&steps[0], "zero"), steps[1].clone()];
    fixture.store.commit(progress(&grant, vec![steps[0].clone()])).await?;
    assert_eq!(fixture.store.list_steps(fixture.tenant, run).await?, steps);
    assert_eq!(fixture.run(run).await?.outcomes, [outcome(call_of(&steps[0]), "zero")]);
    assert_eq!(refusal(fixture.store.list_steps(fixture.stranger().await?, run).await), Code::RunNotFound);
    fixture.store.release(grant.fence).await?;
    assert_eq!(fixture.granted(session, second).await?.steps, steps);
    fixture.check(session).await
}

pub(crate) async fn end_grants_the_next_run(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let (one, two) = (fixture.submit(session).await?.run.id, fixture.submit(session).await?.run.id);
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    let committed = fixture.store.commit(completed(&grant)).await?;
    assert_eq!((names(&committed.events), committed.released), (vec!["run.completed"], false));
    let next = committed.next.context("no next run")?;
    assert_eq!((next.run.id, next.run.attempt, next.run.state), (two, 1, RunState::Running));
    assert_eq!((next.fence, next.steps.len()), (grant.fence, 0));
    assert_eq!(next.workspace_root, grant.workspace_root);
    let seen = fixture.get_session(session).await?;
    assert_eq!((seen.owner, seen.current, seen.pending), (Some(worker), Some(two), 1));
    assert_eq!(
        (fixture.run(one).await?.state, fixture.run(two).await?.state),
        (RunState::Completed, RunState::Running)
    );
    assert_eq!(fixture.run(two).await?.started_at, next.run.started_at);
    let committed = fixture.store.commit(completed(&next)).await?;
    assert!(committed.next.is_none() && committed.released);
    let seen = fixture.get_session(session).await?;
    assert_eq!((seen.owner, seen.current, seen.pending), (None, None, 0));
    fixture.check(session).await
}

pub(crate) async fn release_flag_releases_a_session_with_more_runs(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    let second = fixture.submit(session).await?.run.id;
    let (worker, other) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    let grant = fixture.granted(session, worker).await?;
    let committed = fixture.store.commit(completed_with_release(&grant)).await?;
    assert!(committed.next.is_none() && committed.released);
    assert!(fixture.store.is_runnable(fixture.tenant, session).await?);
    let grant = fixture.granted(session, other).await?;
    assert_eq!((grant.run.id, grant.run.attempt), (second, 1));
    fixture.check(session).await
}

pub(crate) async fn outdated_fence_writes_nothing(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let worker = fixture.worker(LONG_LEASE).await?;
    let old = fixture.granted(session, worker).await?;
    let new = fixture.granted(session, worker).await?;
    let before =
        (fixture.get_session(session).await?, fixture.events_of(session).await?, fixture.run(run).await?);
    let said = vec![message(Role::User, "ghost")];
    let stale = Commit { messages: said, ..progress(&old, vec![step(&old, 0)]) };
    assert_eq!(refusal(fixture.store.commit(stale.clone()).await), Code::OwnershipLost);
    assert_eq!(refusal(fixture.store.commit(completed(&old)).await), Code::OwnershipLost);
    assert_eq!(refusal(fixture.store.release(old.fence).await), Code::OwnershipLost);
    // The current epoch with the wrong worker is refused too.
    let stranger = fixture.stranger().await?;
    let mut foreign = stale.clone();
    foreign.fence = remuda_domain::Fence { tenant: stranger, ..new.fence };
    assert_eq!(refusal(fixture.store.commit(foreign).await), Code::OwnershipLost);
    let mut thief = stale;
    thief.fence = remuda_domain::Fence { worker: fixture.worker(LONG_LEASE).await?, ..new.fence };
    assert_eq!(refusal(fixture.store.commit(thief).await), Code::OwnershipLost);
    assert_eq!(
        (fixture.get_session(session).await?, fixture.events_of(session).await?, fixture.run(run).await?),
        before
    );
    assert_eq!(fixture.store.list_steps(fixture.tenant, run).await?, []);
    assert_eq!(fixture.store.list_messages(fixture.tenant, session, &page(5)).await?.items, []);
    fixture.store.commit(completed(&new)).await?;
    fixture.check(session).await
}

pub(crate) async fn commit_for_a_run_that_is_not_current_is_refused(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let (one, two) = (fixture.submit(session).await?.run.id, fixture.submit(session).await?.run.id);
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    let early = Commit { run: two, ..completed(&grant) };
    assert_eq!(refusal(fixture.store.commit(early).await), Code::OwnershipLost);
    fixture.store.commit(completed(&grant)).await?;
    // A repeated end finds its run ended and writes nothing.
    assert_eq!(refusal(fixture.store.commit(completed(&grant)).await), Code::OwnershipLost);
    for state in [RunState::Queued, RunState::Running, RunState::Parked] {
        let odd = Commit { run: two, ..ending(&grant, state) };
        assert_eq!(refusal(fixture.store.commit(odd).await), Code::Internal);
    }
    assert_eq!(
        (fixture.run(one).await?.state, fixture.run(two).await?.state),
        (RunState::Completed, RunState::Running)
    );
    fixture.check(session).await
}

pub(crate) async fn end_is_final_and_contains_all_outcomes(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    for state in [RunState::Completed, RunState::Failed, RunState::Cancelled, RunState::TimedOut] {
        let run = fixture.submit(session).await?.run.id;
        let grant = fixture.granted(session, worker).await?;
        let (first, second) = (step(&grant, 0), step(&grant, 1));
        fixture.store.commit(progress(&grant, vec![first.clone()])).await?;
        let failure = (state != RunState::Completed).then(|| Failure::new(Code::ToolFailed, "a\0b"));
        let end = RunEnd { state, outcomes: Vec::new(), failure: failure.clone() };
        let started_at = grant.run.started_at.context("not started")?;
        let steps = vec![done(&second, "two"), done(&first, "one")];
        let then = RunTransition::End(Finish {
            end,
            started_at: Some(started_at),
            stopped_ago: None,
            release: false,
            agent: None,
        });
        fixture.store.commit(Commit { steps, then, ..progress(&grant, Vec::new()) }).await?;
        let ended = fixture.run(run).await?;
        assert_eq!((ended.state, ended.failure), (state, failure));
        assert_eq!(ended.outcomes, [outcome(call_of(&first), "one"), outcome(call_of(&second), "two")]);
        assert_eq!((ended.started_at, ended.attempt), (Some(started_at), 1));
        assert!(ended.finished_at >= Some(started_at));
        let steps = fixture.store.list_steps(fixture.tenant, run).await?;
        assert_eq!(steps.iter().map(|it| it.id).collect::<Vec<_>>(), [first.id, second.id]);
        fixture.check(session).await?;
    }
    Ok(())
}

/// The same step twice in one commit, and in two commits of one flush.
pub(crate) async fn last_version_of_a_repeated_step_is_stored(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    let announced = step(&grant, 0);
    fixture.store.commit(progress(&grant, vec![announced.clone(), done(&announced, "first")])).await?;
    assert_eq!(fixture.run(run).await?.outcomes, [outcome(call_of(&announced), "first")]);
    let versions: Vec<_> = (0..20).map(|n| done(&announced, &n.to_string())).collect();
    let commits =
        versions.iter().map(|version| fixture.store.commit(progress(&grant, vec![version.clone()])));
    futures::future::try_join_all(commits).await?;
    assert_eq!(fixture.run(run).await?.outcomes, [outcome(call_of(&announced), "19")]);
    assert_eq!(fixture.store.list_steps(fixture.tenant, run).await?.len(), 1);
    fixture.check(session).await
}

pub(crate) async fn commit_with_a_terminal_event_is_refused(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    let event = NewEvent { run: Some(run), at: chrono::Utc::now(), body: EventBody::RunCompleted };
    let forged = Commit { events: vec![event], ..progress(&grant, Vec::new()) };
    assert_eq!(refusal(fixture.store.commit(forged).await), Code::Internal);
    fixture.store.commit(completed(&grant)).await?;
    fixture.check(session).await
}

pub(crate) async fn released_run_stays_at_the_head_of_the_queue(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    fixture.submit(session).await?;
    let (worker, other) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    let grant = fixture.granted(session, worker).await?;
    fixture.store.release(grant.fence).await?;
    assert_eq!(fixture.get_session(session).await?.owner, None);
    assert!(fixture.store.is_runnable(fixture.tenant, session).await?);
    assert_eq!(refusal(fixture.store.commit(completed(&grant)).await), Code::OwnershipLost);
    assert_eq!(refusal(fixture.store.release(grant.fence).await), Code::OwnershipLost);
    let next = fixture.granted(session, other).await?;
    assert_eq!((next.run.id, next.run.attempt, next.fence.epoch), (run, 2, 2));
    assert_eq!(next.run.started_at, grant.run.started_at);
    assert!(matches!(fixture.claim(session, worker).await?, Claim::Refused { .. }));
    fixture.check(session).await
}

/// The end of a successor, as its owner reports it.
fn successor_end(before: &Grant, run: RunId) -> Commit {
    Commit { run, ..completed(before) }
}

pub(crate) async fn successor_ends_are_committed_together(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(fixture.submit(session).await?.run.id);
    }
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    let ends = Commit {
        successors: vec![successor_end(&grant, runs[1]), successor_end(&grant, runs[2])],
        ..completed(&grant)
    };
    let committed = fixture.store.commit(ends.clone()).await?;
    assert_eq!((committed.ended, names(&committed.events)), (3, vec!["run.completed"; 3]));
    let told: Vec<_> = committed.events.iter().filter_map(|event| event.run).collect();
    assert_eq!(told, runs[..3]);
    let next = committed.next.context("no next run")?;
    assert_eq!((next.run.id, next.run.attempt), (runs[3], 1));
    for run in &runs[..3] {
        let ended = fixture.run(*run).await?;
        assert_eq!((ended.state, ended.attempt), (RunState::Completed, 1));
    }
    // The first response was lost: nothing is done twice.
    let again = fixture.store.commit(ends).await?;
    assert_eq!(again.next.context("no next run")?.run.id, runs[3]);
    assert_eq!(fixture.get_session(session).await?.pending, 1);
    fixture.check(session).await
}

/// A successor is accepted only while it is next in the queue.
pub(crate) async fn successors_after_a_cancelled_run_are_not_accepted(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(fixture.submit(session).await?.run.id);
    }
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    fixture.store.request_cancel(fixture.tenant, runs[2], "changed my mind").await?;
    let successor_end = runs[1..].iter().map(|run| successor_end(&grant, *run)).collect();
    let committed = fixture.store.commit(Commit { successors: successor_end, ..completed(&grant) }).await?;
    assert_eq!(committed.ended, 2);
    let next = committed.next.context("no next run")?;
    assert_eq!(next.run.id, runs[3]);
    let mut states = Vec::new();
    for run in &runs {
        states.push(fixture.run(*run).await?.state);
    }
    assert_eq!(states, [RunState::Completed, RunState::Completed, RunState::Cancelled, RunState::Running]);
    // A successor with a foreign fence is not accepted either.
    let fence = remuda_domain::Fence { epoch: grant.fence.epoch + 1, ..grant.fence };
    let last = fixture.submit(session).await?.run.id;
    let odd = Commit { fence, run: last, ..completed(&grant) };
    let committed = fixture.store.commit(Commit { successors: vec![odd], ..completed(&next) }).await?;
    assert_eq!((committed.ended, committed.next.map(|next| next.run.id)), (1, Some(last)));
    fixture.check(session).await
}

/// A commit can prefetch the runs after the next one, up to the first that cannot be executed ahead.
pub(crate) async fn next_grant_contains_the_prefetched_runs(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let mut runs = Vec::new();
    for _ in 0..6 {
        runs.push(fixture.submit(session).await?.run.id);
    }
    let limited =
        NewRun { budget: Some(Limit { tokens: Some(1), ..Limit::default() }), ..fixture.new_run(session) };
    fixture.store.submit(limited).await?;
    fixture.store.request_cancel(fixture.tenant, runs[3], "changed my mind").await?;
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    assert!(grant.following.is_empty(), "a claim returns one run only");
    let committed = fixture.store.commit(Commit { prefetch: 2, ..completed(&grant) }).await?;
    let next = committed.next.context("no next run")?;
    let ids = |grant: &Grant| grant.following.iter().map(|run| run.id).collect::<Vec<_>>();
    assert_eq!((next.run.id, ids(&next)), (runs[1], vec![runs[2], runs[4]]));
    let committed = fixture.store.commit(Commit { prefetch: 50, ..completed(&next) }).await?;
    let next = committed.next.context("no next run")?;
    assert_eq!((next.run.id, ids(&next)), (runs[2], vec![runs[4], runs[5]]), "not the one with a budget");
    assert_eq!(next.following[0].attempt, 0);
    fixture.check(session).await
}

/// Runs that were executed before their predecessor was committed start at its end, by the database's clock.
pub(crate) async fn successors_start_when_their_predecessor_ends(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(fixture.submit(session).await?.run.id);
    }
    let ahead = |grant: &Grant, run| {
        let mut commit = successor_end(grant, run);
        if let RunTransition::End(finish) = &mut commit.then {
            finish.started_at = None;
        }
        commit
    };
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    fixture.store.commit(completed(&grant)).await?;
    let others = vec![ahead(&grant, runs[2]), ahead(&grant, runs[3])];
    fixture.store.commit(Commit { successors: others, ..ahead(&grant, runs[1]) }).await?;
    let mut over = grant.run.started_at;
    for run in runs {
        let run = fixture.run(run).await?;
        assert_eq!(run.started_at, over, "run {}", run.seq);
        assert!(run.finished_at >= run.started_at);
        over = run.finished_at;
    }
    fixture.check(session).await
}
