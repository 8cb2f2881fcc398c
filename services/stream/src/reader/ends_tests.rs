//! How streams begin that begin too late, and how they end.

use std::{sync::Arc, time::Duration};

use hyper::HeaderMap;
use remuda_domain::{Code, EventBody, RunState, snapshot::Snapshot};
use remuda_grpc::{Authenticator, KeyPolicy, keys};
use remuda_store::NewKey;
use remuda_testkit::wait_for;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Reader, Said, Wish,
    lab::{Lab, NEVER, PATIENCE, catch_up, cursors, names, next, refusal},
};
use crate::{
    StreamOptions,
    readers::{Manner, Readers, Subject},
};

/// Deletes what is finished.
async fn trim(lab: &Lab) {
    let all = || async { lab.store.trim_events(Duration::ZERO, None, 100).await.unwrap().rows > 0 };
    wait_for("events to be trimmed", PATIENCE, all).await;
}

/// The snapshot that comes next, with its cursor.
async fn snapshot(reader: &mut Reader) -> (i64, Snapshot) {
    let Said::Events(events) = next(reader).await else { panic!("a delta") };
    let EventBody::Snapshot(snapshot) = &events[0].body else { panic!("{events:?}") };
    (events[0].cursor, Snapshot::clone(snapshot))
}

#[tokio::test]
async fn who_comes_too_late_gets_a_snapshot_and_what_is_kept() {
    let lab = Lab::new().await;
    lab.end_silently(&lab.root).await;
    let second = lab.again(&lab.root).await;
    trim(&lab).await;
    for after in [0, 2] {
        let wish = Wish { after, ..lab.wish(None, false) };
        let mut reader = lab.reader(wish, NEVER).await;
        let (cursor, told) = snapshot(&mut reader).await;
        assert_eq!((cursor, told.first_cursor, told.last_cursor), (3, 4, 4));
        assert_eq!((told.session.pending_runs, told.session.current_run), (1, Some(second.run())));
        let runs: Vec<_> = told.runs.iter().map(|run| (run.run, run.seq, run.state)).collect();
        assert_eq!(runs, [(second.run(), 2, RunState::Running)]);
        assert_eq!(cursors(&mut reader).await, [4]);
    }
    // From the snapshot on nothing is missing.
    let mut reader = lab.reader(Wish { after: 3, ..lab.wish(None, false) }, NEVER).await;
    assert_eq!(cursors(&mut reader).await, [4]);
    lab.tell(&second, EventBody::RunStopped).await;
    assert_eq!(cursors(&mut reader).await, [5]);
}

#[tokio::test]
async fn a_session_of_which_nothing_is_kept_goes_on() {
    let lab = Lab::new().await;
    lab.end_silently(&lab.root).await;
    trim(&lab).await;
    let mut reader = lab.reader(lab.wish(None, false), NEVER).await;
    let (cursor, told) = snapshot(&mut reader).await;
    assert_eq!((cursor, told.first_cursor, told.last_cursor, told.runs.len()), (3, 4, 3, 0));
    let again = lab.again(&lab.root).await;
    lab.tell(&again, EventBody::RunStopped).await;
    assert_eq!(cursors(&mut reader).await, [4, 5]);
}

#[tokio::test]
async fn a_run_of_which_nothing_is_kept_tells_how_it_ended() {
    let lab = Lab::new().await;
    lab.end_silently(&lab.root).await;
    let second = lab.again(&lab.root).await;
    trim(&lab).await;
    let run = lab.root.run();
    let mut reader = lab.reader(lab.wish(Some(run), false), NEVER).await;
    let (_, told) = snapshot(&mut reader).await;
    let runs: Vec<_> = told.runs.iter().map(|run| (run.run, run.state)).collect();
    assert_eq!(runs, [(run, RunState::Completed)]);
    assert!(reader.next().await.is_none());
    // One of which all is kept does not hear of what others lack.
    let mut reader = lab.reader(lab.wish(Some(second.run()), false), NEVER).await;
    assert_eq!(names(next(&mut reader).await), ["run.queued"]);
    lab.end(&second).await;
    assert_eq!(names(next(&mut reader).await), ["run.completed"]);
    assert!(reader.next().await.is_none());
}

