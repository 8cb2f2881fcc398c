//! Accepting runs.

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, EventBody, PlaneId, RunId, RunInput, RunState, SessionId,
    run::{IfBusy, ToolsInput},
};
use remuda_store::{NewRun, Options, connect};
use serde_json::json;

use crate::lab::{LONG_LEASE, Lab, call, completed, names, refusal};

pub(crate) async fn runs_get_their_place_and_their_event(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    for seq in 1..=3 {
        let submitted = lab.submit(session).await?;
        assert_eq!((submitted.run.seq, submitted.run.state), (seq, RunState::Queued));
        assert!(!submitted.deduplicated && submitted.interrupted.is_empty() && submitted.signal.is_none());
        assert!(submitted.wake);
        assert_eq!(submitted.events.len(), 1);
        assert_eq!(submitted.events[0].cursor, seq + 1);
        let queued = EventBody::RunQueued { seq, kind: "tools".into(), pending: seq };
        assert_eq!(submitted.events[0].body, queued);
        assert_eq!(lab.run(submitted.run.id).await?, submitted.run);
    }
    assert_eq!(lab.look(session).await?.pending, 3);
    // An owner looks for itself: nobody needs to be woken.
    lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    assert!(!lab.submit(session).await?.wake);
    lab.check(session).await
}

pub(crate) async fn who_waits_for_a_run_is_known_to_whoever_executes_it(lab: &Lab) -> Result<()> {
    let (session, plane) = (lab.session().await?, PlaneId::new());
    let (first, second) = (lab.new_run(session), lab.keyed_run(session, "k", 1));
    for run in [first, second] {
        let run = NewRun { awaited_by: Some(plane), ..run };
        let submitted = lab.store.submit(run).await?.run;
        assert_eq!(submitted.awaited_by, Some(plane));
        assert_eq!(lab.run(submitted.id).await?, submitted);
    }
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    assert_eq!(grant.run.awaited_by, Some(plane));
    let committed = lab.store.commit(completed(&grant)).await?;
    let next = committed.next.context("the session has another run")?;
    assert_eq!(next.run.awaited_by, Some(plane));
    lab.check(session).await
}

pub(crate) async fn refusals_say_why(lab: &Lab) -> Result<()> {
    let (session, stranger) = (lab.session().await?, lab.stranger().await?);
    let unknown = lab.store.submit(lab.new_run(SessionId::new())).await.err().context("unknown")?;
    let theirs = NewRun { tenant: stranger, ..lab.new_run(session) };
    let foreign = lab.store.submit(theirs.clone()).await.err().context("foreign")?;
    assert_eq!(foreign.code(), Code::SessionNotFound);
    assert_eq!(format!("{foreign:?}"), format!("{unknown:?}"));
    let theirs = NewRun { if_busy: IfBusy::Interrupt, ..theirs };
    assert_eq!(refusal(lab.store.submit(theirs).await), Code::SessionNotFound);

    let reject = || NewRun { if_busy: IfBusy::Reject, ..lab.new_run(session) };
    lab.store.submit(reject()).await?;
    assert_eq!(refusal(lab.store.submit(reject()).await), Code::SessionBusy);
    lab.store.close_session(lab.tenant, session).await?;
    assert_eq!(refusal(lab.store.submit(lab.new_run(session)).await), Code::SessionClosed);
    let interrupt = NewRun { if_busy: IfBusy::Interrupt, ..lab.new_run(session) };
    assert_eq!(refusal(lab.store.submit(interrupt).await), Code::SessionClosed);
    // A refused interruption interrupts nothing.
    assert_eq!(lab.look(session).await?.pending, 1);
    lab.check(session).await
}

pub(crate) async fn a_full_queue_refuses(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let small = connect(&Options { max_pending: 2, ..lab.options() }).await?;
    small.submit(lab.new_run(session)).await?;
    let last = small.submit(lab.keyed_run(session, "k", 1)).await?;
    let full = small.submit(lab.new_run(session)).await.err().context("not full")?;
    assert_eq!(full.code(), Code::QueueFull);
    assert!(full.retry_delay().is_some());
    // A retry of what was accepted is answered all the same.
    let again = small.submit(lab.keyed_run(session, "k", 1)).await?;
    assert_eq!((again.run.id, again.deduplicated), (last.run.id, true));
    // Interrupting makes room.
    let interrupt = NewRun { if_busy: IfBusy::Interrupt, ..lab.new_run(session) };
    assert_eq!(small.submit(interrupt).await?.interrupted.len(), 2);
    lab.check(session).await
}

pub(crate) async fn interrupting_cancels_what_waits_and_marks_what_executes(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let ids: Vec<RunId> =
        [lab.submit(session).await?, lab.submit(session).await?, lab.submit(session).await?]
            .map(|submitted| submitted.run.id)
            .to_vec();
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(session, worker).await?;
    let interrupt = || NewRun { if_busy: IfBusy::Interrupt, ..lab.new_run(session) };
    let submitted = lab.store.submit(interrupt()).await?;
    assert_eq!((submitted.run.seq, submitted.signal), (4, Some((worker, ids[0]))));
    assert_eq!(submitted.interrupted, ids);
    let expected = ["run.cancel_requested", "run.cancelled", "run.cancelled", "run.queued"];
    assert_eq!(names(&submitted.events), expected);
    assert_eq!(submitted.events.iter().map(|it| it.cursor).collect::<Vec<_>>(), [5, 6, 7, 8]);
    let states = [lab.run(ids[0]).await?.state, lab.run(ids[1]).await?.state, lab.run(ids[2]).await?.state];
    assert_eq!(states, [RunState::Running, RunState::Cancelled, RunState::Cancelled]);
    assert!(lab.run(ids[0]).await?.cancel.is_some());
    lab.check(session).await?;
    // The second one tells the owner again, in case the first signal was lost, and appends no second wish.
    let second = lab.store.submit(interrupt()).await?;
    assert_eq!(second.signal, Some((worker, ids[0])));
    assert_eq!(names(&second.events), ["run.cancelled", "run.queued"]);
    let committed = lab.store.commit(completed(&grant)).await?;
    assert_eq!(committed.next.map(|next| next.run.id), Some(second.run.id));
    lab.check(session).await
}

