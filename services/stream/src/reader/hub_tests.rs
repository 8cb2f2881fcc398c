//! Many readers of one session.

use std::time::Duration;

use remuda_domain::{Code, EventBody, MessageId, worker::Signal};
use remuda_testkit::wait_for;
use remuda_transport::Transport as _;
use tokio::time::timeout;

use super::{
    Reader, Said, Wish,
    lab::{Lab, NEVER, PATIENCE, catch_up, cursors, names, next, pieces, refusal},
};
use crate::hub::Hub;

async fn readers(lab: &Lab, hub: &Hub, count: usize) -> Vec<Reader> {
    let mut readers = Vec::new();
    for _ in 0..count {
        let mut reader = lab.open(hub, lab.wish(None, true)).await.unwrap();
        catch_up(&mut reader).await;
        readers.push(reader);
    }
    readers
}

#[tokio::test]
async fn a_hundred_readers_listen_once() {
    let lab = Lab::new().await;
    let hub = lab.hub(NEVER);
    let mut readers = readers(&lab, &hub, 100).await;
    lab.tell(&lab.root, EventBody::RunStopped).await;
    let message = MessageId::new();
    lab.say(&[lab.delta(message, 0)]).await;
    for reader in &mut readers {
        assert_eq!(cursors(reader).await, [3]);
        assert_eq!(pieces(reader).await, [lab.delta(message, 0)]);
    }
    assert_eq!(lab.transport.subscriptions(), (1, 1));
    assert_eq!(hub.sessions(), 1);
    drop(readers);
    wait_for("nobody to listen any more", PATIENCE, || async { hub.sessions() == 0 }).await;
}

#[tokio::test]
async fn an_event_is_there_once_for_all() {
    let lab = Lab::new().await;
    let hub = lab.hub(NEVER);
    let mut readers = readers(&lab, &hub, 2).await;
    lab.tell(&lab.root, EventBody::RunStopped).await;
    let (Said::Events(one), Said::Events(two)) = (next(&mut readers[0]).await, next(&mut readers[1]).await)
    else {
        panic!("expected events")
    };
    assert!(std::sync::Arc::ptr_eq(&one[0], &two[0]));
    // What is written of it is written once.
    assert_eq!(one[0].json(|_| "first".into()), two[0].json(|_| "second".into()));
}

/// More than the ring holds.
const MANY: i64 = 600;

#[tokio::test]
async fn a_stalled_reader_catches_up_and_nobody_else_notices() {
    let lab = Lab::new().await;
    let hub = lab.hub(NEVER);
    let mut readers = readers(&lab, &hub, 2).await;
    let (mut stalled, mut quick) = (readers.pop().unwrap(), readers.pop().unwrap());
    for cursor in 3..3 + MANY {
        lab.tell(&lab.root, EventBody::RunStopped).await;
        assert_eq!(cursors(&mut quick).await, [cursor]);
    }
    let mut seen = Vec::new();
    while seen.len() < 600 {
        seen.extend(cursors(&mut stalled).await);
    }
    assert_eq!(seen, Vec::from_iter(3..3 + MANY));
    // It is live again.
    lab.tell(&lab.root, EventBody::RunStopped).await;
    assert_eq!(cursors(&mut stalled).await, [3 + MANY]);
    assert_eq!(lab.transport.subscriptions(), (1, 1));
}

#[tokio::test]
async fn what_was_not_told_is_found_by_a_look_at_all_sessions() {
    let lab = Lab::new().await;
    let hub = lab.hub(Duration::from_millis(50));
    let mut readers = readers(&lab, &hub, 10).await;
    lab.write(&lab.root, EventBody::RunStopped).await;
    for reader in &mut readers {
        assert_eq!(cursors(reader).await, [3]);
    }
}

#[tokio::test]
async fn a_hole_is_filled_at_once() {
    let lab = Lab::new().await;
    let hub = lab.hub(NEVER);
    let mut readers = readers(&lab, &hub, 3).await;
    lab.write(&lab.root, EventBody::RunStopped).await;
    lab.write(&lab.root, EventBody::RunStopped).await;
    lab.tell(&lab.root, EventBody::RunStopped).await;
    for reader in &mut readers {
        assert_eq!(cursors(reader).await, [3, 4, 5]);
    }
}

