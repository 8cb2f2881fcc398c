use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use remuda_client::{Client, ClientOptions, Followed, Following, Target};
use remuda_domain::{Code, Error};
use remuda_proto::{status::to_status, v1};
use tonic::Status;

use crate::server::{Script, Server, Then, event};

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
async fn resumes_after_every_kind_of_break_without_hole_or_repeat() {
    let mut last = events(6..=8);
    last.push(event(9, "run.completed"));
    last.push(event(10, "run.queued"));
    let server = Server::start(Script {
        subscriptions: [
            (events(1..=3), Then::Fail(Status::unavailable("going down"))),
            // Repeats what was already given out.
            (events(2..=5), Then::Fail(Status::unknown("proxy lost the trailers"))),
            (vec![], Then::Fail(Status::cancelled("reset"))),
            (events(5..=6), Then::End),
            (last, Then::Hang),
        ]
        .into(),
        ..Default::default()
    });
    assert_eq!(cursors(&server.client(), 0).await, (1..=9).collect::<Vec<_>>());
    assert_eq!(server.seen().cursors, [0, 3, 5, 5, 6]);
    assert_eq!(server.seen().infos, 1);
}

#[tokio::test]
async fn survives_a_killed_server() {
    let server = Server::start(Script {
        subscriptions: [(events(1..=2), Then::Hang), (vec![event(3, "run.failed")], Then::Hang)].into(),
        ..Default::default()
    });
    let mut stream = server.client().follow(run(), 0);
    assert_eq!(stream.next().await.unwrap().unwrap().cursor, 1);
    assert_eq!(stream.next().await.unwrap().unwrap().cursor, 2);
    let server = server.restart();
    assert_eq!(stream.next().await.unwrap().unwrap().cursor, 3);
    assert!(stream.next().await.is_none());
    assert_eq!(server.seen().cursors, [0, 2]);
}

#[tokio::test]
async fn a_lasting_error_ends_the_stream_at_once() {
    let error = Error::new(Code::RunNotFound, "there is no such run");
    let server = Server::start(Script {
        subscriptions: [(vec![], Then::Fail(to_status(&error)))].into(),
        ..Default::default()
    });
    let mut stream = server.client().follow(run(), 0);
    assert_eq!(stream.next().await.unwrap().unwrap_err().code(), Code::RunNotFound);
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn gives_up_when_there_is_no_progress() {
    let server = Server::start(Script {
        subscriptions: vec![(vec![], Then::Fail(Status::unavailable("down"))); 1000].into(),
        ..Default::default()
    });
    let give_up_after = Duration::from_millis(300);
    let client = Client::connect(ClientOptions { give_up_after, ..server.options() }).unwrap();
    let error = client.follow(run(), 0).next().await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unavailable, "down"));
}

#[tokio::test]
async fn a_cursor_behind_the_end_of_the_run_gives_an_empty_stream() {
    let server = Server::start(Script {
        subscriptions: vec![(vec![], Then::End); 10].into(),
        run_state: v1::RunState::Completed,
        ..Default::default()
    });
    assert!(cursors(&server.client(), 9).await.is_empty());
}

#[tokio::test]
async fn events_come_from_where_the_server_says_and_with_the_key() {
    let stream = Server::start(Script {
        subscriptions: [(vec![event(1, "run.completed")], Then::End)].into(),
        ..Default::default()
    });
    let main = Server::start(Script { stream_endpoint: stream.url(), ..Default::default() });
    let client =
        Client::connect(ClientOptions { api_key: Some("rmd_secret".into()), ..main.options() }).unwrap();
    assert_eq!(cursors(&client, 0).await, [1]);
    assert_eq!(stream.seen().authorization.as_deref(), Some("Bearer rmd_secret"));
    assert!(main.seen().cursors.is_empty());
    assert!(!format!("{:?}", client.options()).contains("secret\""));
}

#[tokio::test]
async fn pieces_of_messages_come_to_those_who_ask_also_after_a_break() {
    let piece = |text: &str| v1::Delta { text: text.to_owned(), ..Default::default() };
    let script = || Script {
        subscriptions: [
            (events(1..=1), Then::Fail(Status::unavailable("going down"))),
            (vec![event(2, "run.completed")], Then::End),
        ]
        .into(),
        deltas: vec![piece("hel"), piece("lo")],
        ..Default::default()
    };
    let server = Server::start(script());
    let followed: Vec<Followed> = server.client().follow_with_deltas(run(), 0).try_collect().await.unwrap();
    let said = |text| Followed::Delta(piece(text));
    let happened = |cursor, name| Followed::Event(event(cursor, name));
    let once = [said("hel"), said("lo"), happened(1, "tool.started")];
    let again = [said("hel"), said("lo"), happened(2, "run.completed")];
    assert_eq!(followed, [once, again].concat());
    assert_eq!(server.seen().cursors, [0, 1]);
    assert_eq!(cursors(&Server::start(script()).client(), 0).await, [1, 2]);
}

/// An event of a session below.
fn below(session: &str, cursor: i64, name: &str) -> v1::Event {
    v1::Event { session_id: session.into(), run_id: format!("run_of_{session}"), ..event(cursor, name) }
}

#[tokio::test]
async fn every_session_below_is_resumed_where_it_was() {
    let server = Server::start(Script {
        subscriptions: [
            (
                vec![
                    event(1, "subagent.started"),
                    below("ses_a", 1, "run.queued"),
                    below("ses_b", 1, "run.queued"),
                    below("ses_a", 2, "run.completed"),
                    event(2, "tool.started"),
                ],
                Then::Fail(Status::unavailable("going down")),
            ),
            (
                vec![
                    // Given out before, each in its session.
                    below("ses_a", 2, "run.completed"),
                    below("ses_b", 1, "run.queued"),
                    below("ses_b", 2, "run.completed"),
                    event(2, "tool.started"),
                    event(3, "run.completed"),
                ],
                Then::Hang,
            ),
        ]
        .into(),
        ..Default::default()
    });
    let following = Following { tree: true, ..Following::default() };
    let seen: Vec<(String, i64)> = server
        .client()
        .follow_by(run(), following)
        .map_ok(|followed| match followed {
            Followed::Event(event) => (event.session_id, event.cursor),
            Followed::Delta(_) => panic!("nobody asked for deltas"),
        })
        .try_collect()
        .await
        .unwrap();
    let at = |session: &str, cursor| (session.to_owned(), cursor);
    let expected =
        [at("", 1), at("ses_a", 1), at("ses_b", 1), at("ses_a", 2), at("", 2), at("ses_b", 2), at("", 3)];
    assert_eq!(seen, expected, "a terminal event below does not end the stream");
    assert_eq!(server.seen().cursors, [0, 2]);
    let again = vec![at("ses_a", 2), at("ses_b", 1)];
    assert_eq!(server.seen().tree_cursors, [Some(Vec::new()), Some(again)]);
}

#[tokio::test]
async fn who_does_not_ask_for_the_sessions_below_does_not_get_them() {
    let server = Server::start(Script {
        subscriptions: [(vec![event(1, "run.completed")], Then::End)].into(),
        ..Default::default()
    });
    assert_eq!(cursors(&server.client(), 0).await, [1]);
    assert_eq!(server.seen().tree_cursors, [None]);
}
