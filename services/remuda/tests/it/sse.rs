//! Event streams over HTTP: server-sent events and long polls.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    harness::Dev,
    http_client::{HttpClient, SseEvent, cursors, send},
};

fn slow(count: usize) -> Value {
    json!(vec![json!({ "tool": "noop", "arguments": { "sleep_ms": 50 } }); count])
}

fn names(sent: &[SseEvent]) -> Vec<&str> {
    sent.iter().map(|sent| sent.event.as_str()).collect()
}

#[tokio::test]
async fn sse_stream_follows_a_run_to_its_end() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    let run = web.submit("s1", &slow(2)).await;
    let sent = web.events(&format!("/runs/{run}/events"), None).await.rest().await;
    let expected = [
        "run.queued",
        "run.started",
        "tool.started",
        "tool.completed",
        "tool.started",
        "tool.completed",
        "run.completed",
        "end",
    ];
    assert_eq!(names(&sent), expected);
    assert_eq!(cursors(&sent), [2, 3, 4, 5, 6, 7, 8]);
    let first = &sent[0];
    assert_eq!(
        (&first.data["cursor"], &first.data["type"], &first.data["run_id"]),
        (&json!(2), &json!("run.queued"), &json!(run))
    );
    assert_eq!(sent[7].data, json!({ "reason": "run_ended" }));

    // A reader that has every event gets 204, which stops the browser from reconnecting.
    let again = web.request(Method::GET, &format!("/runs/{run}/events")).header("last-event-id", 8);
    assert_eq!(send(again).await.status, StatusCode::NO_CONTENT);
    let rest = web.events(&format!("/runs/{run}/events?cursor=2"), Some(6)).await.rest().await;
    assert_eq!(cursors(&rest), [7, 8], "the header must take precedence over the query");
    let some = web.events(&format!("/runs/{run}/events?types=run.*"), None).await.rest().await;
    assert_eq!(names(&some), ["run.queued", "run.started", "run.completed", "end"]);
}

#[tokio::test]
async fn reconnecting_sse_reader_sees_every_event_once() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    let mut runs = Vec::new();
    for _ in 0..10 {
        runs.push(web.submit("s1", &slow(5)).await);
    }
    let (mut seen, mut ended) = (Vec::new(), 0);
    while ended < runs.len() {
        let last = seen.last().copied();
        let mut events = web.events("/sessions/s1/events", last).await;
        // A few events per connection.
        for _ in 0..7 {
            let sent = events.next().await.expect("a session's stream has no end");
            seen.push(sent.id.unwrap());
            ended += usize::from(sent.event == "run.completed");
            if ended == runs.len() {
                break;
            }
        }
    }
    let expected: Vec<i64> = (1..).take(seen.len()).collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn long_poll_waits_for_the_next_event() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    web.post("/sessions", &json!({ "name": "s1" })).await;
    let nothing = web.get("/sessions/s1/events?wait=100ms&cursor=1").await;
    assert_eq!(nothing.body, json!({ "items": [], "next_cursor": 1, "ended": false }));
    let waiting = web.get("/sessions/s1/events?wait=30s&cursor=1");
    let calls = slow(1);
    let (waited, run) = tokio::join!(waiting, web.submit("s1", &calls));
    assert_eq!(waited.body["items"][0]["type"], "run.queued");
    let (mut cursor, mut ended) = (0, false);
    let mut types = Vec::new();
    while !ended {
        let page = web.get(&format!("/runs/{run}/events?wait=30s&cursor={cursor}&types=run.*")).await.body;
        types.extend(page["items"].as_array().unwrap().iter().map(|event| event["type"].clone()));
        cursor = page["next_cursor"].as_i64().unwrap();
        ended = page["ended"].as_bool().unwrap();
    }
    assert_eq!(types, ["run.queued", "run.started", "run.completed"]);
}

#[tokio::test]
async fn tree_stream_includes_child_sessions() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    web.post("/sessions", &json!({ "name": "above" })).await;
    let below = web.post("/sessions", &json!({ "name": "below", "parent": "above" })).await.text("id");
    web.submit("below", &slow(1)).await;
    let mut events = web.raw_events("/sessions/above/events?tree=true", None).await;
    events.wait_for("event: run.completed").await;
    let last_id = events.text.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    assert_eq!(last_id, format!("1;{below}=6"));
    // Resuming from the last id repeats no event of any session.
    web.submit("above", &slow(1)).await;
    let mut events = web.raw_events("/sessions/above/events?tree=true", Some(&last_id)).await;
    events.wait_for("event: run.completed").await;
    let ids: Vec<&str> = events.text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    let expected: Vec<String> = (2..=6).map(|cursor| format!("{cursor};{below}=6")).collect();
    assert_eq!(ids, expected);
    let refused = web.get("/sessions/above/events?tree=true&wait=1s").await;
    assert_eq!(refused.error(), ("invalid_argument", "tree"));
}

#[tokio::test]
async fn invalid_stream_parameters_name_the_field() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    web.post("/sessions", &json!({ "name": "s1" })).await;
    for (query, status, code, field) in [
        ("cursor=99", 416, "cursor_out_of_range", "cursor"),
        ("cursor=-1", 400, "invalid_argument", "cursor"),
        ("cursor=x", 400, "invalid_argument", "cursor"),
        ("types=*", 400, "invalid_argument", "types"),
        ("wait=soon", 400, "invalid_argument", "wait"),
        ("tail=1", 400, "invalid_argument", "tail"),
    ] {
        let refused = web.get(&format!("/sessions/s1/events?{query}")).await;
        assert_eq!((refused.status.as_u16(), refused.error()), (status, (code, field)), "{query}");
    }
    let header = web.request(Method::GET, "/sessions/s1/events").header("last-event-id", "x");
    assert_eq!(send(header).await.error().1, "last-event-id");
    assert_eq!(web.get("/sessions/nobody/events").await.error().0, "session_not_found");
    assert_eq!(web.get("/runs/run_01m7kh0pd7e02vaeqpheeqscxy/events").await.error().0, "run_not_found");
}

#[tokio::test]
async fn stream_end_names_its_reason() {
    let mut dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    for name in ["gone", "kept"] {
        web.post("/sessions", &json!({ "name": name })).await;
    }
    let mut gone = web.events("/sessions/gone/events", None).await;
    assert_eq!(gone.next().await.unwrap().event, "session.created");
    let deleted = send(web.request(Method::DELETE, "/sessions/gone")).await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT);
    let last = gone.next().await.unwrap();
    assert_eq!((last.event.as_str(), &last.data["error"]["code"]), ("error", &json!("session_not_found")));
    assert_eq!(gone.next().await, None);

    let mut kept = web.events("/sessions/kept/events", None).await;
    assert_eq!(kept.next().await.unwrap().event, "session.created");
    dev.server.process.signal(nix::sys::signal::Signal::SIGTERM);
    let last = kept.next().await.unwrap();
    assert_eq!((last.event.as_str(), &last.data["error"]["code"]), ("goodbye", &json!("unavailable")));
    assert_eq!(kept.next().await, None);
    assert_eq!(dev.server.process.exit_code().await, 0);
}
