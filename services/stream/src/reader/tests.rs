//! Readers on a real store and the in-memory transport.

use std::time::Duration;

use remuda_domain::{EventBody, MessageId, RunId, event::Delta};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::fixture::{Fixture, NEVER, TEST_TIMEOUT, catch_up, names, next, next_deltas};

#[tokio::test]
async fn deltas_arrive_until_their_message_is_completed() {
    let fixture = Fixture::new().await;
    let mut reader = fixture.reader(fixture.request(None, true), NEVER).await;
    catch_up(&mut reader).await;
    let (first, second) = (MessageId::new(), MessageId::new());
    fixture.publish_deltas(&[fixture.delta(first, 0)]).await;
    assert_eq!(next_deltas(&mut reader).await, [fixture.delta(first, 0)]);
    fixture.complete(first).await;
    // Both wait for the reader: the event comes first and makes the delta obsolete.
    fixture.publish_deltas(&[fixture.delta(first, 7)]).await;
    fixture.publish_deltas(&[fixture.delta(first, 14), fixture.delta(second, 0)]).await;
    assert_eq!(names(next(&mut reader).await), ["message.completed"]);
    assert_eq!(next_deltas(&mut reader).await, [fixture.delta(second, 0)]);
}

#[tokio::test]
async fn reader_of_a_run_gets_nothing_of_other_runs() {
    let fixture = Fixture::new().await;
    let run = fixture.root.run();
    let mut reader = fixture.reader(fixture.request(Some(run), true), NEVER).await;
    catch_up(&mut reader).await;
    let message = MessageId::new();
    fixture.publish_deltas(&[Delta { run: RunId::new(), ..fixture.delta(MessageId::new(), 0) }]).await;
    fixture.publish_deltas(&[fixture.delta(message, 0)]).await;
    assert_eq!(next_deltas(&mut reader).await, [fixture.delta(message, 0)]);
    fixture.end(&fixture.root).await;
    assert_eq!(names(next(&mut reader).await), ["run.completed"]);
    fixture.publish_deltas(&[fixture.delta(message, 7)]).await;
    assert!(reader.next().await.is_none(), "nothing comes after the end");
}

#[tokio::test]
async fn reader_without_deltas_gets_events_only() {
    let fixture = Fixture::new().await;
    let mut reader = fixture.reader(fixture.request(None, false), NEVER).await;
    catch_up(&mut reader).await;
    let message = MessageId::new();
    fixture.publish_deltas(&[fixture.delta(message, 0)]).await;
    fixture.complete(message).await;
    assert_eq!(names(next(&mut reader).await), ["message.completed"]);
}

#[tokio::test]
async fn reader_that_was_too_slow_gets_the_text_so_far_at_once() {
    let fixture = Fixture::new().await;
    let mut reader = fixture.reader(fixture.request(None, true), NEVER).await;
    catch_up(&mut reader).await;
    let message = MessageId::new();
    let mut whole = String::new();
    for number in 0..1000 {
        let delta = fixture.delta(message, number * 7);
        whole.push_str(&delta.text);
        fixture.publish_deltas(&[delta]).await;
        // Lets the hub receive it.
        tokio::task::yield_now().await;
    }
    // It was detached and gets the text so far, which includes what it had not taken.
    assert_eq!(next_deltas(&mut reader).await, [fixture.text_delta(message, 0, &whole)]);
    fixture.publish_deltas(&[fixture.delta(message, 7000)]).await;
    assert_eq!(next_deltas(&mut reader).await, [fixture.delta(message, 7000)]);
}

/// Unpublished events have to be read, which takes longer than the next delta takes to arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_deltas_does_not_delay_events() {
    let fixture = Fixture::new().await;
    let mut reader = fixture.reader(fixture.request(None, true), Duration::from_millis(50)).await;
    assert_eq!(names(next(&mut reader).await).last(), Some(&"run.queued"));
    let (message, done) = (MessageId::new(), CancellationToken::new());
    let flood = async {
        while !done.is_cancelled() {
            fixture.publish_deltas(&[fixture.delta(message, 0)]).await;
            tokio::task::yield_now().await;
        }
    };
    let read = async {
        fixture.write(&fixture.root, EventBody::RunStopped).await;
        while names(next(&mut reader).await).last() != Some(&"run.stopped") {}
        done.cancel();
    };
    timeout(TEST_TIMEOUT, async { tokio::join!(flood, read) }).await.unwrap();
}
