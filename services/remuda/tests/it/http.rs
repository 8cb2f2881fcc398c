//! The HTTP API as clients use it.

use remuda_testkit::wait_for;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    harness::{Dev, TIMEOUT},
    http_client::{HttpClient, send, with_json},
};

fn noop() -> Value {
    json!([{ "tool": "noop" }])
}

#[tokio::test]
async fn sessions_and_runs_are_managed_over_http() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    let made = web.post("/sessions", &json!({ "name": "s1", "title": "first" })).await;
    assert_eq!(made.status, StatusCode::CREATED);
    let id = made.text("id");
    assert_eq!(made.headers["location"], format!("/api/v1/sessions/{id}"));
    let again = web.post("/sessions", &json!({ "name": "s1" })).await;
    assert_eq!((again.status, again.error().0), (StatusCode::CONFLICT, "already_exists"));

    let run =
        web.submit("s1", &json!([{ "tool": "Bash", "arguments": { "command": "echo $((6*7))" } }])).await;
    let waited = web.get(&format!("/runs/{run}/wait?timeout=30s")).await;
    assert_eq!((waited.status, &waited.body["finished"]), (StatusCode::OK, &json!(true)));
    assert_eq!(waited.body["run"]["outcomes"][0]["output"]["stdout"], "42\n");
    let steps = web.get(&format!("/runs/{run}/steps")).await;
    assert_eq!(steps.body["items"][0]["call"]["arguments"], json!({ "command": "echo $((6*7))" }));
    let explained = web.get(&format!("/runs/{run}/explain")).await;
    assert_eq!(explained.body["reason"], "finished");
    let over = web.post(&format!("/runs/{run}/cancel"), &json!({})).await;
    assert_eq!((over.status, &over.body["state"]), (StatusCode::OK, &json!("completed")));

    // A run that waits behind another is in the queue. Cancel needs no request body.
    let long = web.submit("s1", &json!([{ "tool": "noop", "arguments": { "sleep_ms": 60_000 } }])).await;
    let behind = web.submit("s1", &noop()).await;
    let queue = web.get("/sessions/s1/queue").await;
    let ids: Vec<&Value> = queue.body["items"].as_array().unwrap().iter().map(|run| &run["id"]).collect();
    assert_eq!(ids, [&json!(long), &json!(behind)]);
    let busy = send(web.request(Method::DELETE, "/sessions/s1")).await;
    assert_eq!((busy.status, busy.error().0), (StatusCode::CONFLICT, "session_busy"));
    // Before a worker has claimed the run, a cancel would end it at once.
    wait_for("the run to execute", TIMEOUT, || async {
        web.get(&format!("/runs/{long}")).await.body["state"] == "running"
    })
    .await;
    let cancelled = send(web.request(Method::POST, "/sessions/s1/cancel")).await;
    assert_eq!(cancelled.status, StatusCode::ACCEPTED);
    assert_eq!(cancelled.body["ended_run_ids"], json!([behind]));
    assert_eq!(cancelled.body["requested_run_ids"], json!([long]));

    // gRPC shows the same run.
    assert_eq!(dev.cli.one(&["runs", "show", &run]).await["state"], "completed");
}

#[tokio::test]
async fn truncated_output_is_available_as_an_artifact() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    let run =
        web.submit("s1", &json!([{ "tool": "Bash", "arguments": { "command": "seq 1 400000" } }])).await;
    web.get(&format!("/runs/{run}/wait")).await;
    let files = web.get(&format!("/runs/{run}/artifacts")).await;
    let file = &files.body["items"][0];
    assert_eq!((&file["tool"], &file["name"]), (&json!("Bash"), &json!("stdout")), "{files:?}");
    let url = file["url"].as_str().unwrap().strip_prefix("/api/v1").unwrap();
    let whole = web.get(url).await;
    let text: String = (1..=400_000).map(|number| format!("{number}\n")).collect();
    assert_eq!((whole.status, whole.body == Value::String(text)), (StatusCode::OK, true));
    let missing = web.get(&format!("{url}x")).await;
    assert_eq!((missing.status, missing.error().0), (StatusCode::NOT_FOUND, "file_not_found"));
}

#[tokio::test]
async fn pagination_returns_every_item_once_and_ends() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    let mut made = Vec::new();
    for number in 0..7 {
        made.push(web.post("/sessions", &json!({ "name": format!("s{number}") })).await.text("id"));
    }
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page = web.get(&format!("/sessions?page_size=3&page_token={token}")).await;
        let items = page.body["items"].as_array().unwrap();
        seen.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
        match page.body.get("next_page_token") {
            Some(next) => token = next.as_str().unwrap().to_owned(),
            None => break,
        }
    }
    seen.reverse();
    assert_eq!(seen, made);
    let closed = web.get("/sessions?status=closed").await;
    assert_eq!(closed.body, json!({ "items": [] }));
    for (query, field) in [
        ("page_size=501", "page_size"),
        ("page_size=x", "page_size"),
        ("page_token=x", "page_token"),
        ("status=ajar", "status"),
        ("size=3", "size"),
    ] {
        let refused = web.get(&format!("/sessions?{query}")).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::BAD_REQUEST, ("invalid_argument", field)));
    }
}

