//! Streams that start after trimmed history, and how streams end.

use std::{sync::Arc, time::Duration};

use hyper::HeaderMap;
use remuda_domain::{Code, EventBody, RunState, identity::Scope, snapshot::Snapshot};
use remuda_grpc::{Authenticator, KeyPolicy, keys};
use remuda_store::{KeyOwner, NewKey};
use remuda_testkit::wait_for;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Batch, ReadRequest, Reader,
    fixture::{Fixture, NEVER, TEST_TIMEOUT, catch_up, names, next, next_cursors, next_error},
};
use crate::{
    StreamOptions,
    readers::{Readers, StreamTarget, SubscribeOptions},
};

/// Deletes all events of finished runs.
async fn trim(fixture: &Fixture) {
    let all = || async { fixture.store.trim_events(Duration::ZERO, None, 100).await.unwrap().rows > 0 };
    wait_for("events to be trimmed", TEST_TIMEOUT, all).await;
}

/// The next snapshot, with its cursor.
async fn next_snapshot(reader: &mut Reader) -> (i64, Snapshot) {
    let Batch::Events(events) = next(reader).await else { panic!("a delta") };
    let EventBody::Snapshot(snapshot) = &events[0].body else { panic!("{events:?}") };
    (events[0].cursor, Snapshot::clone(snapshot))
}

#[tokio::test]
async fn reader_behind_trimmed_history_gets_a_snapshot_and_the_retained_events() {
    let fixture = Fixture::new().await;
    fixture.end_silently(&fixture.root).await;
    let second = fixture.next_run(&fixture.root).await;
    trim(&fixture).await;
    for after in [0, 2] {
        let request = ReadRequest { after, ..fixture.request(None, false) };
        let mut reader = fixture.reader(request, NEVER).await;
        let (cursor, snapshot) = next_snapshot(&mut reader).await;
        assert_eq!((cursor, snapshot.first_cursor, snapshot.last_cursor), (3, 4, 4));
        assert_eq!((snapshot.session.pending_runs, snapshot.session.current_run), (1, Some(second.run())));
        let runs: Vec<_> = snapshot.runs.iter().map(|run| (run.run, run.seq, run.state)).collect();
        assert_eq!(runs, [(second.run(), 2, RunState::Running)]);
        assert_eq!(next_cursors(&mut reader).await, [4]);
    }
    // From the snapshot on nothing is missing.
    let mut reader = fixture.reader(ReadRequest { after: 3, ..fixture.request(None, false) }, NEVER).await;
    assert_eq!(next_cursors(&mut reader).await, [4]);
    fixture.write_and_publish(&second, EventBody::RunStopped).await;
    assert_eq!(next_cursors(&mut reader).await, [5]);
}

#[tokio::test]
async fn session_without_retained_events_continues_after_a_snapshot() {
    let fixture = Fixture::new().await;
    fixture.end_silently(&fixture.root).await;
    trim(&fixture).await;
    let mut reader = fixture.reader(fixture.request(None, false), NEVER).await;
    let (cursor, snapshot) = next_snapshot(&mut reader).await;
    assert_eq!((cursor, snapshot.first_cursor, snapshot.last_cursor, snapshot.runs.len()), (3, 4, 3, 0));
    let again = fixture.next_run(&fixture.root).await;
    fixture.write_and_publish(&again, EventBody::RunStopped).await;
    assert_eq!(next_cursors(&mut reader).await, [4, 5]);
}

