//! What processes log: whose work it was, no secrets, and as much as an operator wants at the moment.

use nix::sys::signal::Signal;
use remuda_testkit::{nats_binaries, wait_for};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    api::{bash, finished, submission},
    cluster::{Cluster, Services},
    harness::{Cli, Dev, PATIENCE, Process, Server},
    web::{self, Web, answer},
};

const PASSWORD: &str = "Sup3r-s%40fe";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Every line of a process, each of which must be a JSON object with what all lines have.
fn lines(process: &Process) -> Vec<Value> {
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

fn said(process: &Process, message: &str) -> Vec<Value> {
    lines(process).into_iter().filter(|line| line["message"] == message).collect()
}

/// A database with a password, and processes that log JSON.
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
    let (_, secret) = services.create_key("acme", &["write", "admin"]).await;
    let stream = services.stream().await;
    let control_plane =
        services.control_plane(&[("REMUDA_SERVER__STREAM_ENDPOINT", stream.endpoint())]).await;
    let workers = vec![services.worker().await];
    let cli = Cli::new(control_plane.endpoint()).with_key(&secret);
    (Cluster { workers, control_plane, stream, cli, services }, secret)
}

impl Cluster {
    fn servers(&self) -> Vec<&Server> {
        self.workers.iter().chain([&self.control_plane, &self.stream]).collect()
    }

    /// Waits until every process listens to what all are told.
    async fn all_answer(&self) {
        wait_for("all processes to answer", PATIENCE, || async {
            self.cli.json(&["log-filter", "get"]).await.len() == 3
        })
        .await;
    }
}

/// Submits a run as a part of a trace, and gives its id and its session's when it is over.
async fn traced_run(cluster: &Cluster, caller: &Web) -> (String, String) {
    let body = json!({ "create_session": true, "tools": { "calls": [{ "tool": "noop" }] } });
    let request = web::json(caller.request(Method::POST, "/sessions/s1/runs"), &body);
    let submitted = answer(request.header("traceparent", format!("00-{TRACE}-b7ad6b7169203331-01"))).await;
    assert_eq!(submitted.status, StatusCode::ACCEPTED, "{submitted:?}");
    let run = finished(&cluster.client(), &submitted.text("run_id")).await;
    (run.id, run.session_id)
}

#[tokio::test]
async fn lines_say_whose_work_it_was_and_hold_no_secret() {
    let (mut cluster, secret) = cluster().await;
    cluster.all_answer().await;
    let changed = cluster.cli.json(&["log-filter", "set", "debug", "--for", "10m"]).await;
    assert_eq!(changed.len(), 3, "{changed:?}");
    let web = Web::new(cluster.control_plane.endpoint()).with_key(&secret);
    let (run, session) = traced_run(&cluster, &web).await;

    let worker = &cluster.workers[0];
    for message in ["a run begins, or goes on", "a run has ended"] {
        let said = said(&worker.process, message);
        let line =
            said.iter().find(|line| line["run"] == run).unwrap_or_else(|| panic!("{message}: {said:?}"));
        assert_eq!((&line["session"], &line["trace_id"]), (&json!(session), &json!(TRACE)), "{line}");
        assert!(line["tenant"].as_str().unwrap().starts_with("ten_"), "{line}");
        assert_eq!(line["worker"], worker.worker_id().await, "{line}");
    }

    // A request that is refused is found by its id, with its trace, and its tenant once that is known.
    let request = web.request(Method::GET, "/runs/nonsense").header("x-request-id", "find-me");
    answer(request.header("traceparent", format!("00-{TRACE}-b7ad6b7169203331-01"))).await;
    let refused = said(&cluster.control_plane.process, "a call was refused");
    let line = refused.iter().find(|line| line["request_id"] == "find-me").expect("the refused request");
    assert_eq!((&line["trace_id"], &line["method"]), (&json!(TRACE), &json!("GET /api/v1/runs/nonsense")));
    assert!(line["tenant"].is_string(), "{line}");
    // One with a wrong key, over gRPC.
    let wrong = "rmd_0123456789abcdef0123456789abcdef";
    assert_eq!(cluster.cli.with_key(wrong).run(&["runs", "list"]).await.code, 5);
    let refused = said(&cluster.control_plane.process, "a call was refused");
    let line = refused.iter().find(|line| line["code"] == "unauthenticated").expect("the wrong key");
    assert_eq!(line["method"], "POST /remuda.v1.RunService/ListRuns");
    assert!(line["request_id"].as_str().unwrap().starts_with("req_"), "{line}");

    // What tools say is theirs.
    let hostile = submission(
        "s1",
        vec![bash("echo hi"), crate::api::call("noop", &json!({ "fail": "\u{1b}[31m\nx" }))],
    );
    let run = cluster.client().submit(hostile).await.unwrap().run.unwrap().id;
    finished(&cluster.client(), &run).await;
    for server in [&mut cluster.control_plane, &mut cluster.workers[0], &mut cluster.stream] {
        server.process.signal(Signal::SIGTERM);
        server.process.exit_code().await;
    }
    for server in cluster.servers() {
        let text = server.process.stderr();
        assert!(!lines(&server.process).is_empty());
        for hidden in [secret.as_str(), PASSWORD, "Sup3r-s@fe", wrong, "\u{1b}"] {
            assert!(!text.contains(hidden), "{hidden} in {text}");
        }
    }
    // A database that is gone is complained about, and its address is not told with its password.
    let failed = cluster.services.serve_with_wrong_port().await;
    assert!(!failed.contains(PASSWORD) && !failed.contains("Sup3r-s@fe"), "{failed}");
}

