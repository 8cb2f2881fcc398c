//! Submits.

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, ControlPlaneId, EventBody, RunId, RunInput, RunState, SessionId,
    run::{IfBusy, ToolsInput},
};
use remuda_store::{NewRun, Options, connect};
use serde_json::json;

use crate::fixture::{Fixture, LONG_LEASE, call, completed, names, refusal};

pub(crate) async fn submit_assigns_a_sequence_number_and_appends_an_event(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    for seq in 1..=3 {
        let submitted = fixture.submit(session).await?;
        assert_eq!((submitted.run.seq, submitted.run.state), (seq, RunState::Queued));
        assert!(!submitted.deduplicated && submitted.interrupted.is_empty() && submitted.signal.is_none());
        assert!(submitted.change.wake);
        assert_eq!(submitted.change.events.len(), 1);
        assert_eq!(submitted.change.events[0].cursor, seq + 1);
        let queued =
            EventBody::RunQueued { seq, kind: "tools".into(), pending: seq, labels: Default::default() };
        assert_eq!(submitted.change.events[0].body, queued);
        assert_eq!(fixture.run(submitted.run.id).await?, submitted.run);
    }
    assert_eq!(fixture.get_session(session).await?.pending, 3);
    // An owner finds the run by itself: no wake-up is needed.
    fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    assert!(!fixture.submit(session).await?.change.wake);
    fixture.check(session).await
}

pub(crate) async fn grant_contains_the_waiting_control_plane(fixture: &Fixture) -> Result<()> {
    let (session, plane) = (fixture.session().await?, ControlPlaneId::new());
    let (first, second) = (fixture.new_run(session), fixture.keyed_run(session, "k", 1));
    for run in [first, second] {
        let mut run = run;
        run.run.awaited_by = Some(plane);
        let submitted = fixture.store.submit(run).await?.run;
        assert_eq!(submitted.awaited_by, Some(plane));
        assert_eq!(fixture.run(submitted.id).await?, submitted);
    }
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    assert_eq!(grant.run.awaited_by, Some(plane));
    let committed = fixture.store.commit(completed(&grant)).await?;
    let next = committed.next.context("the session has another run")?;
    assert_eq!(next.run.awaited_by, Some(plane));
    fixture.check(session).await
}

pub(crate) async fn refused_submit_says_why(fixture: &Fixture) -> Result<()> {
    let (session, stranger) = (fixture.session().await?, fixture.stranger().await?);
    let unknown = fixture.store.submit(fixture.new_run(SessionId::new())).await.err().context("unknown")?;
    let theirs = crate::fixture::of_tenant(stranger, fixture.new_run(session));
    let foreign = fixture.store.submit(theirs.clone()).await.err().context("foreign")?;
    assert_eq!(foreign.code(), Code::SessionNotFound);
    assert_eq!(format!("{foreign:?}"), format!("{unknown:?}"));
    let theirs = NewRun { if_busy: IfBusy::Interrupt, ..theirs };
    assert_eq!(refusal(fixture.store.submit(theirs).await), Code::SessionNotFound);

    let reject = || NewRun { if_busy: IfBusy::Reject, ..fixture.new_run(session) };
    fixture.store.submit(reject()).await?;
    assert_eq!(refusal(fixture.store.submit(reject()).await), Code::SessionBusy);
    fixture.store.close_session(fixture.tenant, session).await?;
    assert_eq!(refusal(fixture.store.submit(fixture.new_run(session)).await), Code::SessionClosed);
    let interrupt = NewRun { if_busy: IfBusy::Interrupt, ..fixture.new_run(session) };
    assert_eq!(refusal(fixture.store.submit(interrupt).await), Code::SessionClosed);
    // A refused interrupting submit interrupts nothing.
    assert_eq!(fixture.get_session(session).await?.pending, 1);
    fixture.check(session).await
}

