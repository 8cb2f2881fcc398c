//! What owners write.

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, EventBody, RunId, RunState,
    budget::Limit,
    event::NewEvent,
    message::Role,
    run::{Failure, RunEnd},
};
use remuda_store::{Claim, Commit, Finish, Grant, NewRun, Then};

use crate::lab::{
    LONG_LEASE, Lab, call_of, completed, done, ending, giving_up, message, names, outcome, page, progress,
    refusal, step,
};

pub(crate) async fn progress_is_visible_and_handed_on(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let (first, second) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    let grant = lab.granted(session, first).await?;
    let steps = vec![step(&grant, 0), step(&grant, 1)];
    let committed = lab.store.commit(progress(&grant, steps.clone())).await?;
    assert_eq!(names(&committed.events), ["tool.started", "tool.started"]);
    assert_eq!(committed.events.iter().map(|it| it.cursor).collect::<Vec<_>>(), [3, 4]);
    assert!(committed.next.is_none() && !committed.released);
    assert_eq!(lab.store.list_steps(lab.tenant, run).await?, steps);
    let steps = vec![done(&steps[0], "zero"), steps[1].clone()];
    lab.store.commit(progress(&grant, vec![steps[0].clone()])).await?;
    assert_eq!(lab.store.list_steps(lab.tenant, run).await?, steps);
    assert_eq!(lab.run(run).await?.outcomes, [outcome(call_of(&steps[0]), "zero")]);
    assert_eq!(refusal(lab.store.list_steps(lab.stranger().await?, run).await), Code::RunNotFound);
    lab.store.release(grant.fence).await?;
    assert_eq!(lab.granted(session, second).await?.steps, steps);
    lab.check(session).await
}

pub(crate) async fn an_end_leads_to_the_next_run(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let (one, two) = (lab.submit(session).await?.run.id, lab.submit(session).await?.run.id);
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(session, worker).await?;
    let committed = lab.store.commit(completed(&grant)).await?;
    assert_eq!((names(&committed.events), committed.released), (vec!["run.completed"], false));
    let next = committed.next.context("no next run")?;
    assert_eq!((next.run.id, next.run.attempt, next.run.state), (two, 1, RunState::Running));
    assert_eq!((next.fence, next.steps.len()), (grant.fence, 0));
    assert_eq!(next.workspace_root, grant.workspace_root);
    let seen = lab.look(session).await?;
    assert_eq!((seen.owner, seen.current, seen.pending), (Some(worker), Some(two), 1));
    assert_eq!(
        (lab.run(one).await?.state, lab.run(two).await?.state),
        (RunState::Completed, RunState::Running)
    );
    assert_eq!(lab.run(two).await?.started_at, next.run.started_at);
    let committed = lab.store.commit(completed(&next)).await?;
    assert!(committed.next.is_none() && committed.released);
    let seen = lab.look(session).await?;
    assert_eq!((seen.owner, seen.current, seen.pending), (None, None, 0));
    lab.check(session).await
}

pub(crate) async fn giving_up_releases_though_more_wait(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    lab.submit(session).await?;
    let second = lab.submit(session).await?.run.id;
    let (worker, other) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    let grant = lab.granted(session, worker).await?;
    let committed = lab.store.commit(giving_up(&grant)).await?;
    assert!(committed.next.is_none() && committed.released);
    assert!(lab.store.is_runnable(lab.tenant, session).await?);
    let grant = lab.granted(session, other).await?;
    assert_eq!((grant.run.id, grant.run.attempt), (second, 1));
    lab.check(session).await
}

pub(crate) async fn an_old_fence_writes_nothing(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let worker = lab.worker(LONG_LEASE).await?;
    let old = lab.granted(session, worker).await?;
    let new = lab.granted(session, worker).await?;
    let before = (lab.look(session).await?, lab.events_of(session).await?, lab.run(run).await?);
    let said = vec![message(Role::User, "ghost")];
    let stale = Commit { messages: said, ..progress(&old, vec![step(&old, 0)]) };
    assert_eq!(refusal(lab.store.commit(stale.clone()).await), Code::OwnershipLost);
    assert_eq!(refusal(lab.store.commit(completed(&old)).await), Code::OwnershipLost);
    assert_eq!(refusal(lab.store.release(old.fence).await), Code::OwnershipLost);
    // The right epoch in the wrong hands is no better.
    let stranger = lab.stranger().await?;
    let mut foreign = stale.clone();
    foreign.fence = remuda_domain::Fence { tenant: stranger, ..new.fence };
    assert_eq!(refusal(lab.store.commit(foreign).await), Code::OwnershipLost);
    let mut thief = stale;
    thief.fence = remuda_domain::Fence { worker: lab.worker(LONG_LEASE).await?, ..new.fence };
    assert_eq!(refusal(lab.store.commit(thief).await), Code::OwnershipLost);
    assert_eq!((lab.look(session).await?, lab.events_of(session).await?, lab.run(run).await?), before);
    assert_eq!(lab.store.list_steps(lab.tenant, run).await?, []);
    assert_eq!(lab.store.list_messages(lab.tenant, session, &page(5)).await?.items, []);
    lab.store.commit(completed(&new)).await?;
    lab.check(session).await
}