#[tokio::test]
async fn run_without_retained_events_reports_its_end_in_a_snapshot() {
    let fixture = Fixture::new().await;
    fixture.end_silently(&fixture.root).await;
    let second = fixture.next_run(&fixture.root).await;
    trim(&fixture).await;
    let run = fixture.root.run();
    let mut reader = fixture.reader(fixture.request(Some(run), false), NEVER).await;
    let (_, snapshot) = next_snapshot(&mut reader).await;
    let runs: Vec<_> = snapshot.runs.iter().map(|run| (run.run, run.state)).collect();
    assert_eq!(runs, [(run, RunState::Completed)]);
    assert!(reader.next().await.is_none());
    // A run with all its events gets no snapshot for trimmed events of others.
    let mut reader = fixture.reader(fixture.request(Some(second.run()), false), NEVER).await;
    assert_eq!(names(next(&mut reader).await), ["run.queued"]);
    fixture.end(&second).await;
    assert_eq!(names(next(&mut reader).await), ["run.completed"]);
    assert!(reader.next().await.is_none());
}

#[tokio::test]
async fn trimmed_child_session_is_reported_with_a_snapshot() {
    let fixture = Fixture::new().await;
    let child = fixture.child_session(&fixture.root).await;
    fixture.end_silently(&child).await;
    trim(&fixture).await;
    let tree = ReadRequest { tree: Some(Default::default()), ..fixture.request(None, false) };
    let mut reader = fixture.reader(tree, NEVER).await;
    assert_eq!(next_snapshot(&mut reader).await.0, 1, "the root's own trimmed events");
    assert_eq!(names(next(&mut reader).await), ["run.queued"]);
    let (cursor, snapshot) = next_snapshot(&mut reader).await;
    assert_eq!((cursor, snapshot.last_cursor), (3, 3));
}

#[tokio::test]
async fn revoked_key_ends_its_streams() {
    let fixture = Fixture::new().await;
    let secret = keys::generate();
    let new = NewKey {
        tenant: Some(fixture.tenant),
        name: "reader".to_owned(),
        secret_hash: keys::hash(&secret),
        scopes: vec![Scope::Read],
        expires_at: None,
    };
    let key = fixture.store.create_key(&new).await.unwrap();
    let auth = Authenticator::new(Arc::clone(&fixture.store), KeyPolicy::Required);
    let mut headers = HeaderMap::new();
    headers.insert("authorization", format!("Bearer {secret}").parse().unwrap());
    let hub = fixture.hub(NEVER);
    let mut readers = Vec::new();
    for _ in 0..3 {
        let (_, standing) = auth.authenticate_stream(&headers).await.unwrap();
        let mut reader = fixture.open_for(&hub, fixture.request(None, false), standing).await.unwrap();
        catch_up(&mut reader).await;
        readers.push(reader);
    }
    auth.recheck_keys().await;
    fixture.write_and_publish(&fixture.root, EventBody::RunStopped).await;
    for reader in &mut readers {
        assert_eq!(names(next(reader).await), ["run.stopped"]);
    }
    fixture.store.revoke_key(KeyOwner::Tenant(fixture.tenant), key.id).await.unwrap();
    auth.recheck_keys().await;
    for reader in &mut readers {
        let error = next_error(reader).await;
        assert_eq!(error.code(), Code::Unauthenticated);
        assert!(error.message().contains("revoked"), "{error}");
    }
    assert_eq!(auth.authenticate(&headers).await.unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn readers_close_spread_over_time_after_the_stop_signal() {
    let fixture = Fixture::new().await;
    let options = StreamOptions { max_readers: 20, replay_batch: 10, catch_up: NEVER };
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let transport = Arc::clone(&fixture.transport);
    let readers = Readers::new(Arc::clone(&fixture.store), transport, &options, &tasks, stop.clone());
    let target = StreamTarget::Session(fixture.root.session.to_string());
    let open = || readers.open(fixture.tenant, Default::default(), &target, SubscribeOptions::default());
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
        assert_eq!(next_error(&mut reader).await.code(), Code::Unavailable);
        stopped.elapsed()
    });
    let mut ends = futures::future::join_all(ends).await;
    ends.sort();
    assert!(ends[19] - ends[0] > Duration::from_millis(500), "{ends:?}");
    // Their background tasks end with them.
    tasks.close();
    tokio::time::timeout(TEST_TIMEOUT, tasks.wait()).await.unwrap();
}
