use std::time::{Duration, Instant};

use remuda_domain::{EventBody, RunState, identity::Principal, identity::Scope};
use remuda_testkit::wait_for;

use super::lab::{Lab, NEVER, PATIENCE};

const LEASE: Duration = Duration::from_millis(600);

fn caller(lab: &Lab) -> Principal {
    Principal { tenant: lab.tenant, subject: "test".to_owned(), scopes: vec![Scope::Write] }
}

#[tokio::test]
async fn the_session_of_a_dead_worker_goes_on_right_after_its_lease() {
    let lab = Lab::new().await;
    let session = lab.session("default").await;
    let run = lab.submit(session).await;
    let worker = lab.worker(LEASE).await;
    let begun = Instant::now();
    lab.claim(session, worker).await;
    // No timer comes to help: only the moment at which the lease could end.
    lab.start(&lab.app, NEVER);
    lab.wait_for_tokens(1).await;
    let waited = begun.elapsed();
    assert!(waited >= LEASE - Duration::from_millis(100), "{waited:?}");
    assert!(waited < LEASE + Duration::from_secs(2), "{waited:?}");
    let found = lab.store.get_run(lab.tenant, run).await.unwrap();
    assert_eq!((found.state, found.lost_attempts), (RunState::Queued, 1));
    let events = lab.store.read_events(lab.tenant, session, 0, 100).await.unwrap().events;
    let lost = EventBody::RunAttemptLost { attempts: 1, worker };
    assert!(events.iter().any(|event| event.body == lost), "{events:?}");
    let task = lab.wait_for_task("take_back", |task| task.last_notable.is_some()).await;
    assert_eq!(task.last_notable.unwrap().result.unwrap()["sessions"], 1);
    lab.end().await;
}

#[tokio::test]
async fn a_cancelled_run_of_a_dead_worker_ends_without_any_worker() {
    let lab = Lab::new().await;
    let session = lab.session("default").await;
    let run = lab.submit(session).await;
    lab.claim(session, lab.worker(LEASE).await).await;
    lab.start(&lab.app, NEVER);
    let cancelled = lab.app.cancel_run(&caller(&lab), run, "enough".to_owned()).await.unwrap();
    assert!(!cancelled.already_finished && cancelled.signal.is_some());
    let over = || async {
        let run = lab.store.get_run(lab.tenant, run).await.unwrap();
        Some(run).filter(|run| run.state.is_terminal())
    };
    let ended = wait_for("the end of the run", PATIENCE, over).await;
    assert_eq!(ended.state, RunState::Cancelled);
    assert_eq!(ended.cancel.unwrap().delivered_at, None, "nobody was there to be told");
    let task = lab.wait_for_task("take_back", |task| task.last_notable.is_some()).await;
    assert_eq!(task.last_notable.unwrap().result.unwrap()["ended_runs"], 1);
    lab.end().await;
}
