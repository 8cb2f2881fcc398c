use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use remuda_client::{Client, ClientOptions, FollowItem, FollowOptions, Target};
use remuda_domain::{Code, Error};
use remuda_proto::{status::to_status, v1};
use tonic::Status;

use crate::server::{AfterEvents, Script, Server, event};

fn run() -> Target {
    Target::Run("run_1".into())
}

async fn cursors(client: &Client, after: i64) -> Vec<i64> {
    client.follow(run(), after).map_ok(|event| event.cursor).try_collect().await.unwrap()
}

fn events(range: std::ops::RangeInclusive<i64>) -> Vec<v1::Event> {
    range.map(|cursor| event(cursor, "tool.started")).collect()
}

#[tokio::test]
async fn resumes_after_every_kind_of_break_without_gap_or_repeat() {
    let mut last = events(6..=8);
    last.push(event(9, "run.completed"));
    last.push(event(10, "run.queued"));
    let server = Server::start(Script {
        subscriptions: [
            (events(1..=3), AfterEvents::Fail(Status::unavailable("going down"))),
            // Repeats events that were already handed out.
            (events(2..=5), AfterEvents::Fail(Status::unknown("proxy lost the trailers"))),
            (vec![], AfterEvents::Fail(Status::cancelled("reset"))),
            (events(5..=6), AfterEvents::End),
            (last, AfterEvents::Hang),
        ]
        .into(),
        ..Default::default()
    });
    assert_eq!(cursors(&server.client(), 0).await, (1..=9).collect::<Vec<_>>());
    assert_eq!(server.received().cursors, [0, 3, 5, 5, 6]);
    assert_eq!(server.received().infos, 1);
}

#[tokio::test]
async fn survives_a_killed_server() {
    let server = Server::start(Script {
        subscriptions: [
            (events(1..=2), AfterEvents::Hang),
            (vec![event(3, "run.failed")], AfterEvents::Hang),
        ]
        .into(),
        ..Default::default()
    });
    let mut stream = server.client().follow(run(), 0);
    assert_eq!(stream.next().await.unwrap().unwrap().cursor, 1);
    assert_eq!(stream.next().await.unwrap().unwrap().cursor, 2);
    let server = server.restart();
    assert_eq!(stream.next().await.unwrap().unwrap().cursor, 3);
    assert!(stream.next().await.is_none());
    assert_eq!(server.received().cursors, [0, 2]);
}

#[tokio::test]
async fn permanent_error_ends_the_stream_immediately() {
    let error = Error::new(Code::RunNotFound, "there is no such run");
    let server = Server::start(Script {
        subscriptions: [(vec![], AfterEvents::Fail(to_status(&error)))].into(),
        ..Default::default()
    });
    let mut stream = server.client().follow(run(), 0);
    assert_eq!(stream.next().await.unwrap().unwrap_err().code(), Code::RunNotFound);
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn gives_up_when_there_is_no_progress() {
    let server = Server::start(Script {
        subscriptions: vec![(vec![], AfterEvents::Fail(Status::unavailable("down"))); 1000].into(),
        ..Default::default()
    });
    let give_up_after = Duration::from_millis(300);
    let client = Client::connect(ClientOptions { give_up_after, ..server.options() }).unwrap();
    let error = client.follow(run(), 0).next().await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unavailable, "down"));
}

#[tokio::test]
async fn cursor_behind_the_end_of_the_run_gives_an_empty_stream() {
    let server = Server::start(Script {
        subscriptions: vec![(vec![], AfterEvents::End); 10].into(),
        run_state: v1::RunState::Completed,
        ..Default::default()
    });
    assert!(cursors(&server.client(), 9).await.is_empty());
}