#[tokio::test]
async fn a_session_below_is_told_of_with_a_snapshot() {
    let lab = Lab::new().await;
    let helper = lab.below(&lab.root).await;
    lab.end_silently(&helper).await;
    trim(&lab).await;
    let tree = Wish { tree: Some(Default::default()), ..lab.wish(None, false) };
    let mut reader = lab.reader(tree, NEVER).await;
    assert_eq!(snapshot(&mut reader).await.0, 1, "the root's own beginning");
    assert_eq!(names(next(&mut reader).await), ["run.queued"]);
    let (cursor, told) = snapshot(&mut reader).await;
    assert_eq!((cursor, told.last_cursor), (3, 3));
}

#[tokio::test]
async fn a_revoked_key_ends_its_streams() {
    let lab = Lab::new().await;
    let secret = keys::generate();
    let new = NewKey {
        tenant: lab.tenant,
        name: "reader".to_owned(),
        secret_hash: keys::hash(&secret),
        scopes: Vec::new(),
        expires_at: None,
    };
    let key = lab.store.create_key(&new).await.unwrap();
    let auth = Authenticator::new(Arc::clone(&lab.store), KeyPolicy::Required);
    let mut headers = HeaderMap::new();
    headers.insert("authorization", format!("Bearer {secret}").parse().unwrap());
    let hub = lab.hub(NEVER);
    let mut readers = Vec::new();
    for _ in 0..3 {
        let (_, standing) = auth.authenticate_for_long(&headers).await.unwrap();
        let mut reader = lab.open_for(&hub, lab.wish(None, false), standing).await.unwrap();
        catch_up(&mut reader).await;
        readers.push(reader);
    }
    auth.look_again().await;
    lab.tell(&lab.root, EventBody::RunStopped).await;
    for reader in &mut readers {
        assert_eq!(names(next(reader).await), ["run.stopped"]);
    }
    lab.store.revoke_key(lab.tenant, key.id).await.unwrap();
    auth.look_again().await;
    for reader in &mut readers {
        let error = refusal(reader).await;
        assert_eq!(error.code(), Code::Unauthenticated);
        assert!(error.message().contains("revoked"), "{error}");
    }
    assert_eq!(auth.authenticate(&headers).await.unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn readers_leave_one_after_the_other() {
    let lab = Lab::new().await;
    let options = StreamOptions { max_readers: 20, replay_batch: 10, catch_up: NEVER };
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let transport = Arc::clone(&lab.transport);
    let readers = Readers::new(Arc::clone(&lab.store), transport, &options, &tasks, stop.clone());
    let subject = Subject::Session(lab.root.session.to_string());
    let open = || readers.open(lab.tenant, Default::default(), &subject, Manner::default());
    let mut open_readers = Vec::new();
    for _ in 0..20 {
        let mut reader = open().await.unwrap();
        catch_up(&mut reader).await;
        open_readers.push(reader);
    }
    assert_eq!(open().await.err().unwrap().code(), Code::Overloaded);
    stop.cancel();
    let stopped = Instant::now();
    let ends = open_readers.into_iter().map(|mut reader| async move {
        assert_eq!(refusal(&mut reader).await.code(), Code::Unavailable);
        stopped.elapsed()
    });
    let mut ends = futures::future::join_all(ends).await;
    ends.sort();
    assert!(ends[19] - ends[0] > Duration::from_millis(500), "{ends:?}");
    // What works for them ends with them.
    tasks.close();
    tokio::time::timeout(PATIENCE, tasks.wait()).await.unwrap();
}
