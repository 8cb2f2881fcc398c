use std::time::Duration;

use remuda_domain::Code;
use remuda_testkit::wait_for;

use super::{
    super::{ReconcilerOptions, gc::Gc, task::BackgroundTask},
    lab::{Lab, NEVER, PATIENCE, options},
};

const AT_ONCE: Duration = Duration::from_millis(1);

/// A round from the beginning on, once what there is has become old.
async fn round(lab: &Lab, options: &ReconcilerOptions) -> Vec<(String, u64)> {
    let something = || async {
        let round = Gc::new(lab.store.clone(), options).round().await.unwrap();
        Some(round.counts.into_iter().collect::<Vec<_>>()).filter(|counts| !counts.is_empty())
    };
    wait_for("something that is old", PATIENCE, something).await
}

#[tokio::test]
async fn old_runs_go_and_their_session_stays() {
    let lab = Lab::new().await;
    let (session, kept) = (lab.session("default").await, lab.session("default").await);
    let run = lab.submit(session).await;
    let waiting = lab.submit(kept).await;
    lab.store.request_cancel(lab.tenant, run, "enough").await.unwrap();
    let stream = || async { lab.store.read_events(lab.tenant, session, 0, 10).await.unwrap() };
    let before = stream().await;
    let forever = Gc::new(lab.store.clone(), &options(NEVER)).round().await.unwrap();
    assert!(forever.counts.is_empty() && forever.again_in.is_none());
    let options = ReconcilerOptions { runs_kept: AT_ONCE, ..options(NEVER) };
    assert_eq!(round(&lab, &options).await, [("runs_deleted".to_owned(), 1)]);
    assert_eq!(lab.store.get_run(lab.tenant, run).await.unwrap_err().code(), Code::RunNotFound);
    assert!(lab.store.get_run(lab.tenant, waiting).await.is_ok());
    let after = stream().await;
    assert_eq!((after.last_cursor, after.events), (before.last_cursor, before.events));
    lab.end().await;
}

#[tokio::test]
async fn the_leader_deletes_idle_sessions_by_itself() {
    let lab = Lab::new().await;
    let (idle, busy) = (lab.session("default").await, lab.session("default").await);
    lab.submit(busy).await;
    lab.start_with(&lab.app, ReconcilerOptions { sessions_kept: AT_ONCE, ..options(NEVER) });
    let task = lab.wait_for_task("gc", |task| task.last_notable.is_some()).await;
    assert_eq!(task.last_notable.unwrap().result.unwrap()["sessions_deleted"], 1);
    let gone = lab.store.read_events(lab.tenant, idle, 0, 10).await;
    assert_eq!(gone.unwrap_err().code(), Code::SessionNotFound);
    assert!(lab.store.read_events(lab.tenant, busy, 0, 10).await.is_ok());
    lab.end().await;
}
