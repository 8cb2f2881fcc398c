//! Logs: context fields on every line, no secrets, and a filter that can be changed at run time.

use nix::sys::signal::Signal;
use remuda_testkit::{nats_binaries, wait_for};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    api::{bash, submission, wait_for_end},
    cluster::{Cluster, Services},
    harness::{Cli, Dev, Process, Server, TIMEOUT},
    http_client::{self, HttpClient, send},
};

const PASSWORD: &str = "Sup3r-s%40fe";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// All complete log lines of a process. Each must be a JSON object with the common fields.
fn log_lines(process: &Process) -> Vec<Value> {
    let text = process.stderr();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = complete.lines().map(|line| {
        let read: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for name in ["timestamp", "level", "target", "message", "service", "instance"] {
            assert!(read[name].is_string(), "{name} in {line}");
        }
        read
    });
    lines.collect()
}

fn lines_with_message(process: &Process, message: &str) -> Vec<Value> {
    log_lines(process).into_iter().filter(|line| line["message"] == message).collect()
}

/// Waits for a matching line with this message: a process may answer a client before it writes the line.
async fn wait_for_line(process: &Process, message: &str, matches: impl Fn(&Value) -> bool) -> Value {
    wait_for(&format!("the line {message:?}"), TIMEOUT, || {
        std::future::ready(lines_with_message(process, message).into_iter().find(|line| matches(line)))
    })
    .await
}

/// A cluster whose database has a password and whose processes log JSON. Returns the API key too.
async fn cluster() -> (Cluster, String) {
    let mut services = Services::start(&nats_binaries()[0]);
    for (name, value) in &mut services.variables {
        if name == "REMUDA_STORE__URL" {
            *value = value.replacen('@', &format!(":{PASSWORD}@"), 1);
            assert!(value.contains(PASSWORD), "{value}");
        }
    }
    services.variables.push(("REMUDA_TELEMETRY__FORMAT".to_owned(), "json".to_owned()));
    services.migrate().await;
    let (_, secret) = services.create_key("acme", &["write"]).await;
    let operator = services.create_operator_key().await;
    let stream = services.stream().await;
    let control_plane =
        services.control_plane(&[("REMUDA_SERVER__STREAM_ENDPOINT", stream.endpoint())]).await;
    let workers = vec![services.worker().await];
    let cli = Cli::new(control_plane.endpoint()).with_key(&secret);
    let operator = Cli::new(control_plane.endpoint()).with_key(&operator);
    (Cluster { workers, control_plane, stream, cli, operator, services }, secret)
}

impl Cluster {
    fn servers(&self) -> Vec<&Server> {
        self.workers.iter().chain([&self.control_plane, &self.stream]).collect()
    }

    /// Waits until every process answers broadcast requests.
    async fn wait_until_all_answer(&self) {
        wait_for("all processes to answer", TIMEOUT, || async {
            self.operator.json(&["log-filter", "get"]).await.len() == 3
        })
        .await;
    }
}

/// Submits a run as part of a trace, waits for its end, and returns the ids of the run and of its session.
async fn traced_run(cluster: &Cluster, caller: &HttpClient) -> (String, String) {
    let body = json!({ "create_session": true, "tools": { "calls": [{ "tool": "noop" }] } });
    let request = http_client::with_json(caller.request(Method::POST, "/sessions/s1/runs"), &body);
    let submitted = send(request.header("traceparent", format!("00-{TRACE}-b7ad6b7169203331-01"))).await;
    assert_eq!(submitted.status, StatusCode::ACCEPTED, "{submitted:?}");
    let run = wait_for_end(&cluster.client(), &submitted.text("run_id")).await;
    (run.id, run.session_id)
}

