//! Cancelling runs.

use anyhow::{Context as _, Result};
use remuda_domain::{Code, EventBody, RunId, RunState};
use remuda_store::Heartbeat;

use crate::fixture::{Fixture, LONG_LEASE, completed, ending, names, refusal};

pub(crate) async fn cancelled_queued_run_ends_at_once(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let (one, two) = (fixture.submit(session).await?.run.id, fixture.submit(session).await?.run.id);
    let cancelled = fixture.store.request_cancel(fixture.tenant, one, "it's \"over\"").await?;
    assert_eq!((cancelled.run.state, cancelled.already_finished), (RunState::Cancelled, false));
    assert_eq!(cancelled.signal, None);
    let [event] = &cancelled.change.events[..] else { panic!("{:?}", cancelled.change.events) };
    assert_eq!(event.body, EventBody::RunCancelled { reason: "it's \"over\"".into() });
    let run = fixture.run(one).await?;
    assert_eq!(
        run.failure.map(|it| (it.code, it.message)),
        Some(("cancelled".into(), "it's \"over\"".into()))
    );
    assert_eq!((run.attempt, run.started_at), (0, None));
    assert!(run.finished_at.is_some());
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    assert_eq!((grant.run.id, grant.run.seq), (two, 2));
    fixture.check(session).await
}

pub(crate) async fn cancelled_executing_run_is_marked(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    let beat = Heartbeat { worker, lease: LONG_LEASE, running: vec![RunId::new(), run], worked: Vec::new() };
    assert_eq!(fixture.store.renew_lease(&beat).await?.cancel, []);
    let cancelled = fixture.store.request_cancel(fixture.tenant, run, "enough").await?;
    assert_eq!((cancelled.run.state, cancelled.signal), (RunState::Running, Some(worker)));
    assert_eq!(names(&cancelled.change.events), ["run.cancel_requested"]);
    assert_eq!(fixture.run(run).await?.cancel.map(|it| it.reason), Some("enough".into()));
    assert_eq!(fixture.store.renew_lease(&beat).await?.cancel, [run]);
    // A new owner learns of the request with the grant.
    let grant = fixture.granted(session, grant.fence.worker).await?;
    assert!(grant.run.cancel.is_some());
    fixture.store.commit(ending(&grant, RunState::Cancelled)).await?;
    assert_eq!(fixture.store.renew_lease(&beat).await?.cancel, []);
    assert_eq!(fixture.run(run).await?.state, RunState::Cancelled);
    fixture.check(session).await
}

pub(crate) async fn cancelling_an_ended_run_changes_nothing(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    fixture.store.commit(completed(&grant)).await?;
    let cancelled = fixture.store.request_cancel(fixture.tenant, run, "too late").await?;
    assert!(cancelled.already_finished && cancelled.change.events.is_empty() && cancelled.signal.is_none());
    assert_eq!(cancelled.run, fixture.run(run).await?);
    assert_eq!((cancelled.run.state, cancelled.run.cancel), (RunState::Completed, None));
    fixture.check(session).await
}

pub(crate) async fn cancelling_unknown_or_foreign_runs_fails_with_not_found(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let (run, stranger) = (fixture.submit(session).await?.run.id, fixture.stranger().await?);
    let unknown =
        fixture.store.request_cancel(fixture.tenant, RunId::new(), "x").await.err().context("unknown")?;
    let foreign = fixture.store.request_cancel(stranger, run, "x").await.err().context("foreign")?;
    assert_eq!(foreign.code(), Code::RunNotFound);
    assert_eq!(format!("{foreign:?}"), format!("{unknown:?}"));
    assert_eq!(refusal(fixture.store.get_run(stranger, run).await), Code::RunNotFound);
    assert_eq!(refusal(fixture.store.diagnostics(stranger, run).await), Code::RunNotFound);
    assert_eq!(fixture.run(run).await?.state, RunState::Queued);
    fixture.check(session).await
}

pub(crate) async fn second_cancel_request_appends_no_event(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let (one, two) = (fixture.submit(session).await?.run.id, fixture.submit(session).await?.run.id);
    let worker = fixture.worker(LONG_LEASE).await?;
    fixture.granted(session, worker).await?;
    fixture.store.request_cancel(fixture.tenant, one, "first").await?;
    let again = fixture.store.request_cancel(fixture.tenant, one, "second").await?;
    // The signal is repeated: the first one may have been lost.
    assert_eq!((again.change.events.len(), again.signal, again.already_finished), (0, Some(worker), false));
    assert_eq!(again.run.cancel.map(|it| it.reason), Some("first".into()));
    fixture.store.request_cancel(fixture.tenant, two, "first").await?;
    let again = fixture.store.request_cancel(fixture.tenant, two, "second").await?;
    assert!(again.already_finished && again.change.events.is_empty());
    fixture.check(session).await
}

/// Handed over between two steps: no worker executes it, so it ends immediately.
pub(crate) async fn cancelled_released_run_ends_at_once(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let (one, two) = (fixture.submit(session).await?.run.id, fixture.submit(session).await?.run.id);
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    fixture.store.release(grant.fence).await?;
    let cancelled = fixture.store.request_cancel(fixture.tenant, one, "now").await?;
    assert_eq!((cancelled.run.state, cancelled.signal), (RunState::Cancelled, None));
    assert_eq!((cancelled.run.started_at, cancelled.run.attempt), (grant.run.started_at, 1));
    let next = fixture.granted(session, worker).await?;
    assert_eq!((next.run.id, next.run.attempt), (two, 1));
    assert!(next.run.started_at >= cancelled.run.finished_at);
    fixture.check(session).await
}

pub(crate) async fn concurrent_cancel_and_end_append_one_terminal_event(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    for round in 0..30 {
        let run = fixture.submit(session).await?.run.id;
        let grant = fixture.granted(session, worker).await?;
        let (cancel, commit) = (
            fixture.store.request_cancel(fixture.tenant, run, "race"),
            fixture.store.commit(completed(&grant)),
        );
        let (cancelled, committed) = if round % 2 == 0 {
            let (committed, cancelled) = tokio::join!(commit, cancel);
            (cancelled, committed)
        } else {
            tokio::join!(cancel, commit)
        };
        committed?;
        let cancelled = cancelled?;
        assert_eq!(cancelled.already_finished, cancelled.change.events.is_empty());
        assert_eq!(fixture.run(run).await?.state, RunState::Completed);
    }
    fixture.check(session).await
}
