//! A web page follows a run with the browser's own `EventSource`.

use std::{path::Path, process::Stdio, time::Duration};

use axum::{Router, response::Html, routing::get};
use remuda_testkit::{Child, find_program};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, time::timeout};

use crate::{
    harness::{Dev, temporary_directory},
    http_client::HttpClient,
};

/// A browser starts slowly on a busy machine.
const BROWSER_TIMEOUT: Duration = Duration::from_secs(120);

/// Follows a run, lets the browser reconnect by itself after the stream has ended, and reports the events it saw.
const PAGE: &str = r#"<!doctype html><title>a run</title><script>
const source = new EventSource("ADDRESS");
const seen = [];
for (const type of ["run.queued", "run.started", "tool.started", "tool.completed", "run.completed"])
  source.addEventListener(type, (event) => seen.push([event.type, event.lastEventId, JSON.parse(event.data).cursor]));
let ended = null;
source.addEventListener("end", (event) => { ended = JSON.parse(event.data).reason; });
source.onerror = () => {
  if (source.readyState === EventSource.CLOSED)
    fetch("/report", { method: "POST", body: JSON.stringify({ seen, ended }) });
};
</script>"#;

fn start_browser(page: &str, profile: &Path) -> Child {
    let program = find_program("chromium").expect("chromium is installed by `cargo xtask test`");
    let start = Child::start(&program, None, |command| {
        command
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--no-proxy-server",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(page)
            .env("HOME", profile)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
    });
    start.unwrap()
}

#[tokio::test]
async fn browser_follows_a_run_with_event_source() {
    // The page comes from another origin, as in production, and that origin is allowed in the configuration.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let directory = temporary_directory();
    let settings = directory.path().join("remuda.toml");
    std::fs::write(&settings, format!("[server]\ncors_origins = [\"{origin}\"]\n")).unwrap();
    let dev = Dev::start_with(&["--config", settings.to_str().unwrap()]).await;

    let web = HttpClient::new(dev.server.endpoint());
    let run = web.submit("s1", &json!([{ "tool": "noop", "arguments": { "sleep_ms": 1500 } }])).await;
    let address = format!("{}/api/v1/runs/{run}/events", dev.server.endpoint());
    let page = PAGE.replace("ADDRESS", &address);
    let (report, mut reports) = mpsc::channel(1);
    let handle_report = move |body: String| async move { report.send(body).await.is_ok().to_string() };
    let site = Router::new()
        .route("/", get(async move || Html(page)))
        .route("/report", axum::routing::post(handle_report));
    let site = tokio_util::task::TaskTracker::new().spawn(async { axum::serve(listener, site).await });

    let _browser = start_browser(&origin, &directory.path().join("profile"));
    let report = timeout(BROWSER_TIMEOUT, reports.recv()).await.expect("the page reports").unwrap();
    site.abort();
    let report: Value = serde_json::from_str(&report).unwrap();
    // Every event once and in order although the browser reconnected after the end; the second response stops it.
    let expected = json!([
        ["run.queued", "2", 2],
        ["run.started", "3", 3],
        ["tool.started", "4", 4],
        ["tool.completed", "5", 5],
        ["run.completed", "6", 6],
    ]);
    assert_eq!(report, json!({ "seen": expected, "ended": "run_ended" }));
}
