//! Many readers of one session.

use std::time::Duration;

use remuda_domain::{Code, EventBody, MessageId, worker::Signal};
use remuda_testkit::wait_for;
use remuda_transport::Transport as _;
use tokio::time::timeout;

use super::{
    Batch, ReadRequest, Reader,
    fixture::{Fixture, NEVER, TEST_TIMEOUT, catch_up, names, next, next_cursors, next_deltas, next_error},
};
use crate::hub::Hub;

async fn readers(fixture: &Fixture, hub: &Hub, count: usize) -> Vec<Reader> {
    let mut readers = Vec::new();
    for _ in 0..count {
        let mut reader = fixture.open(hub, fixture.request(None, true)).await.unwrap();
        catch_up(&mut reader).await;
        readers.push(reader);
    }
    readers
}

#[tokio::test]
async fn readers_of_one_session_share_its_subscriptions() {
    let fixture = Fixture::new().await;
    let hub = fixture.hub(NEVER);
    let mut readers = readers(&fixture, &hub, 100).await;
    fixture.write_and_publish(&fixture.root, EventBody::RunStopped).await;
    let message = MessageId::new();
    fixture.publish_deltas(&[fixture.delta(message, 0)]).await;
    for reader in &mut readers {
        assert_eq!(next_cursors(reader).await, [3]);
        assert_eq!(next_deltas(reader).await, [fixture.delta(message, 0)]);
    }
    assert_eq!(fixture.transport.subscriptions(), (1, 1));
    assert_eq!(hub.sessions(), 1);
    drop(readers);
    wait_for("the channel to be closed", TEST_TIMEOUT, || async { hub.sessions() == 0 }).await;
}

#[tokio::test]
async fn event_and_its_json_are_shared_by_readers() {
    let fixture = Fixture::new().await;
    let hub = fixture.hub(NEVER);
    let mut readers = readers(&fixture, &hub, 2).await;
    fixture.write_and_publish(&fixture.root, EventBody::RunStopped).await;
    let (Batch::Events(one), Batch::Events(two)) = (next(&mut readers[0]).await, next(&mut readers[1]).await)
    else {
        panic!("expected events")
    };
    assert!(std::sync::Arc::ptr_eq(&one[0], &two[0]));
    // Its JSON is created once.
    assert_eq!(one[0].json(|_| "first".into()), two[0].json(|_| "second".into()));
}

/// More than the ring holds.
const MANY: i64 = 600;

#[tokio::test]
async fn stalled_reader_catches_up_without_affecting_others() {
    let fixture = Fixture::new().await;
    let hub = fixture.hub(NEVER);
    let mut readers = readers(&fixture, &hub, 2).await;
    let (mut stalled, mut quick) = (readers.pop().unwrap(), readers.pop().unwrap());
    for cursor in 3..3 + MANY {
        fixture.write_and_publish(&fixture.root, EventBody::RunStopped).await;
        assert_eq!(next_cursors(&mut quick).await, [cursor]);
    }
    let mut seen = Vec::new();
    while seen.len() < 600 {
        seen.extend(next_cursors(&mut stalled).await);
    }
    assert_eq!(seen, Vec::from_iter(3..3 + MANY));
    // It is live again.
    fixture.write_and_publish(&fixture.root, EventBody::RunStopped).await;
    assert_eq!(next_cursors(&mut stalled).await, [3 + MANY]);
    assert_eq!(fixture.transport.subscriptions(), (1, 1));
}

#[tokio::test]
async fn unpublished_event_is_found_by_the_periodic_lookup() {
    let fixture = Fixture::new().await;
    let hub = fixture.hub(Duration::from_millis(50));
    let mut readers = readers(&fixture, &hub, 10).await;
    fixture.write(&fixture.root, EventBody::RunStopped).await;
    for reader in &mut readers {
        assert_eq!(next_cursors(reader).await, [3]);
    }
}

#[tokio::test]
async fn gap_before_a_live_event_is_filled_immediately() {
    let fixture = Fixture::new().await;
    let hub = fixture.hub(NEVER);
    let mut readers = readers(&fixture, &hub, 3).await;
    fixture.write(&fixture.root, EventBody::RunStopped).await;
    fixture.write(&fixture.root, EventBody::RunStopped).await;
    fixture.write_and_publish(&fixture.root, EventBody::RunStopped).await;
    for reader in &mut readers {
        assert_eq!(next_cursors(reader).await, [3, 4, 5]);
    }
}

#[tokio::test]
async fn cursor_known_only_to_another_process_is_accepted() {
    let fixture = Fixture::new().await;
    let hub = fixture.hub(NEVER);
    let mut here = readers(&fixture, &hub, 1).await;
    // Seen by another process, and not published here.
    fixture.write(&fixture.root, EventBody::RunStopped).await;
    let after = |after| ReadRequest { after, ..fixture.request(None, false) };
    let mut reader = fixture.open(&hub, after(3)).await.unwrap();
    assert_eq!(next_cursors(&mut here[0]).await, [3], "the lookup informs the others");
    fixture.write_and_publish(&fixture.root, EventBody::RunStopped).await;
    assert_eq!(next_cursors(&mut reader).await, [4]);
    let error = fixture.open(&hub, after(5)).await.err().unwrap();
    assert_eq!((error.code(), error.field()), (Code::CursorOutOfRange, Some("after_cursor")));
    let error = fixture.open(&hub, after(-1)).await.err().unwrap();
    assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("after_cursor")));
}