#[tokio::test]
async fn idempotency_keys_deduplicate_and_etags_detect_concurrent_edits() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    let submit = |key: &'static str, sleep: u64| {
        let body = json!({ "create_session": true, "tools": { "calls": [{ "tool": "noop", "arguments": { "sleep_ms": sleep } }] } });
        let request = web.request(Method::POST, "/sessions/s1/runs").header("idempotency-key", key);
        send(with_json(request, &body))
    };
    let (first, second, other) = (submit("k", 0).await, submit("k", 0).await, submit("k", 1).await);
    assert_eq!(first.body["deduplicated"], false);
    assert_eq!((&second.body["deduplicated"], second.text("run_id")), (&json!(true), first.text("run_id")));
    assert_eq!((other.status, other.error().0), (StatusCode::CONFLICT, "idempotency_conflict"));
    assert_eq!(submit("", 0).await.error().1, "idempotency-key");

    let edit = |tag: &str, title: &str| {
        let request = web.request(Method::PATCH, "/sessions/s1").header("if-match", tag);
        send(with_json(request, &json!({ "title": title })))
    };
    let seen = web.get("/sessions/s1").await.headers["etag"].to_str().unwrap().to_owned();
    // Runs do not change the ETag; an edit does.
    web.submit("s1", &noop()).await;
    let mine = edit(&seen, "mine").await;
    assert_eq!((mine.status, mine.text("title")), (StatusCode::OK, "mine".to_owned()));
    let late = edit(&seen, "theirs").await;
    assert_eq!((late.status, late.error().0), (StatusCode::PRECONDITION_FAILED, "precondition_failed"));
    assert_eq!(edit(mine.headers["etag"].to_str().unwrap(), "ours").await.status, StatusCode::OK);
}

#[tokio::test]
async fn invalid_http_requests_name_the_field() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    for (path, body, code, field) in [
        ("/sessions", json!({ "nam": "x" }), "invalid_argument", "nam"),
        ("/sessions", json!({ "name": 5 }), "invalid_argument", "name"),
        ("/sessions", json!({ "name": "x".repeat(300) }), "invalid_argument", "name"),
        ("/sessions", json!([]), "invalid_argument", "body"),
        ("/sessions/s1/runs", json!({}), "invalid_argument", "tools"),
        (
            "/sessions/s1/runs",
            json!({ "tools": { "calls": [{ "tool": "nope" }] } }),
            "unknown_tool",
            "tools.calls[0].tool",
        ),
        (
            "/sessions/s1/runs",
            json!({ "tools": { "calls": [{ "tool": "noop", "arguments": 1 }] } }),
            "invalid_argument",
            "tools.calls[0].arguments",
        ),
        (
            "/sessions/s1/runs",
            json!({ "tools": { "calls": [{ "tool": "noop" }] }, "timeout_ms": 0 }),
            "invalid_argument",
            "timeout_ms",
        ),
        (
            "/sessions/s1/messages",
            json!({ "text": "hi", "images": [{ "data": "?" }] }),
            "invalid_argument",
            "images[0].data",
        ),
    ] {
        let refused = web.post(path, &body).await;
        assert_eq!(
            (refused.status, refused.error()),
            (StatusCode::BAD_REQUEST, (code, field)),
            "{path} {body}"
        );
    }
    for (path, status, code) in [
        ("/sessions/nobody", 404, "session_not_found"),
        ("/runs/run_01m7kh0pd7e02vaeqpheeqscxy", 404, "run_not_found"),
        ("/runs/x", 400, "invalid_argument"),
        ("/nothing", 404, "not_found"),
        ("/sessions/%2e%2e%2fhealthz", 404, "session_not_found"),
        ("/sessions/%ff", 400, "invalid_argument"),
        ("//api/v2/sessions", 404, "not_found"),
    ] {
        let refused = web.get(path).await;
        assert_eq!((refused.status.as_u16(), refused.error().0), (status, code), "{path}");
    }
    let method = send(web.request(Method::PUT, "/sessions")).await;
    assert_eq!((method.status, method.error().0), (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"));
    assert_eq!(method.headers["allow"], "GET,HEAD,POST");
    let form = web.request(Method::POST, "/sessions").header("content-type", "text/plain").body("{}");
    let form = send(form).await;
    assert_eq!(
        (form.status, form.error()),
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, ("unsupported_media_type", "content-type"))
    );
    let large = web.request(Method::POST, "/sessions").header("content-type", "application/json");
    let large = send(large.body(vec![b' '; remuda_domain::limits::MAX_MESSAGE_BYTES + 1])).await;
    assert_eq!((large.status, large.error()), (StatusCode::PAYLOAD_TOO_LARGE, ("too_large", "body")));
}