#[tokio::test]
async fn log_lines_carry_context_and_no_secrets() {
    let (mut cluster, secret) = cluster().await;
    cluster.wait_until_all_answer().await;
    let changed = cluster.operator.json(&["log-filter", "set", "debug", "--for", "10m"]).await;
    assert_eq!(changed.len(), 3, "{changed:?}");
    let web = HttpClient::new(cluster.control_plane.endpoint()).with_key(&secret);
    let (run, session) = traced_run(&cluster, &web).await;

    let worker = &cluster.workers[0];
    for message in ["run started or resumed", "run ended"] {
        let line = wait_for_line(&worker.process, message, |line| line["run"] == run).await;
        assert_eq!((&line["session"], &line["trace_id"]), (&json!(session), &json!(TRACE)), "{line}");
        assert!(line["tenant"].as_str().unwrap().starts_with("ten_"), "{line}");
        assert_eq!(line["worker"], worker.worker_id().await, "{line}");
    }

    // A refused request is logged with its request id, its trace, and its tenant.
    let request = web.request(Method::GET, "/runs/nonsense").header("x-request-id", "find-me");
    send(request.header("traceparent", format!("00-{TRACE}-b7ad6b7169203331-01"))).await;
    let refused = "call refused";
    let line =
        wait_for_line(&cluster.control_plane.process, refused, |line| line["request_id"] == "find-me").await;
    assert_eq!((&line["trace_id"], &line["method"]), (&json!(TRACE), &json!("GET /api/v1/runs/nonsense")));
    assert!(line["tenant"].is_string(), "{line}");
    // A request with a wrong key, over gRPC.
    let wrong = "rmd_0123456789abcdef0123456789abcdef";
    assert_eq!(cluster.cli.with_key(wrong).run(&["runs", "list"]).await.code, 5);
    let line =
        wait_for_line(&cluster.control_plane.process, refused, |line| line["code"] == "unauthenticated")
            .await;
    assert_eq!(line["method"], "POST /remuda.v1.RunService/ListRuns");
    assert!(line["request_id"].as_str().unwrap().starts_with("req_"), "{line}");

    // The output of tools does not reach the log.
    let hostile = submission(
        "s1",
        vec![bash("echo hi"), crate::api::call("noop", &json!({ "fail": "\u{1b}[31m\nx" }))],
    );
    let run = cluster.client().submit(hostile).await.unwrap().run.unwrap().id;
    wait_for_end(&cluster.client(), &run).await;
    for server in [&mut cluster.control_plane, &mut cluster.workers[0], &mut cluster.stream] {
        server.process.signal(Signal::SIGTERM);
        server.process.exit_code().await;
    }
    for server in cluster.servers() {
        let text = server.process.stderr();
        assert!(!log_lines(&server.process).is_empty());
        for hidden in [secret.as_str(), PASSWORD, "Sup3r-s@fe", wrong, "\u{1b}"] {
            assert!(!text.contains(hidden), "{hidden} in {text}");
        }
    }
    // The error about an unreachable database does not contain the password.
    let failed = cluster.services.stderr_with_wrong_port().await;
    assert!(!failed.contains(PASSWORD) && !failed.contains("Sup3r-s@fe"), "{failed}");
}

impl Services {
    /// Starts a worker whose database is unreachable and returns its stderr.
    async fn stderr_with_wrong_port(&self) -> String {
        let mut variables = self.variables.clone();
        for (name, value) in &mut variables {
            if name == "REMUDA_STORE__URL" {
                *value = format!("postgres://remuda:{PASSWORD}@127.0.0.1:1/remuda");
            }
        }
        variables.push(("REMUDA_STORE__CONNECT_TIMEOUT".to_owned(), "1s".to_owned()));
        variables.push(("REMUDA_TELEMETRY__LOG".to_owned(), "trace".to_owned()));
        let mut process = Process::start(&["worker"], &variables);
        assert_ne!(process.exit_code().await, 0);
        process.stderr()
    }
}