pub(crate) async fn a_retry_gets_the_first_run(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let first = lab.store.submit(lab.keyed_run(session, "order-1", 1)).await?;
    assert_eq!((first.deduplicated, first.run.idempotency_key.as_deref()), (false, Some("order-1")));
    let again = lab.store.submit(lab.keyed_run(session, "order-1", 1)).await?;
    assert!(again.deduplicated && again.events.is_empty());
    assert_eq!(again.run, first.run);
    let other = lab.store.submit(lab.keyed_run(session, "order-1", 2)).await.err().context("conflict")?;
    assert_eq!((other.code(), other.field()), (Code::IdempotencyConflict, Some("idempotency_key")));
    // With `reject`, a retry is not refused because of the run it asks for.
    let reject = NewRun { if_busy: IfBusy::Reject, ..lab.keyed_run(session, "order-1", 1) };
    assert_eq!(lab.store.submit(reject).await?.run.id, first.run.id);
    // A refused request leaves its key unused.
    let refused = NewRun { if_busy: IfBusy::Reject, ..lab.keyed_run(session, "order-2", 1) };
    assert_eq!(refusal(lab.store.submit(refused).await), Code::SessionBusy);
    assert!(!lab.store.submit(lab.keyed_run(session, "order-2", 9)).await?.deduplicated);
    // Keys of another tenant are other keys.
    let stranger = lab.stranger().await?;
    let theirs = NewRun { tenant: stranger, ..lab.keyed_run(session, "order-1", 1) };
    assert_eq!(refusal(lab.store.submit(theirs).await), Code::SessionNotFound);
    assert_eq!(lab.look(session).await?.pending, 2);
    lab.check(session).await
}

pub(crate) async fn a_retry_is_answered_after_the_session_closed(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let first = lab.store.submit(lab.keyed_run(session, "k", 1)).await?;
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    lab.store.commit(completed(&grant)).await?;
    lab.store.close_session(lab.tenant, session).await?;
    let again = lab.store.submit(lab.keyed_run(session, "k", 1)).await?;
    assert_eq!((again.run.id, again.run.state), (first.run.id, RunState::Completed));
    assert!(again.deduplicated && !again.wake);
    assert_eq!(refusal(lab.store.submit(lab.keyed_run(session, "k", 2)).await), Code::IdempotencyConflict);
    assert_eq!(refusal(lab.store.submit(lab.keyed_run(session, "l", 1)).await), Code::SessionClosed);
    Ok(())
}

pub(crate) async fn interrupting_retries_are_answered(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let interrupt = |hash| NewRun { if_busy: IfBusy::Interrupt, ..lab.keyed_run(session, "k", hash) };
    let first = lab.store.submit(interrupt(1)).await?;
    let waiting = lab.submit(session).await?.run.id;
    let again = lab.store.submit(interrupt(1)).await?;
    assert_eq!((again.run.id, again.deduplicated), (first.run.id, true));
    assert_eq!(refusal(lab.store.submit(interrupt(2)).await), Code::IdempotencyConflict);
    // Neither the retry nor the conflict has interrupted anything.
    assert_eq!(lab.run(waiting).await?.state, RunState::Queued);
    assert_eq!(lab.run(first.run.id).await?.state, RunState::Queued);
    lab.check(session).await
}

pub(crate) async fn odd_values_survive(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let mut odd = call("shell");
    odd.arguments = json!({
        "nul": "a\u{0}b", "quote": "'\"\\", "horse": "\u{1f40e}", "big": u64::MAX, "float": 0.1, "empty": "",
        "nested": {"null": null, "list": [[], {}]}, "line": "\u{2028}\r\n",
    });
    let calls = vec![odd, call("noop")];
    let input = RunInput::Tools(ToolsInput { calls, continue_on_error: true, record: true });
    let run = NewRun { input, traceparent: Some("00-ab-cd-01".into()), ..lab.new_run(session) };
    let submitted = lab.store.submit(run.clone()).await?;
    let stored = lab.run(run.id).await?;
    assert_eq!(stored, submitted.run);
    assert_eq!((stored.input, stored.traceparent), (run.input, run.traceparent));
    Ok(())
}

/// One request that the database refuses must not take the others of its flush with it.
pub(crate) async fn a_repeated_id_fails_alone(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    let first = lab.new_run(session);
    lab.store.submit(first.clone()).await?;
    let mut batch: Vec<NewRun> = (0..20).map(|_| lab.new_run(session)).collect();
    batch.insert(7, first);
    let results = futures::future::join_all(batch.into_iter().map(|run| lab.store.submit(run))).await;
    let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].code(), Code::AlreadyExists);
    assert_eq!(lab.look(session).await?.pending, 21);
    lab.check(session).await
}
