//! Stopping runs from outside.

use anyhow::{Context as _, Result};
use remuda_domain::{Code, EventBody, RunId, RunState};
use remuda_store::Heartbeat;

use crate::lab::{LONG_LEASE, Lab, completed, ending, names, refusal};

pub(crate) async fn a_waiting_run_ends_at_once(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let (one, two) = (lab.submit(session).await?.run.id, lab.submit(session).await?.run.id);
    let cancelled = lab.store.request_cancel(lab.tenant, one, "it's \"over\"").await?;
    assert_eq!((cancelled.run.state, cancelled.already_finished), (RunState::Cancelled, false));
    assert_eq!(cancelled.signal, None);
    let [event] = &cancelled.change.events[..] else { panic!("{:?}", cancelled.change.events) };
    assert_eq!(event.body, EventBody::RunCancelled { reason: "it's \"over\"".into() });
    let run = lab.run(one).await?;
    assert_eq!(
        run.failure.map(|it| (it.code, it.message)),
        Some(("cancelled".into(), "it's \"over\"".into()))
    );
    assert_eq!((run.attempt, run.started_at), (0, None));
    assert!(run.finished_at.is_some());
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    assert_eq!((grant.run.id, grant.run.seq), (two, 2));
    lab.check(session).await
}

pub(crate) async fn an_executing_run_is_marked(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(session, worker).await?;
    let beat = Heartbeat { worker, lease: LONG_LEASE, running: vec![RunId::new(), run] };
    assert_eq!(lab.store.renew_lease(&beat).await?.cancel, []);
    let cancelled = lab.store.request_cancel(lab.tenant, run, "enough").await?;
    assert_eq!((cancelled.run.state, cancelled.signal), (RunState::Running, Some(worker)));
    assert_eq!(names(&cancelled.change.events), ["run.cancel_requested"]);
    assert_eq!(lab.run(run).await?.cancel.map(|it| it.reason), Some("enough".into()));
    assert_eq!(lab.store.renew_lease(&beat).await?.cancel, [run]);
    // A new owner learns of it with the grant.
    let grant = lab.granted(session, grant.fence.worker).await?;
    assert!(grant.run.cancel.is_some());
    lab.store.commit(ending(&grant, RunState::Cancelled)).await?;
    assert_eq!(lab.store.renew_lease(&beat).await?.cancel, []);
    assert_eq!(lab.run(run).await?.state, RunState::Cancelled);
    lab.check(session).await
}

pub(crate) async fn a_finished_run_stays_finished(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    lab.store.commit(completed(&grant)).await?;
    let cancelled = lab.store.request_cancel(lab.tenant, run, "too late").await?;
    assert!(cancelled.already_finished && cancelled.change.events.is_empty() && cancelled.signal.is_none());
    assert_eq!(cancelled.run, lab.run(run).await?);
    assert_eq!((cancelled.run.state, cancelled.run.cancel), (RunState::Completed, None));
    lab.check(session).await
}

pub(crate) async fn unknown_and_foreign_runs_are_not_found(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let (run, stranger) = (lab.submit(session).await?.run.id, lab.stranger().await?);
    let unknown = lab.store.request_cancel(lab.tenant, RunId::new(), "x").await.err().context("unknown")?;
    let foreign = lab.store.request_cancel(stranger, run, "x").await.err().context("foreign")?;
    assert_eq!(foreign.code(), Code::RunNotFound);
    assert_eq!(format!("{foreign:?}"), format!("{unknown:?}"));
    assert_eq!(refusal(lab.store.get_run(stranger, run).await), Code::RunNotFound);
    assert_eq!(refusal(lab.store.situation(stranger, run).await), Code::RunNotFound);
    assert_eq!(lab.run(run).await?.state, RunState::Queued);
    lab.check(session).await
}

pub(crate) async fn asking_twice_appends_nothing(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let (one, two) = (lab.submit(session).await?.run.id, lab.submit(session).await?.run.id);
    let worker = lab.worker(LONG_LEASE).await?;
    lab.granted(session, worker).await?;
    lab.store.request_cancel(lab.tenant, one, "first").await?;
    let again = lab.store.request_cancel(lab.tenant, one, "second").await?;
    // The signal is repeated: the first one may have been lost.
    assert_eq!((again.change.events.len(), again.signal, again.already_finished), (0, Some(worker), false));
    assert_eq!(again.run.cancel.map(|it| it.reason), Some("first".into()));
    lab.store.request_cancel(lab.tenant, two, "first").await?;
    let again = lab.store.request_cancel(lab.tenant, two, "second").await?;
    assert!(again.already_finished && again.change.events.is_empty());
    lab.check(session).await
}

/// Handed over between two steps: nobody executes it, so it can end here and now.
pub(crate) async fn a_released_run_ends_at_once(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let (one, two) = (lab.submit(session).await?.run.id, lab.submit(session).await?.run.id);
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(session, worker).await?;
    lab.store.release(grant.fence).await?;
    let cancelled = lab.store.request_cancel(lab.tenant, one, "now").await?;
    assert_eq!((cancelled.run.state, cancelled.signal), (RunState::Cancelled, None));
    assert_eq!((cancelled.run.started_at, cancelled.run.attempt), (grant.run.started_at, 1));
    let next = lab.granted(session, worker).await?;
    assert_eq!((next.run.id, next.run.attempt), (two, 1));
    assert!(next.run.started_at >= cancelled.run.finished_at);
    lab.check(session).await
}

pub(crate) async fn cancel_and_end_make_one_terminal_event(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let worker = lab.worker(LONG_LEASE).await?;
    for round in 0..30 {
        let run = lab.submit(session).await?.run.id;
        let grant = lab.granted(session, worker).await?;
        let (cancel, commit) =
            (lab.store.request_cancel(lab.tenant, run, "race"), lab.store.commit(completed(&grant)));
        let (cancelled, committed) = if round % 2 == 0 {
            let (committed, cancelled) = tokio::join!(commit, cancel);
            (cancelled, committed)
        } else {
            tokio::join!(cancel, commit)
        };
        committed?;
        let cancelled = cancelled?;
        assert_eq!(cancelled.already_finished, cancelled.change.events.is_empty());
        assert_eq!(lab.run(run).await?.state, RunState::Completed);
    }
    lab.check(session).await
}
