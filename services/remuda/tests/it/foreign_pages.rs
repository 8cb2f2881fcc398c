//! Web pages that make their visitor's browser send requests to a server on loopback.

use bytes::Bytes;
use prost_reflect::prost::Message as _;
use remuda_domain::{Code, RunState};
use remuda_proto::{status::from_status, v1};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tonic::{Request, transport::Endpoint};

use crate::{
    api::{bash, noop, state, submission, submit, wait_for_end},
    harness::Dev,
    http_client::{HttpClient, HttpResponse, send, with_json},
    keyed_server::KeyedServer,
    raw_grpc::RawGrpc,
};

const SUBMIT: &str = "remuda.v1.RunService/SubmitRun";

#[track_caller]
fn assert_refused(response: &HttpResponse, code: &str, field: &str) {
    assert_eq!((response.status, response.error()), (StatusCode::FORBIDDEN, (code, field)), "{response:?}");
}

#[tokio::test]
async fn page_that_rebinds_its_name_runs_and_reads_nothing() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    let calls = json!({ "create_session": true, "tools": { "calls": [{ "tool": "Bash", "arguments": { "command": "touch /tmp/x" } }] } });
    for host in ["evil.example", "evil.example:7777", "127.0.0.1.evil.example"] {
        // To the browser the page and the server have the same origin.
        let request = with_json(web.request(Method::POST, "/sessions/s1/runs"), &calls)
            .header("host", host)
            .header("origin", format!("http://{host}"))
            .header("sec-fetch-site", "same-origin");
        assert_refused(&send(request).await, "host_not_allowed", "host");
        for path in ["/runs", "/sessions/s1/events", "//openapi.json", "//"] {
            let response = send(web.request(Method::GET, path).header("host", host)).await;
            assert_refused(&response, "host_not_allowed", "host");
            assert!(response.body["error"]["message"].as_str().unwrap().contains("server.allowed_hosts"));
        }
    }
    let health = send(web.request(Method::GET, "//healthz").header("host", "evil.example")).await;
    assert_eq!(health.status, StatusCode::OK);

    let channel = Endpoint::from_shared(dev.server.endpoint().to_owned()).unwrap();
    let channel = channel.origin("http://evil.example:7777".parse().unwrap()).connect().await.unwrap();
    let message: Bytes = submission("s1", vec![noop(0)]).encode_to_vec().into();
    let error = RawGrpc { channel }.expect_error(SUBMIT, Request::new(message)).await;
    assert_eq!((error.code(), error.field()), (Code::HostNotAllowed, Some("host")));
    assert!(dev.cli.json(&["runs", "list"]).await.is_empty(), "nothing may have been accepted");
}

#[tokio::test]
async fn page_of_another_site_changes_nothing() {
    let dev = Dev::start().await;
    let (web, client) = (HttpClient::new(dev.server.endpoint()), dev.client());
    let run = submit(&client, "s1", vec![noop(2000)]).await;
    let cancel = format!("/runs/{run}/cancel");
    // Requests that a page may send without asking: no body, a form, or plain text.
    for header in [("origin", "http://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")] {
        for body in
            [None, Some("application/x-www-form-urlencoded"), Some("text/plain"), Some("application/json")]
        {
            let mut request = web.request(Method::POST, &cancel).header(header.0, header.1);
            if let Some(media_type) = body {
                request = request.header("content-type", media_type).body("{}");
            }
            assert_refused(&send(request).await, "origin_not_allowed", header.0);
        }
        let read = web.request(Method::GET, "/runs").header(header.0, header.1);
        assert_refused(&send(read).await, "origin_not_allowed", header.0);
    }
    let plain = web.request(Method::POST, &cancel).header("content-type", "text/plain").body("{}");
    assert_eq!(send(plain).await.error(), ("unsupported_media_type", "content-type"));

    let grpc = RawGrpc::connect(dev.server.endpoint()).await;
    let cancel = v1::CancelRunRequest { run_id: run.clone(), ..Default::default() }.encode_to_vec();
    let mut request = Request::new(Bytes::from(cancel));
    request.metadata_mut().insert("origin", "http://evil.example".parse().unwrap());
    let status = grpc.unary("remuda.v1.RunService/CancelRun", request).await.unwrap_err();
    let error = from_status(&status);
    assert_eq!((error.code(), error.field()), (Code::OriginNotAllowed, Some("origin")));
    assert_eq!(state(&wait_for_end(&client, &run).await), RunState::Completed, "it was not cancelled");

    // The server's own page may.
    let run = submit(&client, "s2", vec![bash("sleep 600")]).await;
    let own = web
        .request(Method::POST, &format!("/runs/{run}/cancel"))
        .header("origin", dev.server.endpoint())
        .header("sec-fetch-site", "same-origin");
    assert!(send(own).await.status.is_success());
    assert_eq!(state(&wait_for_end(&client, &run).await), RunState::Cancelled);
}

#[tokio::test]
async fn allowed_hosts_and_origins_are_configured() {
    let settings =
        ["--set", "server.allowed_hosts=dev.test", "--set", "server.cors_origins=https://app.test"];
    let dev = Dev::start_with(&settings).await;
    let web = HttpClient::new(dev.server.endpoint());
    let get = |name: &'static str, value: &'static str| {
        let request = web.request(Method::GET, "/runs").header(name, value);
        async move { send(request).await.status }
    };
    assert_eq!(get("host", "dev.test:7777").await, StatusCode::OK);
    assert_eq!(get("host", "other.test").await, StatusCode::FORBIDDEN);
    assert_eq!(get("origin", "https://app.test").await, StatusCode::OK);
    assert_eq!(get("origin", "https://other.test").await, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn server_with_keys_checks_origins_of_changes_but_no_hosts() {
    let server = KeyedServer::start(&[]).await;
    let web = server.create_key("acme").await.web;
    let request = |method: Method, name: &'static str, value: &'static str| {
        let request = web.request(method.clone(), "/sessions").header(name, value);
        if method == Method::POST { with_json(request, &json!({})) } else { request }
    };
    assert_eq!(send(request(Method::POST, "host", "remuda.example.com")).await.status, StatusCode::CREATED);
    let foreign = send(request(Method::POST, "origin", "http://evil.example")).await;
    assert_refused(&foreign, "origin_not_allowed", "origin");
    assert_eq!(send(request(Method::GET, "origin", "http://evil.example")).await.status, StatusCode::OK);
}