pub(crate) async fn full_queue_refuses_submits(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let small = connect(&Options { max_pending: 2, ..fixture.options() }).await?;
    small.submit(fixture.new_run(session)).await?;
    let last = small.submit(fixture.keyed_run(session, "k", 1)).await?;
    let full = small.submit(fixture.new_run(session)).await.err().context("not full")?;
    assert_eq!(full.code(), Code::QueueFull);
    assert!(full.retry_delay().is_some());
    // A retry of an accepted submit is answered even so.
    let again = small.submit(fixture.keyed_run(session, "k", 1)).await?;
    assert_eq!((again.run.id, again.deduplicated), (last.run.id, true));
    // Interrupting frees the queue.
    let interrupt = NewRun { if_busy: IfBusy::Interrupt, ..fixture.new_run(session) };
    assert_eq!(small.submit(interrupt).await?.interrupted.len(), 2);
    fixture.check(session).await
}

pub(crate) async fn interrupt_cancels_queued_runs_and_marks_the_executing_one(
    fixture: &Fixture,
) -> Result<()> {
    let session = fixture.session().await?;
    let ids: Vec<RunId> =
        [fixture.submit(session).await?, fixture.submit(session).await?, fixture.submit(session).await?]
            .map(|submitted| submitted.run.id)
            .to_vec();
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(session, worker).await?;
    let interrupt = || NewRun { if_busy: IfBusy::Interrupt, ..fixture.new_run(session) };
    let submitted = fixture.store.submit(interrupt()).await?;
    assert_eq!((submitted.run.seq, submitted.signal), (4, Some((worker, ids[0]))));
    assert_eq!(submitted.interrupted, ids);
    let expected = ["run.cancel_requested", "run.cancelled", "run.cancelled", "run.queued"];
    assert_eq!(names(&submitted.change.events), expected);
    assert_eq!(submitted.change.events.iter().map(|it| it.cursor).collect::<Vec<_>>(), [5, 6, 7, 8]);
    let states = [
        fixture.run(ids[0]).await?.state,
        fixture.run(ids[1]).await?.state,
        fixture.run(ids[2]).await?.state,
    ];
    assert_eq!(states, [RunState::Running, RunState::Cancelled, RunState::Cancelled]);
    assert!(fixture.run(ids[0]).await?.cancel.is_some());
    fixture.check(session).await?;
    // The second one signals the owner again, in case the first signal was lost, and appends no second event.
    let second = fixture.store.submit(interrupt()).await?;
    assert_eq!(second.signal, Some((worker, ids[0])));
    assert_eq!(names(&second.change.events), ["run.cancelled", "run.queued"]);
    let committed = fixture.store.commit(completed(&grant)).await?;
    assert_eq!(committed.next.map(|next| next.run.id), Some(second.run.id));
    fixture.check(session).await
}

pub(crate) async fn retry_with_the_same_key_returns_the_first_run(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let first = fixture.store.submit(fixture.keyed_run(session, "order-1", 1)).await?;
    assert_eq!((first.deduplicated, first.run.idempotency_key.as_deref()), (false, Some("order-1")));
    let again = fixture.store.submit(fixture.keyed_run(session, "order-1", 1)).await?;
    assert!(again.deduplicated && again.change.events.is_empty());
    assert_eq!(again.run.id, first.run.id);
    let other =
        fixture.store.submit(fixture.keyed_run(session, "order-1", 2)).await.err().context("conflict")?;
    assert_eq!((other.code(), other.field()), (Code::IdempotencyConflict, Some("idempotency_key")));
    // With `reject`, a retry is not refused because of its own run.
    let reject = NewRun { if_busy: IfBusy::Reject, ..fixture.keyed_run(session, "order-1", 1) };
    assert_eq!(fixture.store.submit(reject).await?.run.id, first.run.id);
    // A refused request does not use up its key.
    let refused = NewRun { if_busy: IfBusy::Reject, ..fixture.keyed_run(session, "order-2", 1) };
    assert_eq!(refusal(fixture.store.submit(refused).await), Code::SessionBusy);
    assert!(!fixture.store.submit(fixture.keyed_run(session, "order-2", 9)).await?.deduplicated);
    // Keys are separate per tenant.
    let stranger = fixture.stranger().await?;
    let theirs = crate::fixture::of_tenant(stranger, fixture.keyed_run(session, "order-1", 1));
    assert_eq!(refusal(fixture.store.submit(theirs).await), Code::SessionNotFound);
    assert_eq!(fixture.get_session(session).await?.pending, 2);
    fixture.check(session).await
}

