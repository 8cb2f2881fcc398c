//! Bodies that stall: the memory that they take is limited, and comes back.

use std::{fs, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use remuda_domain::Code;
use remuda_proto::status::from_status;
use remuda_testkit::wait_for;
use reqwest::StatusCode;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_util::task::TaskTracker;
use tonic::{Status, codegen::Service as _};

use crate::{
    harness::TIMEOUT,
    keyed_server::{Key, KeyedServer},
    raw_grpc::RawGrpc,
    scrape::Scrape,
};

const MIB: usize = 1 << 20;
const TENANT_BUDGET: usize = 32 * MIB;
const SETTINGS: [&str; 3] =
    ["server.body_memory=64MiB", "server.body_memory_per_tenant=32MiB", "server.body_timeout=5s"];

/// Sends the beginning of a body of 15 MiB.
async fn begin_body(server: &KeyedServer, key: &Key, bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.endpoint().trim_start_matches("http://")).await.unwrap();
    let head = format!(
        "POST /api/v1/sessions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{{\"name\": \"",
        key.secret,
        15 * MIB
    );
    // The server may refuse it before it has read everything.
    stream.write_all(head.as_bytes()).await.ok();
    stream.write_all(&vec![b'x'; bytes]).await.ok();
    stream
}

async fn response(mut stream: TcpStream) -> String {
    let mut response = Vec::new();
    timeout(TIMEOUT, stream.read_to_end(&mut response)).await.expect("no response").ok();
    String::from_utf8_lossy(&response).into_owned()
}

async fn held(server: &KeyedServer) -> f64 {
    Scrape::fetch(server.metrics()).await.sum("remuda_request_body_memory_bytes", &[])
}

fn resident_bytes(server: &KeyedServer) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.dev.server.process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_bodies_take_bounded_memory_and_disturb_no_other_tenant() {
    let server = KeyedServer::start(&SETTINGS).await;
    let (hostile, other) = (server.create_key("hostile").await, server.create_key("other").await);
    other.web.submit("before", &json!([{ "tool": "noop" }])).await;
    let before = resident_bytes(&server);
    let mut stalled = Vec::new();
    for _ in 0..30 {
        stalled.push(begin_body(&server, &hostile, 4 * MIB).await);
    }
    wait_for("the bodies to be read", TIMEOUT, async || held(&server).await >= 0.8 * TENANT_BUDGET as f64)
        .await;
    // Another tenant goes on, also with large bodies.
    other.web.submit("meanwhile", &json!([{ "tool": "noop" }])).await;
    let text = "x".repeat(10 * MIB);
    let large = json!([{ "tool": "noop", "arguments": { "note": text } }]);
    let body = json!({ "create_session": true, "tools": { "calls": large } });
    let large = other.web.post("/sessions/large/runs", &body).await;
    assert_ne!(large.status, StatusCode::TOO_MANY_REQUESTS, "{large:?}");
    let now = held(&server).await;
    assert!(now <= TENANT_BUDGET as f64, "{now} bytes are held");
    let taken = resident_bytes(&server).saturating_sub(before);
    assert!(taken < 8 * TENANT_BUDGET, "the process took {taken} bytes");

    let mut refused = 0;
    for stream in stalled {
        let response = response(stream).await;
        if response.contains("server.body_memory_per_tenant") {
            assert!(
                response.starts_with("HTTP/1.1 429") && response.contains("\r\nretry-after: 1"),
                "{response}"
            );
            assert!(response.contains("\"code\":\"overloaded\""), "{response}");
            refused += 1;
        } else {
            let timed_out = response.starts_with("HTTP/1.1 504") && response.contains("the body stalled");
            assert!(timed_out, "{response}");
        }
    }
    assert!(refused > 0, "no body was refused");
    wait_for("the memory to be released", TIMEOUT, async || held(&server).await == 0.0).await;
    hostile.web.submit("after", &json!([{ "tool": "noop" }])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_sends_a_whole_body_reads_why_it_was_refused() {
    let server = KeyedServer::start(&SETTINGS).await;
    let key = server.create_key("acme").await;
    let mut stalled = Vec::new();
    for _ in 0..3 {
        stalled.push(begin_body(&server, &key, 10 * MIB).await);
    }
    wait_for("the bodies to be read", TIMEOUT, async || held(&server).await >= 29.0 * MIB as f64).await;
    let body = json!({ "name": "x".repeat(12 * MIB) });
    let refused = key.web.post("/sessions", &body).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::TOO_MANY_REQUESTS, ("overloaded", "body")));
    assert_eq!(refused.headers["retry-after"], "1");
    drop(stalled);
    wait_for("the memory to be released", TIMEOUT, async || held(&server).await == 0.0).await;
    assert_eq!(key.web.post("/sessions", &body).await.error().0, "invalid_argument", "a name of 12 MiB");
}

