//! Invalid keys are slowed down, counted and logged; revoked keys end requests that wait.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use remuda_domain::{Code, RunState};
use remuda_proto::v1;
use remuda_testkit::wait_for;
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::time::timeout;
use tonic::Request;

use crate::{
    api::{noop, state, submission, submit},
    harness::TIMEOUT,
    http_client::{HttpClient, HttpResponse, send, with_json},
    keyed_server::KeyedServer,
    raw_grpc::RawGrpc,
    scrape::Scrape,
};

async fn wrong_key(server: &KeyedServer, number: usize) -> HttpResponse {
    let web = HttpClient::new(server.endpoint()).with_key(&format!("rmd_{number:064x}"));
    web.get("/runs").await
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_keys_are_slowed_counted_and_logged_but_lock_nobody_out() {
    let server = KeyedServer::start(&[]).await;
    let used = server.create_key("acme").await;
    assert_eq!(used.web.get("/runs").await.status, StatusCode::OK);
    let unused = server.create_key("other").await;

    let attempts = stream::iter(0..500).map(|number| wrong_key(&server, number)).buffer_unordered(16);
    let answers: Vec<HttpResponse> = attempts.collect().await;
    let limited: Vec<&HttpResponse> =
        answers.iter().filter(|it| it.status == StatusCode::TOO_MANY_REQUESTS).collect();
    // 20 at once, then one per second.
    let slow = usize::try_from(TIMEOUT.as_secs()).unwrap();
    assert!(limited.len() >= 500 - 20 - slow && limited.len() <= 480, "{} of 500 are limited", limited.len());
    for answer in &answers {
        let code = if answer.status == StatusCode::UNAUTHORIZED {
            "unauthenticated"
        } else {
            "authentication_limit"
        };
        assert_eq!(answer.error().0, code);
    }
    assert!(limited.iter().all(|it| it.headers.contains_key("retry-after")));

    // gRPC and streams share the limit.
    let grpc = RawGrpc::connect(server.endpoint()).await;
    for method in ["remuda.v1.RunService/ListRuns", "remuda.v1.StreamService/Subscribe"] {
        let mut request = Request::new(Bytes::new());
        request.metadata_mut().insert("authorization", "Bearer rmd_wrong".parse().unwrap());
        let error = grpc.expect_error(method, request).await;
        assert_eq!(error.code(), Code::AuthenticationLimit, "{method}");
        assert!(error.retry_delay().is_some());
    }

    // Tenants behind the same address work, also with a key that this server has not seen before, while it goes on.
    let flood = stream::iter(500..2000).map(|number| wrong_key(&server, number)).buffer_unordered(16).count();
    let work = async {
        for _ in 0..20 {
            for key in [&used, &unused] {
                assert_eq!(key.web.get("/runs").await.status, StatusCode::OK);
            }
        }
        assert_eq!(unused.cli.run(&["run", "--tool", "noop"]).await.code, 0);
    };
    tokio::join!(flood, work);

    let scrape = Scrape::fetch(server.metrics()).await;
    let counted = |reason| scrape.sum("remuda_auth_failures_total", &[("reason", reason)]);
    assert_eq!(counted("unknown") + counted("limited"), 2002.0);
    let log = server.dev.server.process.stderr();
    let lines = log.matches("invalid API keys were refused").count();
    assert!((1..=20).contains(&lines), "{lines} lines");
    assert!(log.contains("127.0.0.1") && !log.contains("rmd_"), "{log}");
}

#[tokio::test]
async fn forwarded_addresses_count_separately_behind_trusted_proxies() {
    let server = KeyedServer::start(&["server.trusted_proxies=1"]).await;
    let attempt = async |client: &str| {
        let request = HttpClient::new(server.endpoint()).with_key("rmd_wrong").request(Method::GET, "/runs");
        // The first address is what the client claims.
        send(request.header("x-forwarded-for", format!("6.6.6.6, {client}"))).await.status
    };
    for _ in 0..20 {
        assert_eq!(attempt("192.0.2.1").await, StatusCode::UNAUTHORIZED);
    }
    let mut last = StatusCode::OK;
    for _ in 0..5 {
        last = attempt("192.0.2.1").await;
    }
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(attempt("192.0.2.2").await, StatusCode::UNAUTHORIZED);
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_key_ends_requests_that_wait() {
    let server = KeyedServer::start(&[]).await;
    let (revoked, other) = (server.create_key("acme").await, server.create_key("acme").await);
    let (client, web) = (revoked.cli.client(), &revoked.web);
    // Longer than everything below may take.
    let run = submit(&client, "s1", vec![noop(50_000)]).await;
    let body = json!({ "create_session": true, "tools": { "calls": [{ "tool": "noop", "arguments": { "sleep_ms": 50_000 } }] } });

    let started = async || web.get("/sessions/s1/events?wait=0s").await.body["next_cursor"] == 4;
    wait_for("the run's tool to start", TIMEOUT, started).await;
    let path = format!("/runs/{run}/wait?timeout=120s");
    let http_wait = web.get(&path);
    let http_submit = send(with_json(web.request(Method::POST, "/sessions/s2/runs?wait=120s"), &body));
    let poll = web.get("/sessions/s1/events?cursor=4&wait=60s");
    let grpc_wait = async { client.wait_run(&run, Duration::from_secs(120)).await.map(drop).unwrap_err() };
    let grpc_submit = async {
        let wait = Some(Duration::from_secs(120).try_into().unwrap());
        let request = v1::SubmitRunRequest { wait, ..submission("s3", vec![noop(50_000)]) };
        client.submit(request).await.map(drop).unwrap_err()
    };
    let revoke = async {
        let submitted = async || other.cli.json(&["runs", "list"]).await.len() == 3;
        wait_for("the runs to be submitted", TIMEOUT, submitted).await;
        server.revoke("acme", &revoked).await;
    };
    let all = async { tokio::join!(http_wait, http_submit, poll, grpc_wait, grpc_submit, revoke) };
    let (one, two, three, four, five, ()) =
        timeout(Duration::from_secs(40), all).await.expect("a wait goes on");
    for answer in [one, two, three] {
        assert_eq!((answer.status, answer.error().0), (StatusCode::UNAUTHORIZED, "unauthenticated"));
        assert!(answer.body["error"]["message"].as_str().unwrap().contains("revoked"), "{answer:?}");
    }
    for error in [four, five] {
        assert_eq!(error.code(), Code::Unauthenticated);
        assert!(error.message().contains("revoked"), "{error}");
    }
    // The runs go on: they belong to the tenant.
    let found =
        other.cli.client().get_run(v1::GetRunRequest { run_id: run.clone() }).await.unwrap().run.unwrap();
    assert_eq!(state(&found), RunState::Running);
}
