//! Locked rules in `tools` runs, over the CLI, HTTP and gRPC, with both stores.

use std::path::Path;

use remuda_client::Client;
use remuda_domain::RunState;
use remuda_testkit::{nats_binaries, wait_for};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    api::{bash, state, submit, wait_for_end},
    cluster::Cluster,
    harness::{Cli, Dev, Server, TIMEOUT, temporary_directory, variables},
    http_client::{HttpClient, send},
};

/// Locked by the operator: `ask` about the program `touch`, `deny` the program `shred`.
const RULES: (&str, &str) = (
    "REMUDA_PERMISSIONS__RULES",
    r#"[{ permission = "bash", pattern = "touch *", action = "ask", locked = true },
        { permission = "bash", pattern = "shred *", action = "deny", locked = true }]"#,
);

/// A server as its clients see it.
struct Api {
    /// May write.
    cli: Cli,
    client: Client,
    web: HttpClient,
    /// May approve.
    approver: Cli,
    approving_web: HttpClient,
}

impl Api {
    fn new(cli: &Cli, approver: &Cli, web: &HttpClient, approving_web: &HttpClient) -> Self {
        let (cli, approver, client) = (cli.clone(), approver.clone(), cli.client());
        Self { cli, client, web: web.clone(), approver, approving_web: approving_web.clone() }
    }

    /// Submits a call that needs approval, waits until its run is parked, and returns the run and the approval.
    async fn parked(&self, session: &str, file: &Path) -> (String, String) {
        let calls = vec![bash(&format!("touch {}", file.display())), bash("echo after")];
        let run = submit(&self.client, session, calls).await;
        let approval = self.approval_of(&run).await;
        assert!(!file.try_exists().unwrap(), "the call was made without its approval");
        (run, approval)
    }

    async fn approval_of(&self, run: &str) -> String {
        wait_for("the run to be parked", TIMEOUT, || async {
            self.cli.one(&["runs", "show", run]).await["state"] == "parked"
        })
        .await;
        let pending = self.cli.json(&["approvals", "list", "--run", run]).await;
        assert_eq!(pending.len(), 1, "{pending:?}");
        pending[0]["id"].as_str().unwrap().to_owned()
    }

    async fn decide(&self, approval: &str, body: &Value) -> crate::http_client::HttpResponse {
        self.approving_web.post(&format!("/approvals/{approval}/decision"), body).await
    }
}

fn statuses(run: &remuda_proto::v1::Run) -> Vec<&str> {
    run.outcomes.iter().map(|outcome| outcome.status.as_str()).collect()
}

async fn everything(api: &Api, directory: &Path) {
    // Approved with the CLI.
    let file = directory.join("cli");
    let (run, approval) = api.parked("cli", &file).await;
    let shown = api.cli.run(&["approvals", "show", &approval]).await.stdout;
    assert!(shown.contains("the platform asks about bash `touch *`"), "{shown}");
    let explained = api.cli.one(&["explain", &run]).await;
    assert_eq!(explained["waits"][0]["kind"], "approval", "{explained}");
    assert!(explained["waits"][0]["message"].as_str().unwrap().starts_with("the run wants to call Bash"));
    let approved = api.approver.run(&["approvals", "approve", &approval]).await;
    assert_eq!(approved.code, 0, "{}", approved.stderr);
    let ended = wait_for_end(&api.client, &run).await;
    assert_eq!((state(&ended), statuses(&ended)), (RunState::Completed, vec!["completed"; 2]));
    assert!(file.try_exists().unwrap());

    // Denied over HTTP.
    let file = directory.join("http");
    let (run, approval) = api.parked("http", &file).await;
    let denied = api.decide(&approval, &json!({ "approve": false, "message": "not now" })).await;
    assert_eq!((denied.status, &denied.body["state"]), (StatusCode::OK, &json!("denied")), "{denied:?}");
    let ended = wait_for_end(&api.client, &run).await;
    assert_eq!((state(&ended), statuses(&ended)), (RunState::Failed, vec!["failed", "skipped"]));
    assert!(ended.outcomes[0].failure.as_ref().unwrap().message.contains("not now"), "{ended:?}");
    assert!(!file.try_exists().unwrap());

    // A denied call, submitted over HTTP with the results awaited.
    let calls = json!([{ "tool": "Bash", "arguments": { "command": "true; shred x" } }]);
    let run = api.web.submit("denied", &calls).await;
    let waited = api.web.get(&format!("/runs/{run}/wait?timeout=30s")).await;
    let outcome = &waited.body["run"]["outcomes"][0];
    assert_eq!(outcome["failure"]["code"], "call_denied", "{waited:?}");

    // Cancelled while it waits.
    let file = directory.join("cancelled");
    let (run, approval) = api.parked("cancelled", &file).await;
    let cancelled = send(api.web.request(Method::POST, &format!("/runs/{run}/cancel"))).await;
    assert!(cancelled.status.is_success(), "{cancelled:?}");
    let ended = wait_for_end(&api.client, &run).await;
    assert_eq!((state(&ended), statuses(&ended)), (RunState::Cancelled, vec!["cancelled"; 2]));
    let late = api.decide(&approval, &json!({ "approve": true })).await;
    assert_eq!((late.status, late.error().0), (StatusCode::CONFLICT, "approval_decided"));
    assert!(!file.try_exists().unwrap());
}

