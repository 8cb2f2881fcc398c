//! Labels of runs as callers of every interface see them.

use remuda_proto::v1;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::{
    api::{history, noop, submission},
    harness::Dev,
    http_client::HttpClient,
};

fn ids(page: &[Value]) -> Vec<&str> {
    page.iter().filter_map(|run| run["id"].as_str()).collect()
}

#[tokio::test]
async fn labels_given_over_one_interface_are_found_over_the_others() {
    let dev = Dev::start().await;
    let (client, web) = (dev.client(), HttpClient::new(dev.server.endpoint()));
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let labels = [label("team", "core"), label("env", "prod")].into();
    let request = v1::SubmitRunRequest { labels, ..submission("s1", vec![noop(0)]) };
    let grpc = client.submit(request).await.unwrap().run.unwrap();
    let body = json!({ "tools": { "calls": [{ "tool": "noop" }] }, "labels": { "team": "core", "env": "a&b=c, d" } });
    let http = web.post("/sessions/s1/runs?wait=30s", &body).await;
    let http = http.body["run_id"].as_str().unwrap().to_owned();
    let cli = ["run", "--tool", "noop", "--session", "s1", "--label", "team=docs", "--label", "env=prod"];
    let cli = dev.cli.one(&cli).await["id"].as_str().unwrap().to_owned();

    let listed = dev.cli.json(&["runs", "list", "--label", "team=core"]).await;
    assert_eq!(ids(&listed), [&http, &grpc.id]);
    assert_eq!(listed[1]["labels"], json!({ "env": "prod", "team": "core" }));
    let listed = web.get("/runs?label=env%3Dprod").await;
    assert_eq!(ids(listed.body["items"].as_array().unwrap()), [&cli, &grpc.id]);
    let listed = web.get("/sessions/s1/runs?label=team%3Dcore&label=env%3Da%26b%3Dc%2C+d").await;
    assert_eq!(ids(listed.body["items"].as_array().unwrap()), [&http]);
    let labels = [label("team", "docs"), label("env", "prod")].into();
    let listed = client.list_runs(v1::ListRunsRequest { labels, ..Default::default() }).await.unwrap();
    assert_eq!(listed.runs.iter().map(|run| run.id.as_str()).collect::<Vec<_>>(), [cli.as_str()]);

    assert_eq!(web.get(&format!("/runs/{grpc}", grpc = grpc.id)).await.body["labels"]["team"], "core");
    let queued: Vec<v1::Event> = history(&client, "s1").await;
    let queued: Value =
        serde_json::from_str(&queued.iter().find(|event| event.run_id == http).unwrap().data).unwrap();
    assert_eq!(queued["labels"], json!({ "team": "core", "env": "a&b=c, d" }));
    let shown = dev.cli.one(&["runs", "show", &cli]).await;
    assert_eq!(shown["labels"], json!({ "env": "prod", "team": "docs" }));
}

#[tokio::test]
async fn invalid_labels_name_what_is_wrong() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    let submit = |labels: Value| json!({ "tools": { "calls": [{ "tool": "noop" }] }, "create_session": true, "labels": labels });
    let long = "x".repeat(257);
    let many: Value =
        (0..33).map(|number| (format!("k{number}"), json!(""))).collect::<serde_json::Map<_, _>>().into();
    for (labels, field) in [
        (json!({ "a b": "c" }), "labels"),
        (json!({ "team": long }), "labels.team"),
        (json!({ "team": "a\u{0}b" }), "labels.team"),
        (many, "labels"),
    ] {
        let refused = web.post("/sessions/s1/runs", &submit(labels)).await;
        assert_eq!((refused.status, refused.error().0), (StatusCode::BAD_REQUEST, "invalid_argument"));
        assert_eq!(refused.body["error"]["details"]["field"], field);
    }
    let refused = web.get("/runs?label=team").await;
    assert_eq!((refused.status, refused.error().0), (StatusCode::BAD_REQUEST, "invalid_argument"));
    let refused = dev.cli.run(&["runs", "list", "--label", "team=a", "--label", "team=b"]).await;
    assert_eq!(refused.stderr, "error: labels.team: expected each key once [invalid_argument]\n");
}

#[tokio::test]
async fn repeated_request_with_other_labels_is_a_conflict() {
    let dev = Dev::start().await;
    let client = dev.client();
    let request = |value: &str| v1::SubmitRunRequest {
        idempotency_key: "k".to_owned(),
        labels: [("team".to_owned(), value.to_owned())].into(),
        ..submission("s1", vec![noop(0)])
    };
    let first = client.submit(request("core")).await.unwrap();
    let again = client.submit(request("core")).await.unwrap();
    assert!(again.deduplicated && again.run.unwrap().id == first.run.unwrap().id);
    let error = client.submit(request("docs")).await.unwrap_err();
    assert_eq!(error.code(), remuda_domain::Code::IdempotencyConflict);
}