#[tokio::test]
async fn log_filter_changes_in_all_processes_and_reverts_when_it_expires() {
    let (cluster, secret) = cluster().await;
    cluster.wait_until_all_answer().await;
    let web = HttpClient::new(cluster.control_plane.endpoint()).with_key(&secret);
    let operator = HttpClient::new(cluster.control_plane.endpoint())
        .with_key(&cluster.services.create_operator_key().await);
    let ended = || lines_with_message(&cluster.workers[0].process, "run ended").len();
    traced_run(&cluster, &web).await;
    assert_eq!(ended(), 0, "the initial filter must be info");

    let changed =
        cluster.operator.json(&["log-filter", "set", "info,remuda_worker=debug", "--only", "worker"]).await;
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert_eq!((&changed[0]["roles"], &changed[0]["start_filter"]), (&json!(["worker"]), &json!("info")));
    assert!(changed[0]["until"].is_string());
    traced_run(&cluster, &web).await;
    wait_for("the worker to log the end of the run", TIMEOUT, || std::future::ready(ended() == 1)).await;

    // All processes for two seconds, over HTTP.
    let body = json!({ "filter": "warn,remuda_worker=debug", "lasts_ms": 2000 });
    let changed = send(http_client::with_json(operator.request(Method::PUT, "/log-filter"), &body)).await;
    assert_eq!(changed.status, StatusCode::OK, "{changed:?}");
    let items = changed.body["items"].as_array().unwrap();
    assert_eq!(items.len(), 3, "{changed:?}");
    assert_eq!(items[0]["roles"], json!(["control-plane"]), "the answering process must come first");
    for server in cluster.servers() {
        let process = &server.process;
        wait_for("the filter to revert", TIMEOUT, || {
            std::future::ready(
                lines_with_message(process, "log filter change expired; initial filter restored").len() == 1,
            )
        })
        .await;
        let audit = lines_with_message(process, "log filter changed");
        let last = audit.last().unwrap();
        assert_eq!((&last["target"], &last["filter"]), (&json!("remuda_audit"), &body["filter"]), "{last}");
        assert_eq!(last["by"], "key", "the name of the operator's key: {last}");
    }
    wait_for("every process to report its first filter", TIMEOUT, || async {
        let shown = cluster.operator.json(&["log-filter", "get"]).await;
        shown.len() == 3 && shown.iter().all(|it| it["filter"] == "info" && it["until"].is_null())
    })
    .await;
    let before = ended();
    traced_run(&cluster, &web).await;
    // The worker would have logged the end of the run before it handles this.
    cluster.operator.json(&["log-filter", "set", "off", "--only", "worker"]).await;
    assert_eq!(ended(), before);
    let reset = cluster.operator.json(&["log-filter", "reset"]).await;
    assert!(reset.len() == 3 && reset.iter().all(|it| it["filter"] == "info"), "{reset:?}");
}

#[tokio::test]
async fn invalid_log_filters_are_refused_and_operator_scope_is_required() {
    let (cluster, _) = cluster().await;
    for (arguments, field) in [
        (["deubg", "--for", "5m"], "filter"),
        (["remuda_worker=loud", "--for", "5m"], "filter"),
        (["debug", "--for", "0s"], "lasts"),
        (["debug", "--for", "2days"], "lasts"),
    ] {
        let arguments =
            ["log-filter", "set"].into_iter().chain(arguments).chain(["--json"]).collect::<Vec<_>>();
        let done = cluster.operator.run(&arguments).await;
        assert_eq!(done.code, 2, "{done:?}");
        assert_eq!(done.error(), ("invalid_argument".to_owned(), field.to_owned()));
    }
    let (_, writes) = cluster.services.create_key("acme", &["write"]).await;
    assert_eq!(cluster.cli.with_key(&writes).run(&["log-filter", "get"]).await.code, 5);
    assert_eq!(cluster.cli.with_key(&writes).run(&["log-filter", "set", "off"]).await.code, 5);
    let web = HttpClient::new(cluster.control_plane.endpoint()).with_key(&writes);
    assert_eq!(web.get("/log-filter").await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn embedded_process_reports_one_log_filter() {
    let dev = Dev::start().await;
    let shown = dev.cli.one(&["log-filter"]).await;
    assert_eq!(shown["roles"], json!(["control-plane", "worker", "stream"]));
    let set = dev.cli.one(&["log-filter", "set", "debug", "--only", "self", "--for", "1m"]).await;
    assert_eq!((&set["filter"], &set["process"]), (&json!("debug"), &shown["process"]));
    let table = dev.cli.run(&["log-filter", "get"]).await;
    assert!(table.stdout.contains("STARTED WITH") && table.stdout.contains("debug"), "{}", table.stdout);
}