pub(crate) async fn only_the_current_run_is_written(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let (one, two) = (lab.submit(session).await?.run.id, lab.submit(session).await?.run.id);
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    let early = Commit { run: two, ..completed(&grant) };
    assert_eq!(refusal(lab.store.commit(early).await), Code::OwnershipLost);
    lab.store.commit(completed(&grant)).await?;
    // A repeated end finds its run ended and writes nothing.
    assert_eq!(refusal(lab.store.commit(completed(&grant)).await), Code::OwnershipLost);
    for state in [RunState::Queued, RunState::Running, RunState::Parked] {
        let odd = Commit { run: two, ..ending(&grant, state) };
        assert_eq!(refusal(lab.store.commit(odd).await), Code::Internal);
    }
    assert_eq!(
        (lab.run(one).await?.state, lab.run(two).await?.state),
        (RunState::Completed, RunState::Running)
    );
    lab.check(session).await
}

pub(crate) async fn an_end_is_final_and_complete(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let worker = lab.worker(LONG_LEASE).await?;
    for state in [RunState::Completed, RunState::Failed, RunState::Cancelled, RunState::TimedOut] {
        let run = lab.submit(session).await?.run.id;
        let grant = lab.granted(session, worker).await?;
        let (first, second) = (step(&grant, 0), step(&grant, 1));
        lab.store.commit(progress(&grant, vec![first.clone()])).await?;
        let failure = (state != RunState::Completed).then(|| Failure::new(Code::ToolFailed, "a\0b"));
        let end = RunEnd { state, outcomes: Vec::new(), failure: failure.clone() };
        let started_at = grant.run.started_at.context("not started")?;
        let steps = vec![done(&second, "two"), done(&first, "one")];
        let then = Then::End(Finish {
            end,
            started_at: Some(started_at),
            stopped_ago: None,
            give_up: false,
            agent: None,
        });
        lab.store.commit(Commit { steps, then, ..progress(&grant, Vec::new()) }).await?;
        let ended = lab.run(run).await?;
        assert_eq!((ended.state, ended.failure), (state, failure));
        assert_eq!(ended.outcomes, [outcome(call_of(&first), "one"), outcome(call_of(&second), "two")]);
        assert_eq!((ended.started_at, ended.attempt), (Some(started_at), 1));
        assert!(ended.finished_at >= Some(started_at));
        let steps = lab.store.list_steps(lab.tenant, run).await?;
        assert_eq!(steps.iter().map(|it| it.id).collect::<Vec<_>>(), [first.id, second.id]);
        lab.check(session).await?;
    }
    Ok(())
}

/// The same step twice in one commit, and in two commits of one flush.
pub(crate) async fn a_repeated_step_keeps_its_last_version(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    let announced = step(&grant, 0);
    lab.store.commit(progress(&grant, vec![announced.clone(), done(&announced, "first")])).await?;
    assert_eq!(lab.run(run).await?.outcomes, [outcome(call_of(&announced), "first")]);
    let versions: Vec<_> = (0..20).map(|n| done(&announced, &n.to_string())).collect();
    let commits = versions.iter().map(|version| lab.store.commit(progress(&grant, vec![version.clone()])));
    futures::future::try_join_all(commits).await?;
    assert_eq!(lab.run(run).await?.outcomes, [outcome(call_of(&announced), "19")]);
    assert_eq!(lab.store.list_steps(lab.tenant, run).await?.len(), 1);
    lab.check(session).await
}

pub(crate) async fn terminal_events_are_the_stores(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    let event = NewEvent { run: Some(run), at: chrono::Utc::now(), body: EventBody::RunCompleted };
    let forged = Commit { events: vec![event], ..progress(&grant, Vec::new()) };
    assert_eq!(refusal(lab.store.commit(forged).await), Code::Internal);
    lab.store.commit(completed(&grant)).await?;
    lab.check(session).await
}

pub(crate) async fn releasing_keeps_the_run_at_the_head(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    lab.submit(session).await?;
    let (worker, other) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    let grant = lab.granted(session, worker).await?;
    lab.store.release(grant.fence).await?;
    assert_eq!(lab.look(session).await?.owner, None);
    assert!(lab.store.is_runnable(lab.tenant, session).await?);
    assert_eq!(refusal(lab.store.commit(completed(&grant)).await), Code::OwnershipLost);
    assert_eq!(refusal(lab.store.release(grant.fence).await), Code::OwnershipLost);
    let next = lab.granted(session, other).await?;
    assert_eq!((next.run.id, next.run.attempt, next.fence.epoch), (run, 2, 2));
    assert_eq!(next.run.started_at, grant.run.started_at);
    assert!(matches!(lab.claim(session, worker).await?, Claim::Refused { .. }));
    lab.check(session).await
}