#[tokio::test]
async fn events_are_read_from_the_reported_stream_endpoint_with_the_key() {
    let stream = Server::start(Script {
        subscriptions: [(vec![event(1, "run.completed")], AfterEvents::End)].into(),
        ..Default::default()
    });
    let main = Server::start(Script { stream_endpoint: stream.url(), ..Default::default() });
    let client =
        Client::connect(ClientOptions { api_key: Some("rmd_secret".into()), ..main.options() }).unwrap();
    assert_eq!(cursors(&client, 0).await, [1]);
    assert_eq!(stream.received().authorization.as_deref(), Some("Bearer rmd_secret"));
    assert!(main.received().cursors.is_empty());
    assert!(!format!("{:?}", client.options()).contains("secret\""));
}

#[tokio::test]
async fn requested_deltas_arrive_also_after_a_break() {
    let text_delta = |text: &str| v1::Delta { text: text.to_owned(), ..Default::default() };
    let script = || Script {
        subscriptions: [
            (events(1..=1), AfterEvents::Fail(Status::unavailable("going down"))),
            (vec![event(2, "run.completed")], AfterEvents::End),
        ]
        .into(),
        deltas: vec![text_delta("hel"), text_delta("lo")],
        ..Default::default()
    };
    let server = Server::start(script());
    let item: Vec<FollowItem> = server.client().follow_with_deltas(run(), 0).try_collect().await.unwrap();
    let delta = |text| FollowItem::Delta(text_delta(text));
    let happened = |cursor, name| FollowItem::Event(event(cursor, name));
    let once = [delta("hel"), delta("lo"), happened(1, "tool.started")];
    let again = [delta("hel"), delta("lo"), happened(2, "run.completed")];
    assert_eq!(item, [once, again].concat());
    assert_eq!(server.received().cursors, [0, 1]);
    assert_eq!(cursors(&Server::start(script()).client(), 0).await, [1, 2]);
}

/// An event of a descendant session.
fn descendants(session: &str, cursor: i64, name: &str) -> v1::Event {
    v1::Event { session_id: session.into(), run_id: format!("run_of_{session}"), ..event(cursor, name) }
}

#[tokio::test]
async fn every_descendant_session_is_resumed_at_its_cursor() {
    let server = Server::start(Script {
        subscriptions: [
            (
                vec![
                    event(1, "subagent.started"),
                    descendants("ses_a", 1, "run.queued"),
                    descendants("ses_b", 1, "run.queued"),
                    descendants("ses_a", 2, "run.completed"),
                    event(2, "tool.started"),
                ],
                AfterEvents::Fail(Status::unavailable("going down")),
            ),
            (
                vec![
                    // Handed out before, each in its session.
                    descendants("ses_a", 2, "run.completed"),
                    descendants("ses_b", 1, "run.queued"),
                    descendants("ses_b", 2, "run.completed"),
                    event(2, "tool.started"),
                    event(3, "run.completed"),
                ],
                AfterEvents::Hang,
            ),
        ]
        .into(),
        ..Default::default()
    });
    let options = FollowOptions { tree: true, ..FollowOptions::default() };
    let received: Vec<(String, i64)> = server
        .client()
        .follow_with(run(), options)
        .map_ok(|item| match item {
            FollowItem::Event(event) => (event.session_id, event.cursor),
            FollowItem::Delta(_) => panic!("deltas were not requested"),
        })
        .try_collect()
        .await
        .unwrap();
    let at = |session: &str, cursor| (session.to_owned(), cursor);
    let expected =
        [at("", 1), at("ses_a", 1), at("ses_b", 1), at("ses_a", 2), at("", 2), at("ses_b", 2), at("", 3)];
    assert_eq!(received, expected, "a terminal event of a descendant does not end the stream");
    assert_eq!(server.received().cursors, [0, 2]);
    let again = vec![at("ses_a", 2), at("ses_b", 1)];
    assert_eq!(server.received().tree_cursors, [Some(Vec::new()), Some(again)]);
}

#[tokio::test]
async fn descendant_sessions_are_not_requested_by_default() {
    let server = Server::start(Script {
        subscriptions: [(vec![event(1, "run.completed")], AfterEvents::End)].into(),
        ..Default::default()
    });
    assert_eq!(cursors(&server.client(), 0).await, [1]);
    assert_eq!(server.received().tree_cursors, [None]);
}