#[tokio::test]
async fn late_reader_gets_the_text_so_far() {
    let fixture = Fixture::new().await;
    let hub = fixture.hub(NEVER);
    let mut first = readers(&fixture, &hub, 1).await.remove(0);
    let message = MessageId::new();
    fixture.publish_deltas(&[fixture.text_delta(message, 0, "Hel")]).await;
    fixture.publish_deltas(&[fixture.text_delta(message, 3, "lo")]).await;
    let mut received = String::new();
    while received.len() < 5 {
        received.extend(next_deltas(&mut first).await.into_iter().map(|text_delta| text_delta.text));
    }
    let mut late = fixture.open(&hub, fixture.request(None, true)).await.unwrap();
    assert_eq!(names(next(&mut late).await), ["session.created", "run.queued"]);
    assert_eq!(next_deltas(&mut late).await, [fixture.text_delta(message, 0, "Hello")]);
    fixture.publish_deltas(&[fixture.text_delta(message, 5, ", you")]).await;
    for reader in [&mut first, &mut late] {
        assert_eq!(next_deltas(reader).await, [fixture.text_delta(message, 5, ", you")]);
    }
    // Resent for another process: here it is known.
    fixture.publish_deltas(&[fixture.text_delta(message, 0, "Hello, you")]).await;
    fixture.complete(message).await;
    for reader in [&mut first, &mut late] {
        assert_eq!(names(next(reader).await), ["message.completed"]);
    }
}

#[tokio::test]
async fn late_subscription_requests_a_resend() {
    let fixture = Fixture::new().await;
    let mut signals = fixture.transport.subscribe_signals(fixture.worker).await.unwrap();
    let ask = Some(Signal::ResendDeltas { session: fixture.root.session });
    let message = MessageId::new();
    // No subscription yet.
    fixture.publish_deltas(&[fixture.text_delta(message, 0, "Hel")]).await;
    let hub = fixture.hub(NEVER);
    let mut reader = fixture.open(&hub, fixture.request(None, true)).await.unwrap();
    assert_eq!(names(next(&mut reader).await), ["session.created", "run.queued"]);
    assert_eq!(
        timeout(TEST_TIMEOUT, signals.next()).await.unwrap(),
        ask,
        "requested immediately, before the next delta"
    );
    fixture.publish_deltas(&[fixture.text_delta(message, 3, "lo")]).await;
    fixture.publish_deltas(&[fixture.text_delta(message, 0, "Hello")]).await;
    assert_eq!(next_deltas(&mut reader).await, [fixture.text_delta(message, 0, "Hello")]);
    // A delta is lost. Later ones are not delivered before it.
    let asked = async {
        loop {
            // Requests are rate-limited.
            fixture.publish_deltas(&[fixture.text_delta(message, 7, "you")]).await;
            if let Ok(asked) = timeout(Duration::from_millis(20), signals.next()).await {
                break asked;
            }
        }
    };
    assert_eq!(timeout(TEST_TIMEOUT, asked).await.unwrap(), ask);
    fixture.publish_deltas(&[fixture.text_delta(message, 10, "!")]).await;
    fixture.publish_deltas(&[fixture.text_delta(message, 0, "Hello, you!")]).await;
    assert_eq!(next_deltas(&mut reader).await, [fixture.text_delta(message, 5, ", you!")]);
}

#[tokio::test]
async fn readers_of_a_deleted_session_get_an_error() {
    let fixture = Fixture::new().await;
    let hub = fixture.hub(Duration::from_millis(50));
    let mut readers = readers(&fixture, &hub, 3).await;
    fixture.execute("DELETE FROM sessions").await;
    for reader in &mut readers {
        assert_eq!(next_error(reader).await.code(), Code::SessionNotFound);
    }
    let error = fixture.open(&hub, fixture.request(None, false)).await.err().unwrap();
    assert_eq!((error.code(), error.field()), (Code::SessionNotFound, Some("session")));
}

#[tokio::test]
async fn session_of_another_tenant_is_not_found() {
    let fixture = Fixture::new().await;
    let hub = fixture.hub(NEVER);
    let _here = readers(&fixture, &hub, 1).await;
    let foreign = fixture.other_tenant_session().await;
    let error = fixture
        .open(&hub, ReadRequest { session: foreign.session, ..fixture.request(None, false) })
        .await
        .err()
        .unwrap();
    assert_eq!(error.code(), Code::SessionNotFound);
    assert_eq!(fixture.transport.subscriptions(), (1, 1), "a missing session is not subscribed to");
}
