use std::time::Duration;

use remuda_domain::Code;
use remuda_testkit::wait_for;

use super::{
    super::{ReconcilerOptions, background_task::BackgroundTask, gc::Gc},
    fixture::{Fixture, NEVER, PATIENCE, options},
};

const SHORTEST: Duration = Duration::from_millis(1);

/// Runs rounds from the beginning until one deletes something.
async fn round(fixture: &Fixture, options: &ReconcilerOptions) -> Vec<(String, u64)> {
    let deleted = || async {
        let round = Gc::new(fixture.store.clone(), options).round().await.unwrap();
        Some(round.counts.into_iter().collect::<Vec<_>>()).filter(|counts| !counts.is_empty())
    };
    wait_for("a round that deletes something", PATIENCE, deleted).await
}

#[tokio::test]
async fn old_runs_are_deleted_and_their_session_stays() {
    let fixture = Fixture::new().await;
    let (session, kept) = (fixture.session("default").await, fixture.session("default").await);
    let run = fixture.submit(session).await;
    let waiting = fixture.submit(kept).await;
    fixture.store.request_cancel(fixture.tenant, run, "enough").await.unwrap();
    let stream = || async { fixture.store.read_events(fixture.tenant, session, 0, 10).await.unwrap() };
    let before = stream().await;
    let forever = Gc::new(fixture.store.clone(), &options(NEVER)).round().await.unwrap();
    assert!(forever.counts.is_empty() && forever.again_in.is_none());
    let options = ReconcilerOptions { runs_kept: SHORTEST, ..options(NEVER) };
    assert_eq!(round(&fixture, &options).await, [("runs_deleted".to_owned(), 1)]);
    assert_eq!(fixture.store.get_run(fixture.tenant, run).await.unwrap_err().code(), Code::RunNotFound);
    assert!(fixture.store.get_run(fixture.tenant, waiting).await.is_ok());
    let after = stream().await;
    assert_eq!((after.last_cursor, after.events), (before.last_cursor, before.events));
    fixture.shut_down().await;
}

#[tokio::test]
async fn leader_deletes_idle_sessions_without_a_trigger() {
    let fixture = Fixture::new().await;
    let (idle, busy) = (fixture.session("default").await, fixture.session("default").await);
    fixture.submit(busy).await;
    fixture.start_with(&fixture.app, ReconcilerOptions { sessions_kept: SHORTEST, ..options(NEVER) });
    let task = fixture.wait_for_task("gc", |task| task.last_notable.is_some()).await;
    assert_eq!(task.last_notable.unwrap().result.unwrap()["sessions_deleted"], 1);
    let gone = fixture.store.read_events(fixture.tenant, idle, 0, 10).await;
    assert_eq!(gone.unwrap_err().code(), Code::SessionNotFound);
    assert!(fixture.store.read_events(fixture.tenant, busy, 0, 10).await.is_ok());
    fixture.shut_down().await;
}