impl Services {
    /// What a worker says whose database does not answer.
    async fn serve_with_wrong_port(&self) -> String {
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
async fn a_level_is_changed_everywhere_and_comes_back() {
    let (cluster, secret) = cluster().await;
    cluster.all_answer().await;
    let web = Web::new(cluster.control_plane.endpoint()).with_key(&secret);
    let ended = || said(&cluster.workers[0].process, "a run has ended").len();
    traced_run(&cluster, &web).await;
    assert_eq!(ended(), 0, "the start value is info");

    let changed =
        cluster.cli.json(&["log-filter", "set", "info,remuda_worker=debug", "--only", "worker"]).await;
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert_eq!((&changed[0]["roles"], &changed[0]["start_filter"]), (&json!(["worker"]), &json!("info")));
    assert!(changed[0]["until"].is_string());
    traced_run(&cluster, &web).await;
    wait_for("the worker to say more", PATIENCE, || std::future::ready(ended() == 1)).await;

    // All, for a moment; over HTTP this time.
    let body = json!({ "filter": "warn,remuda_worker=debug", "lasts_ms": 2000 });
    let changed = answer(web::json(web.request(Method::PUT, "/log-filter"), &body)).await;
    assert_eq!(changed.status, StatusCode::OK, "{changed:?}");
    let items = changed.body["items"].as_array().unwrap();
    assert_eq!(items.len(), 3, "{changed:?}");
    assert_eq!(items[0]["roles"], json!(["control-plane"]), "the one that answers comes first");
    for server in cluster.servers() {
        let process = &server.process;
        wait_for("the filter to go back", PATIENCE, || {
            std::future::ready(said(process, "the log filter is back to what it was").len() == 1)
        })
        .await;
        let audit = said(process, "the log filter was changed");
        let last = audit.last().unwrap();
        assert_eq!((&last["target"], &last["filter"]), (&json!("remuda_audit"), &body["filter"]), "{last}");
        assert!(last["by"].as_str().unwrap().contains(" of ten_"), "{last}");
    }
    let shown = cluster.cli.json(&["log-filter", "get"]).await;
    assert!(shown.iter().all(|it| it["filter"] == "info" && it["until"].is_null()), "{shown:?}");
    let before = ended();
    traced_run(&cluster, &web).await;
    // What comes after the run in the worker's log, had it said so.
    cluster.cli.json(&["log-filter", "set", "off", "--only", "worker"]).await;
    assert_eq!(ended(), before);
    let reset = cluster.cli.json(&["log-filter", "reset"]).await;
    assert!(reset.len() == 3 && reset.iter().all(|it| it["filter"] == "info"), "{reset:?}");
}

#[tokio::test]
async fn bad_wishes_are_refused_by_field_and_who_may_not_cannot() {
    let (cluster, _) = cluster().await;
    for (arguments, field) in [
        (["deubg", "--for", "5m"], "filter"),
        (["remuda_worker=loud", "--for", "5m"], "filter"),
        (["debug", "--for", "0s"], "lasts"),
        (["debug", "--for", "2days"], "lasts"),
    ] {
        let arguments =
            ["log-filter", "set"].into_iter().chain(arguments).chain(["--json"]).collect::<Vec<_>>();
        let done = cluster.cli.run(&arguments).await;
        assert_eq!(done.code, 2, "{done:?}");
        assert_eq!(done.error(), ("invalid_argument".to_owned(), field.to_owned()));
    }
    let (_, writes) = cluster.services.create_key("acme", &["write"]).await;
    assert_eq!(cluster.cli.with_key(&writes).run(&["log-filter", "get"]).await.code, 5);
    assert_eq!(cluster.cli.with_key(&writes).run(&["log-filter", "set", "off"]).await.code, 5);
    let web = Web::new(cluster.control_plane.endpoint()).with_key(&writes);
    assert_eq!(web.get("/log-filter").await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn one_process_with_all_roles_is_one_process() {
    let dev = Dev::start().await;
    let shown = dev.cli.one(&["log-filter"]).await;
    assert_eq!(shown["roles"], json!(["control-plane", "worker", "stream"]));
    let set = dev.cli.one(&["log-filter", "set", "debug", "--only", "self", "--for", "1m"]).await;
    assert_eq!((&set["filter"], &set["process"]), (&json!("debug"), &shown["process"]));
    let people = dev.cli.run(&["log-filter", "get"]).await;
    assert!(people.stdout.contains("STARTED WITH") && people.stdout.contains("debug"), "{}", people.stdout);
}