/// The end of a run that came behind another one, as its owner would tell it.
fn behind(before: &Grant, run: RunId) -> Commit {
    Commit { run, ..completed(before) }
}

pub(crate) async fn ends_are_taken_together(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(lab.submit(session).await?.run.id);
    }
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    let ends = Commit { behind: vec![behind(&grant, runs[1]), behind(&grant, runs[2])], ..completed(&grant) };
    let committed = lab.store.commit(ends.clone()).await?;
    assert_eq!((committed.ended, names(&committed.events)), (3, vec!["run.completed"; 3]));
    let told: Vec<_> = committed.events.iter().filter_map(|event| event.run).collect();
    assert_eq!(told, runs[..3]);
    let next = committed.next.context("no next run")?;
    assert_eq!((next.run.id, next.run.attempt), (runs[3], 1));
    for run in &runs[..3] {
        let ended = lab.run(*run).await?;
        assert_eq!((ended.state, ended.attempt), (RunState::Completed, 1));
    }
    // Its answer was lost: nothing is done twice.
    let again = lab.store.commit(ends).await?;
    assert_eq!(again.next.context("no next run")?.run.id, runs[3]);
    assert_eq!(lab.look(session).await?.pending, 1);
    lab.check(session).await
}

/// Only what is still next in line is ended behind another one.
pub(crate) async fn ends_behind_a_stopped_run_are_not_taken(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(lab.submit(session).await?.run.id);
    }
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    lab.store.request_cancel(lab.tenant, runs[2], "changed my mind").await?;
    let behind = runs[1..].iter().map(|run| behind(&grant, *run)).collect();
    let committed = lab.store.commit(Commit { behind, ..completed(&grant) }).await?;
    assert_eq!(committed.ended, 2);
    let next = committed.next.context("no next run")?;
    assert_eq!(next.run.id, runs[3]);
    let mut states = Vec::new();
    for run in &runs {
        states.push(lab.run(*run).await?.state);
    }
    assert_eq!(states, [RunState::Completed, RunState::Completed, RunState::Cancelled, RunState::Running]);
    // A foreign fence among them is not taken either.
    let fence = remuda_domain::Fence { epoch: grant.fence.epoch + 1, ..grant.fence };
    let last = lab.submit(session).await?.run.id;
    let odd = Commit { fence, run: last, ..completed(&grant) };
    let committed = lab.store.commit(Commit { behind: vec![odd], ..completed(&next) }).await?;
    assert_eq!((committed.ended, committed.next.map(|next| next.run.id)), (1, Some(last)));
    lab.check(session).await
}

/// An owner learns what comes after the next run, as far as it can be executed like that one.
pub(crate) async fn the_line_is_told_as_far_as_wanted(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let mut runs = Vec::new();
    for _ in 0..6 {
        runs.push(lab.submit(session).await?.run.id);
    }
    let limited =
        NewRun { budget: Some(Limit { tokens: Some(1), ..Limit::default() }), ..lab.new_run(session) };
    lab.store.submit(limited).await?;
    lab.store.request_cancel(lab.tenant, runs[3], "changed my mind").await?;
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    assert!(grant.following.is_empty(), "a claim tells of one run only");
    let committed = lab.store.commit(Commit { wanted: 2, ..completed(&grant) }).await?;
    let next = committed.next.context("no next run")?;
    let ids = |grant: &Grant| grant.following.iter().map(|run| run.id).collect::<Vec<_>>();
    assert_eq!((next.run.id, ids(&next)), (runs[1], vec![runs[2], runs[4]]));
    let committed = lab.store.commit(Commit { wanted: 50, ..completed(&next) }).await?;
    let next = committed.next.context("no next run")?;
    assert_eq!((next.run.id, ids(&next)), (runs[2], vec![runs[4], runs[5]]), "not the one with a budget");
    assert_eq!(next.following[0].attempt, 0);
    lab.check(session).await
}

/// Runs that were executed while others were being saved start where these end, by the database's clock.
pub(crate) async fn runs_behind_others_start_where_these_end(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(lab.submit(session).await?.run.id);
    }
    let ahead = |grant: &Grant, run| {
        let mut commit = behind(grant, run);
        if let Then::End(finish) = &mut commit.then {
            finish.started_at = None;
        }
        commit
    };
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    lab.store.commit(completed(&grant)).await?;
    let others = vec![ahead(&grant, runs[2]), ahead(&grant, runs[3])];
    lab.store.commit(Commit { behind: others, ..ahead(&grant, runs[1]) }).await?;
    let mut over = grant.run.started_at;
    for run in runs {
        let run = lab.run(run).await?;
        assert_eq!(run.started_at, over, "run {}", run.seq);
        assert!(run.finished_at >= run.started_at);
        over = run.finished_at;
    }
    lab.check(session).await
}
