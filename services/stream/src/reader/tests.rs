//! Readers on a real store and the transport of one process.

use std::time::Duration;

use remuda_domain::{EventBody, MessageId, RunId, event::Delta};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::lab::{Lab, NEVER, PATIENCE, catch_up, names, next, pieces};

#[tokio::test]
async fn pieces_come_until_their_message_is_complete() {
    let lab = Lab::new().await;
    let mut reader = lab.reader(lab.wish(None, true), NEVER).await;
    catch_up(&mut reader).await;
    let (first, second) = (MessageId::new(), MessageId::new());
    lab.say(&[lab.delta(first, 0)]).await;
    assert_eq!(pieces(&mut reader).await, [lab.delta(first, 0)]);
    lab.complete(first).await;
    // Both wait for the reader: the event goes first, and with it the piece is of no use.
    lab.say(&[lab.delta(first, 7)]).await;
    lab.say(&[lab.delta(first, 14), lab.delta(second, 0)]).await;
    assert_eq!(names(next(&mut reader).await), ["message.completed"]);
    assert_eq!(pieces(&mut reader).await, [lab.delta(second, 0)]);
}

#[tokio::test]
async fn a_reader_of_a_run_hears_nothing_of_others() {
    let lab = Lab::new().await;
    let run = lab.root.run();
    let mut reader = lab.reader(lab.wish(Some(run), true), NEVER).await;
    catch_up(&mut reader).await;
    let message = MessageId::new();
    lab.say(&[Delta { run: RunId::new(), ..lab.delta(MessageId::new(), 0) }]).await;
    lab.say(&[lab.delta(message, 0)]).await;
    assert_eq!(pieces(&mut reader).await, [lab.delta(message, 0)]);
    lab.end(&lab.root).await;
    assert_eq!(names(next(&mut reader).await), ["run.completed"]);
    lab.say(&[lab.delta(message, 7)]).await;
    assert!(reader.next().await.is_none(), "nothing comes after the end");
}

#[tokio::test]
async fn who_did_not_ask_gets_events_only() {
    let lab = Lab::new().await;
    let mut reader = lab.reader(lab.wish(None, false), NEVER).await;
    catch_up(&mut reader).await;
    let message = MessageId::new();
    lab.say(&[lab.delta(message, 0)]).await;
    lab.complete(message).await;
    assert_eq!(names(next(&mut reader).await), ["message.completed"]);
}

#[tokio::test]
async fn a_reader_that_was_too_slow_hears_all_of_it_at_once() {
    let lab = Lab::new().await;
    let mut reader = lab.reader(lab.wish(None, true), NEVER).await;
    catch_up(&mut reader).await;
    let message = MessageId::new();
    let mut whole = String::new();
    for number in 0..1000 {
        let delta = lab.delta(message, number * 7);
        whole.push_str(&delta.text);
        lab.say(&[delta]).await;
        // Lets the hub hear it.
        tokio::task::yield_now().await;
    }
    // It has lost its place, and gets the text so far. What it had not taken is in there.
    assert_eq!(pieces(&mut reader).await, [lab.piece(message, 0, &whole)]);
    lab.say(&[lab.delta(message, 7000)]).await;
    assert_eq!(pieces(&mut reader).await, [lab.delta(message, 7000)]);
}

/// Events that were not told live have to be read, which takes longer than the next piece takes to come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_pieces_does_not_hold_up_events() {
    let lab = Lab::new().await;
    let mut reader = lab.reader(lab.wish(None, true), Duration::from_millis(50)).await;
    assert_eq!(names(next(&mut reader).await).last(), Some(&"run.queued"));
    let (message, done) = (MessageId::new(), CancellationToken::new());
    let flood = async {
        while !done.is_cancelled() {
            lab.say(&[lab.delta(message, 0)]).await;
            tokio::task::yield_now().await;
        }
    };
    let read = async {
        lab.write(&lab.root, EventBody::RunStopped).await;
        while names(next(&mut reader).await).last() != Some(&"run.stopped") {}
        done.cancel();
    };
    timeout(PATIENCE, async { tokio::join!(flood, read) }).await.unwrap();
}
