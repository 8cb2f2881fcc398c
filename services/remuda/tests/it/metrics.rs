//! Metrics of real processes: every declared metric is exported with its labels, and Prometheus accepts them.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use futures::StreamExt as _;
use remuda_client::Target;
use remuda_telemetry::metrics::registry;
use remuda_testkit::{Child, find_program, free_port, nats_binaries, wait_for};
use remuda_transport::BusRole;
use reqwest::Method;
use serde_json::Value;

use crate::{
    api::{bash, history, noop, submit, wait_for_end},
    cluster::{Cluster, Services},
    harness::{Cli, Dev, Server, TIMEOUT, temporary_directory},
    http_client::HttpClient,
    scrape::Scrape,
    webhook_receiver::{Reply, WebhookReceiver},
};

/// Metrics of the bus, which an embedded server does not have.
const ONLY_WITH_BUS: &str = "remuda_bus_rejected_total";
/// A metric of processes with a certificate.
const ONLY_WITH_TLS: &str = "remuda_tls_certificate_expiry_timestamp_seconds";
const LISTEN: &str = "telemetry.metrics_listen=127.0.0.1:0";

const MODELS: &str = "
priced:
  provider: scripted
  name: ../scenario.yaml
  price: { input: 1, output: 10 }
";
/// The provider fails once, then the agent calls tools, one of which does not exist.
const SCENARIO: &str = r#"
turns:
  - { when: { turn: 1 }, fail: { status: 503, times: 1 }, call: [{ tool: Bash, arguments: { command: "true" } }, { tool: Conjure, arguments: {} }], usage: { input: 1000, output: 100 } }
otherwise: { say: "Done: {{user}}", usage: { input: 1000, output: 100 } }
"#;

