//! Malformed HTTP requests and misbehaving connections: the server answers or closes them and keeps serving.

use std::time::Duration;

use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    harness::{Dev, TIMEOUT},
    http_client::HttpClient,
};

async fn connect(dev: &Dev) -> TcpStream {
    TcpStream::connect(dev.server.endpoint().trim_start_matches("http://")).await.unwrap()
}

/// Sends bytes and reads the response until the server closes the connection.
async fn exchange_raw(dev: &Dev, bytes: &[u8]) -> String {
    let mut stream = connect(dev).await;
    // The server may close the connection before it has read everything.
    stream.write_all(bytes).await.ok();
    let mut answer = Vec::new();
    timeout(TIMEOUT, stream.read_to_end(&mut answer))
        .await
        .expect("the server neither answers nor closes the connection")
        .ok();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn malformed_http_requests_are_refused() {
    let dev = Dev::start().await;
    let close = "host: localhost\r\nconnection: close\r\n";
    for (request, begins) in [
        ("nonsense\r\n\r\n".to_owned(), "HTTP/1.1 400"),
        (format!("GET /../../etc/passwd HTTP/1.1\r\n{close}\r\n"), "HTTP/1.1 404"),
        (format!("GET //api/v1/sessions HTTP/1.1\r\n{close}\r\n"), "HTTP/1.1 404"),
        (format!("GET /healthz?{} HTTP/1.1\r\n{close}\r\n", "x".repeat(100_000)), "HTTP/1.1 4"),
        (format!("GET /healthz HTTP/1.1\r\n{close}{}\r\n", "x-flood: y\r\n".repeat(5000)), "HTTP/1.1 431"),
        (format!("GET /healthz HTTP/1.1\r\n{close}x-huge: {}\r\n\r\n", "x".repeat(1 << 20)), "HTTP/1.1 431"),
        (
            format!(
                "POST /api/v1/sessions HTTP/1.1\r\n{close}content-type: application/json\r\ncontent-length: 99999999999\r\n\r\n{{"
            ),
            "HTTP/1.1 413",
        ),
        (
            format!(
                "POST /api/v1/sessions HTTP/1.1\r\n{close}content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
            "HTTP/1.1 ",
        ),
    ] {
        let answer = exchange_raw(&dev, request.as_bytes()).await;
        assert!(answer.starts_with(begins), "{request:.60}: {answer:.200}");
    }
    let web = HttpClient::new(dev.server.endpoint());
    assert_eq!(web.get("//healthz").await.body["status"], "ok");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let dev = Dev::start().await;
    let request = |path: &str, last: bool| {
        let connection = if last { "close" } else { "keep-alive" };
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: {connection}\r\n\r\n")
    };
    let all = [request("/healthz", false), request("/nope", false), request("/readyz", true)].concat();
    let answer = exchange_raw(&dev, all.as_bytes()).await;
    let statuses: Vec<&str> =
        answer.match_indices("HTTP/1.1 ").map(|(at, _)| &answer[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["200", "404", "200"], "{answer}");
}

#[tokio::test]
async fn aborted_connections_release_their_resources() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    web.post("/sessions", &json!({ "name": "s1" })).await;
    for round in 0..300 {
        let mut stream = connect(&dev).await;
        let request: &[u8] = match round % 3 {
            0 => b"",
            1 => b"GET /api/v1/sess",
            _ => b"GET /api/v1/sessions/s1/events HTTP/1.1\r\nhost: localhost\r\n\r\n",
        };
        stream.write_all(request).await.unwrap();
    }
    // Their connections are closed: the server has no more open files than before.
    let files = || std::fs::read_dir(format!("/proc/{}/fd", dev.server.process.pid())).unwrap().count();
    remuda_testkit::wait_for("the connections to be closed", TIMEOUT, || std::future::ready(files() < 100))
        .await;
    assert_eq!(web.get("//healthz").await.body["status"], "ok");
}

#[tokio::test]
async fn stalled_reader_does_not_delay_other_readers() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    let text = "x".repeat(100_000);
    let call = json!({ "tool": "Bash", "arguments": { "command": format!("printf %s {text}") } });
    let mut stalled = connect(&dev).await;
    web.submit("s1", &json!([{ "tool": "noop" }])).await;
    stalled.write_all(b"GET /api/v1/sessions/s1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    // More than the buffers of the stalled connection hold.
    let mut runs = Vec::new();
    for _ in 0..100 {
        runs.push(web.submit("s1", &json!([call])).await);
    }
    let mut events = web.events("/sessions/s1/events", None).await;
    let (mut expected, mut ended) = (1, 0);
    while ended < runs.len() + 1 {
        let sent = timeout(TIMEOUT, events.next()).await.unwrap().unwrap();
        assert_eq!(sent.id, Some(expected));
        expected += 1;
        ended += usize::from(sent.event == "run.completed");
    }
    // The stalled reader gets every event too, once it reads.
    let last = format!("\nid: {}\n", expected - 1);
    let (mut text, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    let read = async {
        while !String::from_utf8_lossy(&text[text.len().saturating_sub(1 << 18)..]).contains(&last) {
            let count = stalled.read(&mut buffer).await.unwrap();
            assert_ne!(count, 0, "the stream ended");
            text.extend_from_slice(&buffer[..count]);
        }
    };
    timeout(TIMEOUT + Duration::from_secs(30), read).await.expect("the rest of the stream");
    let received = String::from_utf8_lossy(&text).matches("\nid: ").count();
    assert_eq!(received, usize::try_from(expected - 1).unwrap());
}