pub(crate) async fn retry_returns_the_first_run_after_the_session_closed(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let first = fixture.store.submit(fixture.keyed_run(session, "k", 1)).await?;
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    fixture.store.commit(completed(&grant)).await?;
    fixture.store.close_session(fixture.tenant, session).await?;
    let again = fixture.store.submit(fixture.keyed_run(session, "k", 1)).await?;
    assert_eq!((again.run.id, again.run.state), (first.run.id, RunState::Completed));
    assert!(again.deduplicated && !again.change.wake);
    assert_eq!(
        refusal(fixture.store.submit(fixture.keyed_run(session, "k", 2)).await),
        Code::IdempotencyConflict
    );
    assert_eq!(refusal(fixture.store.submit(fixture.keyed_run(session, "l", 1)).await), Code::SessionClosed);
    Ok(())
}

pub(crate) async fn interrupting_retry_returns_the_first_run(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let interrupt = |hash| NewRun { if_busy: IfBusy::Interrupt, ..fixture.keyed_run(session, "k", hash) };
    let first = fixture.store.submit(interrupt(1)).await?;
    let waiting = fixture.submit(session).await?.run.id;
    let again = fixture.store.submit(interrupt(1)).await?;
    assert_eq!((again.run.id, again.deduplicated), (first.run.id, true));
    assert_eq!(refusal(fixture.store.submit(interrupt(2)).await), Code::IdempotencyConflict);
    // Neither the retry nor the conflict has interrupted anything.
    assert_eq!(fixture.run(waiting).await?.state, RunState::Queued);
    assert_eq!(fixture.run(first.run.id).await?.state, RunState::Queued);
    fixture.check(session).await
}

pub(crate) async fn unusual_values_survive_a_round_trip(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let mut odd = call("shell");
    odd.arguments = json!({
        "nul": "a\u{0}b", "quote": "'\"\\", "horse": "\u{1f40e}", "big": u64::MAX, "float": 0.1, "empty": "",
        "nested": {"null": null, "list": [[], {}]}, "line": "\u{2028}\r\n",
    });
    let calls = vec![odd, call("noop")];
    let input = RunInput::Tools(ToolsInput { calls, continue_on_error: true, record: true });
    let mut run = fixture.new_run(session);
    (run.run.input, run.run.traceparent) = (input, Some("00-ab-cd-01".into()));
    let submitted = fixture.store.submit(run.clone()).await?;
    let stored = fixture.run(run.run.id).await?;
    assert_eq!(stored, submitted.run);
    assert_eq!((stored.input, stored.traceparent), (run.run.input, run.run.traceparent));
    Ok(())
}

/// A request that the database rejects must not fail the others of its flush.
pub(crate) async fn duplicate_run_id_fails_only_its_own_submit(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let first = fixture.new_run(session);
    fixture.store.submit(first.clone()).await?;
    let mut batch: Vec<NewRun> = (0..20).map(|_| fixture.new_run(session)).collect();
    batch.insert(7, first);
    let results = futures::future::join_all(batch.into_iter().map(|run| fixture.store.submit(run))).await;
    let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].code(), Code::AlreadyExists);
    assert_eq!(fixture.get_session(session).await?.pending, 21);
    fixture.check(session).await
}
