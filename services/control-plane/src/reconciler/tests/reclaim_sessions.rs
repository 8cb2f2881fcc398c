use std::time::{Duration, Instant};

use remuda_domain::{EventBody, RunState, identity::Principal, identity::Scope};
use remuda_testkit::wait_for;

use super::fixture::{Fixture, NEVER, PATIENCE};

const LEASE: Duration = Duration::from_millis(600);

fn caller(fixture: &Fixture) -> Principal {
    Principal { tenant: fixture.tenant, subject: "test".to_owned(), scopes: vec![Scope::Write] }
}

#[tokio::test]
async fn session_of_a_dead_worker_is_woken_right_after_its_lease() {
    let fixture = Fixture::new().await;
    let session = fixture.session("default").await;
    let run = fixture.submit(session).await;
    let worker = fixture.worker(LEASE).await;
    let begun = Instant::now();
    fixture.claim(session, worker).await;
    // The interval never elapses: only the end of the lease triggers the round.
    fixture.start(&fixture.app, NEVER);
    fixture.wait_for_tokens(1).await;
    let waited = begun.elapsed();
    assert!(waited >= LEASE - Duration::from_millis(100), "{waited:?}");
    assert!(waited < LEASE + Duration::from_secs(2), "{waited:?}");
    let found = fixture.store.get_run(fixture.tenant, run).await.unwrap();
    assert_eq!((found.state, found.lost_attempts), (RunState::Queued, 1));
    let events = fixture.store.read_events(fixture.tenant, session, 0, 100).await.unwrap().events;
    let lost = EventBody::RunAttemptLost { attempts: 1, worker };
    assert!(events.iter().any(|event| event.body == lost), "{events:?}");
    let task = fixture.wait_for_task("take_back", |task| task.last_notable.is_some()).await;
    assert_eq!(task.last_notable.unwrap().result.unwrap()["sessions"], 1);
    fixture.shut_down().await;
}

#[tokio::test]
async fn cancelled_run_of_a_dead_worker_ends_without_a_worker() {
    let fixture = Fixture::new().await;
    let session = fixture.session("default").await;
    let run = fixture.submit(session).await;
    fixture.claim(session, fixture.worker(LEASE).await).await;
    fixture.start(&fixture.app, NEVER);
    let cancelled = fixture.app.cancel_run(&caller(&fixture), run, "enough".to_owned()).await.unwrap();
    assert!(!cancelled.already_finished && cancelled.signal.is_some());
    let over = || async {
        let run = fixture.store.get_run(fixture.tenant, run).await.unwrap();
        Some(run).filter(|run| run.state.is_terminal())
    };
    let ended = wait_for("the end of the run", PATIENCE, over).await;
    assert_eq!(ended.state, RunState::Cancelled);
    assert_eq!(ended.cancel.unwrap().delivered_at, None, "no worker received the cancel");
    let task = fixture.wait_for_task("take_back", |task| task.last_notable.is_some()).await;
    assert_eq!(task.last_notable.unwrap().result.unwrap()["ended_runs"], 1);
    fixture.shut_down().await;
}