#[tokio::test]
async fn request_without_a_key_is_refused_before_its_body_is_read() {
    let server = KeyedServer::start(&SETTINGS).await;
    let mut stranger = server.create_key("stranger").await;
    stranger.secret = "rmd_wrong".to_owned();
    let stream = begin_body(&server, &stranger, 1).await;
    let answer = response(stream).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // The same over gRPC: the body never ends, and a call without a caller has a small one.
    for (method, code) in [
        ("remuda.v1.RunService/SubmitRun", Code::Unauthenticated),
        ("remuda.v1.MetaService/GetServerInfo", Code::TooLarge),
    ] {
        assert_eq!(stall_grpc(&server, method, None).await.code(), code, "{method}");
    }
    assert_eq!(held(&server).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_grpc_messages_take_bounded_memory() {
    let server = KeyedServer::start(&SETTINGS).await;
    let (hostile, other) = (server.create_key("hostile").await, server.create_key("other").await);
    let tasks = TaskTracker::new();
    let (server, hostile) = (std::sync::Arc::new(server), std::sync::Arc::new(hostile));
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let (server, hostile) = (std::sync::Arc::clone(&server), std::sync::Arc::clone(&hostile));
            tasks.spawn(async move {
                let method = "remuda.v1.RunService/SubmitRun";
                stall_grpc(&server, method, Some(&hostile)).await
            })
        })
        .collect();
    wait_for("the messages to be read", TIMEOUT, async || held(&server).await >= 0.8 * TENANT_BUDGET as f64)
        .await;
    assert_eq!(other.cli.run(&["run", "--tool", "noop"]).await.code, 0, "another tenant must be served");
    let mut refused = 0;
    for call in calls {
        let error = timeout(TIMEOUT, call).await.expect("no response").unwrap();
        match error.code() {
            Code::Overloaded => {
                assert!(error.message().contains("server.body_memory_per_tenant"), "{error}");
                assert_eq!(error.retry_delay(), Some(Duration::from_secs(1)));
                refused += 1;
            }
            code => assert_eq!(code, Code::DeadlineExceeded, "{error}"),
        }
    }
    assert!(refused > 0, "no message was refused");
    wait_for("the memory to be released", TIMEOUT, async || held(&server).await == 0.0).await;
}

/// Sends 4 MiB of a message of 15 MiB and then nothing. Returns the error of the call.
async fn stall_grpc(server: &KeyedServer, method: &str, key: Option<&Key>) -> remuda_domain::Error {
    let mut channel = RawGrpc::connect(server.endpoint()).await.channel;
    let length = u32::try_from(15 * MIB).unwrap().to_be_bytes();
    let frame = Bytes::from([&[0][..], &length].concat());
    let pieces = std::iter::once(frame).chain((0..64).map(|_| Bytes::from(vec![0; MIB / 16])));
    let body = stream::iter(pieces.map(Ok::<_, Status>)).chain(stream::pending());
    let mut request = tonic::codegen::http::Request::post(format!("{}/{method}", server.endpoint()))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {}", key.secret));
    }
    let body = tonic::body::Body::new(axum::body::Body::from_stream(body));
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let response = timeout(TIMEOUT, channel.call(request.body(body).unwrap())).await.expect("no response");
    let status = match response {
        Ok(response) => Status::from_header_map(response.headers()).expect("an error"),
        Err(error) => Status::from_error(error.into()),
    };
    from_status(&status)
}