/// The run goes on on a process that started after it was parked.
async fn assert_approved_after_restart(api: &Api, run: &str, approval: &str, file: &Path) {
    assert!(!file.try_exists().unwrap());
    let approved = api.decide(approval, &json!({ "approve": true })).await;
    assert_eq!(approved.status, StatusCode::OK, "{approved:?}");
    let ended = wait_for_end(&api.client, run).await;
    assert_eq!((state(&ended), statuses(&ended)), (RunState::Completed, vec!["completed"; 2]));
    assert!(file.try_exists().unwrap());
}

async fn dev(directory: &Path, more: &[(&str, &str)]) -> (Server, Api) {
    let data = directory.join("data");
    let arguments = ["dev", "--data-dir", data.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let server = Server::start(&arguments, &variables(&[&[RULES], more].concat())).await;
    let (cli, web) = (Cli::new(server.endpoint()), HttpClient::new(server.endpoint()));
    let api = Api::new(&cli, &cli, &web, &web);
    (server, api)
}

#[tokio::test]
async fn locked_rules_judge_tools_runs_on_sqlite() {
    let directory = temporary_directory();
    let (mut server, api) = dev(directory.path(), &[]).await;
    everything(&api, directory.path()).await;
    let file = directory.path().join("restarted");
    let (run, approval) = api.parked("restarted", &file).await;
    server.process.kill();
    drop(server);
    let (_server, api) = dev(directory.path(), &[]).await;
    assert_approved_after_restart(&api, &run, &approval, &file).await;
}

#[tokio::test]
async fn approval_of_a_tools_run_expires() {
    let directory = temporary_directory();
    let (_server, api) = dev(directory.path(), &[("REMUDA_PERMISSIONS__EXPIRE_AFTER", "1s")]).await;
    let file = directory.path().join("expired");
    let run = submit(&api.client, "s1", vec![bash(&format!("touch {}", file.display()))]).await;
    let ended = wait_for_end(&api.client, &run).await;
    let failure = ended.outcomes[0].failure.as_ref().unwrap();
    assert_eq!((state(&ended), failure.code.as_str()), (RunState::Failed, "approval_expired"));
    assert!(!file.try_exists().unwrap());
}

#[tokio::test]
async fn tools_runs_need_no_approval_without_locked_rules() {
    let dev = Dev::start().await;
    let file = dev.path("file");
    let run = submit(&dev.client(), "s1", vec![bash(&format!("touch {file}"))]).await;
    assert_eq!(state(&wait_for_end(&dev.client(), &run).await), RunState::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_rules_judge_tools_runs_on_postgresql() {
    let directory = temporary_directory();
    let mut cluster = Cluster::start_with(&nats_binaries()[0], 1, &[RULES]).await;
    let (_, secret) = cluster.services.create_key("acme", &["approve", "read"]).await;
    let approver = Cli::new(cluster.control_plane.endpoint()).with_key(&secret);
    let web = HttpClient::new(cluster.control_plane.endpoint());
    let (writing, approving) = (web.with_key(cluster.cli.key()), web.with_key(&secret));
    let api = Api::new(&cluster.cli, &approver, &writing, &approving);
    everything(&api, directory.path()).await;

    let file = directory.path().join("restarted");
    let (run, approval) = api.parked("restarted", &file).await;
    let own = api.web.post(&format!("/approvals/{approval}/decision"), &json!({ "approve": true })).await;
    assert_eq!(own.status, StatusCode::FORBIDDEN, "a key that writes does not approve");
    cluster.workers[0].process.kill();
    let worker = cluster.services.worker().await;
    cluster.workers.push(worker);
    assert_approved_after_restart(&api, &run, &approval, &file).await;
}