#[tokio::test]
async fn openapi_docs_and_health_are_served() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    let api = web.get("//openapi.json").await.body;
    assert_eq!(api["openapi"], "3.1.0");
    let paths = api["paths"].as_object().unwrap();
    for path in ["/api/v1/sessions/{session}/messages", "/api/v1/runs/{run_id}/events", "/readyz"] {
        assert!(paths.contains_key(path), "{path} is not described");
    }
    // Every schema reference resolves.
    let text = api.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(api["components"]["schemas"].get(name).is_some(), "{name} is not described");
    }
    let docs = web.get("//docs").await;
    let page = docs.body.as_str().unwrap();
    assert!(
        page.contains("/openapi.json") && !page.contains("https://"),
        "the page must load nothing from other hosts"
    );
    assert_eq!(web.get("//").await.body, docs.body, "the root leads to the documentation");
    assert_eq!(web.get("//readyz").await.body["status"], "ready");
    assert_eq!(web.get("//healthz").await.body, json!({ "status": "ok" }));
    assert_eq!(web.get("").await.body["mode"], "embedded");
}

#[tokio::test]
async fn cors_allows_only_configured_origins() {
    let origin = "https://app.example.com";
    let directory = crate::harness::temporary_directory();
    let file = directory.path().join("remuda.toml");
    std::fs::write(&file, format!("[server]\ncors_origins = [\"{origin}\"]\n")).unwrap();
    let dev = Dev::start_with(&["--config", file.to_str().unwrap()]).await;
    let web = HttpClient::new(dev.server.endpoint());
    for (asked, allowed) in [(origin, true), ("https://evil.example.com", false)] {
        let preflight = web
            .request(Method::OPTIONS, "/sessions")
            .header("origin", asked)
            .header("access-control-request-method", "POST");
        let preflight = send(preflight).await;
        assert_eq!(preflight.headers.contains_key("access-control-allow-origin"), allowed, "{asked}");
    }
}

#[tokio::test]
async fn api_keys_limit_tenant_and_scope_over_http() {
    let cluster = Cluster::start(&remuda_testkit::nats_binaries()[0], 1).await;
    let web = HttpClient::new(cluster.control_plane.endpoint());
    let anonymous = web.get("/sessions").await;
    assert_eq!((anonymous.status, anonymous.error().0), (StatusCode::UNAUTHORIZED, "unauthenticated"));
    assert_eq!(anonymous.headers["www-authenticate"], "Bearer");
    let (_, reads) = cluster.services.create_key("acme", &["read"]).await;
    let (_, writes) = cluster.services.create_key("acme", &["write"]).await;
    let (_, rival) = cluster.services.create_key("rival", &["write", "admin"]).await;
    let (reads, writes, rival) = (web.with_key(&reads), web.with_key(&writes), web.with_key(&rival));
    let refused = reads.post("/sessions", &json!({ "name": "s1" })).await;
    assert_eq!((refused.status, refused.error().0), (StatusCode::FORBIDDEN, "permission_denied"));
    let id = writes.post("/sessions", &json!({ "name": "s1" })).await.text("id");
    let run = writes.submit("s1", &noop()).await;
    for path in [
        format!("/sessions/{id}"),
        format!("/sessions/{id}/messages"),
        format!("/sessions/{id}/events"),
        format!("/runs/{run}"),
        format!("/runs/{run}/events?wait=1s"),
    ] {
        let foreign = rival.get(&path).await;
        assert_eq!(foreign.status, StatusCode::NOT_FOUND, "{path}");
        assert!(!foreign.body.to_string().contains("s1"), "{foreign:?}");
    }
    let operator = web.with_key(&cluster.services.create_operator_key().await);
    assert_eq!(operator.get("/workers").await.status, StatusCode::OK);
    assert_eq!(operator.get("/sessions").await.status, StatusCode::FORBIDDEN);
    assert_eq!(rival.get("/workers").await.status, StatusCode::FORBIDDEN, "admin is of one tenant");
    assert_eq!(writes.get("/workers").await.status, StatusCode::FORBIDDEN);
    // Health needs no key.
    assert_eq!(web.get("//readyz").await.body["status"], "ready");
}
