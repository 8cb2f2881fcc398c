//! A web page follows a run with nothing but the browser's own `EventSource`.

use std::{path::Path, process::Stdio, time::Duration};

use axum::{Router, response::Html, routing::get};
use remuda_testkit::{Child, find_program};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, time::timeout};

use crate::{
    harness::{Dev, temporary_directory},
    web::Web,
};

/// A browser takes its time to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Follows a run, lets the browser reconnect by itself once the stream has ended, and reports what it saw.
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

fn browser(page: &str, profile: &Path) -> Child {
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
async fn a_browser_follows_a_run() {
    // The page comes from another origin, as it would in life, and is allowed by name.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let directory = temporary_directory();
    let settings = directory.path().join("remuda.toml");
    std::fs::write(&settings, format!("[server]\ncors_origins = [\"{origin}\"]\n")).unwrap();
    let dev = Dev::start_with(&["--config", settings.to_str().unwrap()]).await;

    let web = Web::new(dev.server.endpoint());
    let run = web.submit("s1", &json!([{ "tool": "noop", "arguments": { "sleep_ms": 1500 } }])).await;
    let address = format!("{}/api/v1/runs/{run}/events", dev.server.endpoint());
    let page = PAGE.replace("ADDRESS", &address);
    let (report, mut reports) = mpsc::channel(1);
    let told = move |body: String| async move { report.send(body).await.is_ok().to_string() };
    let site =
        Router::new().route("/", get(async move || Html(page))).route("/report", axum::routing::post(told));
    let site = tokio_util::task::TaskTracker::new().spawn(async { axum::serve(listener, site).await });

    let _browser = browser(&origin, &directory.path().join("profile"));
    let report = timeout(PATIENCE, reports.recv()).await.expect("the page reports").unwrap();
    site.abort();
    let report: Value = serde_json::from_str(&report).unwrap();
    // Every event once, in order, though the browser asked again after the end; then it was told to stop.
    let expected = json!([
        ["run.queued", "2", 2],
        ["run.started", "3", 3],
        ["tool.started", "4", 4],
        ["tool.completed", "5", 5],
        ["run.completed", "6", 6],
    ]);
    assert_eq!(report, json!({ "seen": expected, "ended": "run_ended" }));
}