/// A workspace with an agent whose model costs money.
fn workspace(directory: &Path) -> String {
    let root = directory.join("work");
    for (name, text) in [
        (".openharness/settings.yaml", "default_agent: helper\n"),
        (
            ".openharness/agents/helper.md",
            "---\ndescription: Helps\nmodel: priced\ntools: { native: ['*'] }\n---\nYou help.\n",
        ),
        (".openharness/models/models.yaml", MODELS),
        (".openharness/scenario.yaml", SCENARIO),
    ] {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root.to_str().unwrap().to_owned()
}

fn metrics(server: &Server) -> String {
    server.metrics().unwrap().to_owned()
}

/// Triggers everything that is measured at least once.
async fn generate_load(cli: &Cli, work: &str) {
    let client = cli.client();
    let followed = client.follow(Target::Session("busy".to_owned()), 0);
    wait_for_end(&client, &submit(&client, "busy", vec![noop(0), bash("true")]).await).await;
    // A follower is subscribed from here on.
    let mut followed = Box::pin(followed);
    followed.next().await.unwrap().unwrap();
    let message = cli.run(&["run", "hello", "--dir", work, "--session", "talk"]).await;
    assert_eq!(message.code, 0, "{}", message.stderr);
    let run = submit(&client, "busy", vec![bash("sleep 600")]).await;
    loop {
        let event = followed.next().await.unwrap().unwrap();
        if event.run_id == run && event.r#type == "tool.started" {
            break;
        }
    }
    let stopped = cli.run(&["cancel", &run]).await;
    assert_eq!(stopped.code, 0, "{}", stopped.stderr);
    wait_for_end(&client, &run).await;
    assert_eq!(HttpClient::new(cli.endpoint()).get("/sessions/busy").await.text("name"), "busy");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_exported_under_load_with_its_declared_labels() {
    // A run whose server was killed gives background tasks something to do.
    let mut first = Dev::start().await;
    let client = first.client();
    let run = submit(&client, "lost", vec![bash("sleep 600")]).await;
    let started = || async {
        let explained = first.cli.one(&["runs", "show", &run]).await;
        explained["state"] == "running"
    };
    wait_for("the run to start", TIMEOUT, started).await;
    first.server.process.kill();
    let Dev { server, directory, .. } = first;
    drop(server);

    let receiver = WebhookReceiver::start(Reply::Status("200 OK")).await;
    let allowed = format!("webhooks.allowed={}", receiver.address());
    // The collector is unreachable: dropped spans are measured as well.
    let collector = format!("telemetry.otlp_endpoint=http://127.0.0.1:{}", free_port().unwrap());
    let more = ["reconciler.interval=200ms", "models.retry_delay=10ms", LISTEN, &allowed, &collector];
    let flags: Vec<&str> = more.iter().flat_map(|setting| ["--set", setting]).collect();
    let dev = Dev::start_in(directory, &flags).await;
    dev.cli.run(&["sessions", "create", "busy"]).await;
    dev.cli.one(&["webhooks", "create", &receiver.url(), "--session", "busy"]).await;
    let files = temporary_directory();
    generate_load(&dev.cli, &workspace(files.path())).await;
    receiver.wait_for_deliveries(1).await;

    let url = metrics(&dev.server);
    let embedded = || {
        let name = |metric: &registry::Metric| metric.prometheus_name();
        let elsewhere = |name: &str| [ONLY_WITH_TLS, ONLY_WITH_BUS].contains(&name);
        registry::ALL.iter().filter(move |metric| !elsewhere(&name(metric)))
    };
    let wanted: BTreeSet<String> = embedded().map(registry::Metric::prometheus_name).collect();
    let missing = || async {
        let scraped = Scrape::fetch(&url).await;
        let names = scraped.names();
        wanted.iter().filter(|name| !names.contains(name.as_str())).cloned().collect::<Vec<_>>()
    };
    let all_present = || async { missing().await.is_empty() };
    if tokio::time::timeout(TIMEOUT, wait_for("all metrics", TIMEOUT * 2, all_present)).await.is_err() {
        panic!("never exported: {:?}", missing().await);
    }

    // These are counted after the commit or the response that the client has already seen.
    let http = [("protocol", "http"), ("method", "GET /api/v1/sessions/{session}"), ("code", "ok")];
    let counted = || async {
        let scraped = Scrape::fetch(&url).await;
        let counts = [
            scraped.sum("remuda_runs_ended_total", &[("kind", "message"), ("state", "completed")]),
            scraped.sum("remuda_cancel_receipt_seconds_count", &[("receipt", "stopped")]),
            scraped.sum("remuda_request_duration_seconds_count", &http),
        ];
        counts.iter().all(|count| *count >= 1.0).then_some(scraped)
    };
    let scraped = wait_for("the counts of the finished calls", TIMEOUT, counted).await;
    for metric in embedded() {
        let declared: BTreeSet<&str> = metric.labels.iter().copied().collect();
        let name = metric.prometheus_name();
        let found = scraped.labels(&name);
        // The tenant label is off.
        let expected: BTreeSet<&str> = declared.into_iter().filter(|label| *label != "tenant").collect();
        assert_eq!(found, expected, "{name}");
    }
    let of = |name: &str, labels: &[(&str, &str)]| scraped.sum(name, labels);
    assert_eq!(
        of("remuda_model_retries_total", &[("provider", "scripted"), ("model", "workspace/priced")]),
        1.0
    );
    assert_eq!(of("remuda_model_tokens_total", &[("direction", "input")]), 2000.0);
    assert!((of("remuda_model_cost_usd_total", &[]) - 0.004).abs() < 1e-9);
    assert_eq!(of("remuda_tool_calls_total", &[("tool", "noop"), ("status", "completed")]), 1.0);
    assert_eq!(of("remuda_tool_calls_total", &[("tool", "Conjure"), ("status", "failed")]), 1.0);
    assert_eq!(of("remuda_runs_ended_total", &[("kind", "message"), ("state", "completed")]), 1.0);
    assert_eq!(of("remuda_cancel_receipt_seconds_count", &[("receipt", "stopped")]), 1.0);
    assert_eq!(of("remuda_worker_slots", &[("pool", "default")]), 16.0);
    assert_eq!(of("remuda_webhook_deliveries_total", &[("result", "failed")]), 0.0);
    assert_eq!(of("remuda_request_duration_seconds_count", &http), 1.0);
    check_with_promtool(&scraped.text);
}

/// Checks that `promtool` reports no problem.
fn check_with_promtool(text: &str) {
    let promtool = find_program("promtool").expect("promtool is not installed: run `cargo xtask test`");
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let checked = child.wait_with_output().unwrap();
    let output = [checked.stdout, checked.stderr].concat();
    assert!(checked.status.success(), "{}\n{text}", String::from_utf8_lossy(&output));
}

/// A Prometheus that scrapes these addresses every second.
struct Prometheus {
    web: HttpClient,
    _child: Child,
    // Dropped after the server that uses it.
    _directory: tempfile::TempDir,
}

impl Prometheus {
    fn start(targets: &[&str]) -> Self {
        let program =
            find_program("prometheus").expect("prometheus is not installed: run `cargo xtask test`");
        let directory = temporary_directory();
        let targets: Vec<&str> = targets
            .iter()
            .map(|url| url.trim_start_matches("http://").trim_end_matches("/metrics"))
            .collect();
        let config = format!(
            "global: {{ scrape_interval: 1s }}\nscrape_configs:\n  - job_name: remuda\n    static_configs:\n      - targets: {targets:?}\n"
        );
        let file = directory.path().join("prometheus.yml");
        fs::write(&file, config).unwrap();
        let address = format!("127.0.0.1:{}", free_port().unwrap());
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let child = Child::start(&program, None, |command| {
            command
                .arg(format!("--config.file={}", file.display()))
                .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
                .arg(format!("--web.listen-address={address}"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
        });
        Self {
            web: HttpClient::new(&format!("http://{address}")),
            _child: child.unwrap(),
            _directory: directory,
        }
    }

    /// The current values of a query; empty while there are none.
    async fn query(&self, query: &str) -> Vec<f64> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let request = self.web.request(Method::GET, &format!("/query?query={query}"));
        // Prometheus may still be starting.
        let Ok(answer) = request.send().await else { return Vec::new() };
        let answer: Value =
            serde_json::from_str(&answer.text().await.unwrap_or_default()).unwrap_or_default();
        let results = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        results.iter().filter_map(|it| it["value"][1].as_str()?.parse().ok()).collect()
    }

    async fn wait_until(&self, query: &str, condition: impl Fn(&[f64]) -> bool) {
        let asked = || async { condition(&self.query(query).await) };
        wait_for(query, TIMEOUT, asked).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_scrapes_every_process_of_a_cluster() {
    let settings = [("REMUDA_TELEMETRY__METRICS_LISTEN", "127.0.0.1:0")];
    let cluster = Cluster::start_with(&nats_binaries().remove(0), 2, &settings).await;
    let servers = [&cluster.control_plane, &cluster.stream, &cluster.workers[0], &cluster.workers[1]];
    let urls = servers.map(metrics);
    let prometheus = Prometheus::start(&urls.each_ref().map(String::as_str));
    let client = cluster.client();
    for number in 0..20 {
        wait_for_end(&client, &submit(&client, &format!("s{}", number % 5), vec![noop(0)]).await).await;
    }
    history(&client, "s0").await;
    prometheus.wait_until("sum(up{job=\"remuda\"})", |values| values == [4.0]).await;
    for (query, expected) in [
        ("sum(remuda_runs_submitted_total{kind=\"tools\",pool=\"default\"})", 20.0),
        ("sum(remuda_runs_ended_total{state=\"completed\"})", 20.0),
        ("sum(remuda_worker_slots)", 32.0),
        ("count(remuda_worker_busy)", 2.0),
        // Only the leader exports installation-wide metrics.
        ("count(remuda_sessions_runnable{pool=\"default\"})", 1.0),
        ("max(remuda_runs_queued)", 0.0),
    ] {
        prometheus.wait_until(query, |values| values == [expected]).await;
    }
    prometheus.wait_until("sum(remuda_stream_events_total)", |values| values.first() > Some(&0.0)).await;
    // Granted with the submit, or through a token if no slot was free.
    prometheus
        .wait_until("sum(remuda_claims_total{result=\"granted\"})", |it| it.first() >= Some(&20.0))
        .await;
    let nats = cluster.services.nats_client(BusRole::Admin).await;
    nats.publish("remuda.notices", "forged".into()).await.unwrap();
    nats.flush().await.unwrap();
    prometheus.wait_until(&format!("sum({ONLY_WITH_BUS})"), |values| values.first() > Some(&0.0)).await;
    for url in &urls {
        check_with_promtool(&Scrape::fetch(url).await.text);
    }
}

/// Only the current leader exports metrics of the whole installation.
#[tokio::test(flavor = "multi_thread")]
async fn former_leader_exports_no_installation_wide_metrics() {
    let mut services = Services::start(&nats_binaries().remove(0));
    services.variables.push(("REMUDA_TELEMETRY__METRICS_LISTEN".to_owned(), "127.0.0.1:0".to_owned()));
    services.migrate().await;
    let mut first = services.control_plane(&[]).await;
    let exposes_metric = async |url: &str| Scrape::fetch(url).await.names().contains("remuda_runs_parked");
    let (leader, name) = (metrics(&first), "remuda_runs_parked");
    wait_for("the leader to export the metric", TIMEOUT, || exposes_metric(&leader)).await;
    let second = services.control_plane(&[]).await;
    let next = metrics(&second);
    assert!(!Scrape::fetch(&next).await.names().contains(name));
    // The leader is stopped for longer than its lease, without noticing it.
    first.process.signal(nix::sys::signal::Signal::SIGSTOP);
    wait_for("the next leader to export the metric", TIMEOUT, || exposes_metric(&next)).await;
    first.process.signal(nix::sys::signal::Signal::SIGCONT);
    assert!(!Scrape::fetch(&leader).await.names().contains(name));
}