#[tokio::test]
async fn cursors_that_others_know_of_are_no_future() {
    let lab = Lab::new().await;
    let hub = lab.hub(NEVER);
    let mut here = readers(&lab, &hub, 1).await;
    // Seen elsewhere, and not told here.
    lab.write(&lab.root, EventBody::RunStopped).await;
    let after = |after| Wish { after, ..lab.wish(None, false) };
    let mut reader = lab.open(&hub, after(3)).await.unwrap();
    assert_eq!(cursors(&mut here[0]).await, [3], "the others learn of it by this");
    lab.tell(&lab.root, EventBody::RunStopped).await;
    assert_eq!(cursors(&mut reader).await, [4]);
    let error = lab.open(&hub, after(5)).await.err().unwrap();
    assert_eq!((error.code(), error.field()), (Code::CursorOutOfRange, Some("after_cursor")));
    let error = lab.open(&hub, after(-1)).await.err().unwrap();
    assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("after_cursor")));
}

#[tokio::test]
async fn a_late_one_hears_the_text_so_far() {
    let lab = Lab::new().await;
    let hub = lab.hub(NEVER);
    let mut first = readers(&lab, &hub, 1).await.remove(0);
    let message = MessageId::new();
    lab.say(&[lab.piece(message, 0, "Hel")]).await;
    lab.say(&[lab.piece(message, 3, "lo")]).await;
    let mut heard = String::new();
    while heard.len() < 5 {
        heard.extend(pieces(&mut first).await.into_iter().map(|piece| piece.text));
    }
    let mut late = lab.open(&hub, lab.wish(None, true)).await.unwrap();
    assert_eq!(names(next(&mut late).await), ["session.created", "run.queued"]);
    assert_eq!(pieces(&mut late).await, [lab.piece(message, 0, "Hello")]);
    lab.say(&[lab.piece(message, 5, ", you")]).await;
    for reader in [&mut first, &mut late] {
        assert_eq!(pieces(reader).await, [lab.piece(message, 5, ", you")]);
    }
    // Told again for another process: here it is known.
    lab.say(&[lab.piece(message, 0, "Hello, you")]).await;
    lab.complete(message).await;
    for reader in [&mut first, &mut late] {
        assert_eq!(names(next(reader).await), ["message.completed"]);
    }
}

#[tokio::test]
async fn a_process_that_comes_late_has_it_told_again() {
    let lab = Lab::new().await;
    let mut signals = lab.transport.subscribe_signals(lab.worker).await.unwrap();
    let ask = Some(Signal::TellAgain { session: lab.root.session });
    let message = MessageId::new();
    // Nobody listens.
    lab.say(&[lab.piece(message, 0, "Hel")]).await;
    let hub = lab.hub(NEVER);
    let mut reader = lab.open(&hub, lab.wish(None, true)).await.unwrap();
    assert_eq!(names(next(&mut reader).await), ["session.created", "run.queued"]);
    assert_eq!(timeout(PATIENCE, signals.next()).await.unwrap(), ask, "asked at once, before the next piece");
    lab.say(&[lab.piece(message, 3, "lo")]).await;
    lab.say(&[lab.piece(message, 0, "Hello")]).await;
    assert_eq!(pieces(&mut reader).await, [lab.piece(message, 0, "Hello")]);
    // A piece is lost. What comes after it is not told before what was lost.
    let asked = async {
        loop {
            // Not asked for as often as it comes.
            lab.say(&[lab.piece(message, 7, "you")]).await;
            if let Ok(asked) = timeout(Duration::from_millis(20), signals.next()).await {
                break asked;
            }
        }
    };
    assert_eq!(timeout(PATIENCE, asked).await.unwrap(), ask);
    lab.say(&[lab.piece(message, 10, "!")]).await;
    lab.say(&[lab.piece(message, 0, "Hello, you!")]).await;
    assert_eq!(pieces(&mut reader).await, [lab.piece(message, 5, ", you!")]);
}

#[tokio::test]
async fn readers_of_a_deleted_session_are_told() {
    let lab = Lab::new().await;
    let hub = lab.hub(Duration::from_millis(50));
    let mut readers = readers(&lab, &hub, 3).await;
    lab.execute("DELETE FROM sessions").await;
    for reader in &mut readers {
        assert_eq!(refusal(reader).await.code(), Code::SessionNotFound);
    }
    let error = lab.open(&hub, lab.wish(None, false)).await.err().unwrap();
    assert_eq!((error.code(), error.field()), (Code::SessionNotFound, Some("session")));
}

#[tokio::test]
async fn nobody_hears_of_another_tenants_session() {
    let lab = Lab::new().await;
    let hub = lab.hub(NEVER);
    let _here = readers(&lab, &hub, 1).await;
    let foreign = lab.foreign().await;
    let error =
        lab.open(&hub, Wish { session: foreign.session, ..lab.wish(None, false) }).await.err().unwrap();
    assert_eq!(error.code(), Code::SessionNotFound);
    assert_eq!(lab.transport.subscriptions(), (1, 1), "what is not there is not listened to");
}
