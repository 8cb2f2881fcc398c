//! `remuda dev` on a disk that fills up, and has room again.

use remuda_testkit::{SmallDisk, wait_for};
use reqwest::StatusCode;
use serde_json::json;

use crate::{
    harness::{Cli, Server, TIMEOUT, temporary_directory},
    http_client::HttpClient,
};

#[tokio::test]
async fn server_tells_of_a_full_disk_and_continues_by_itself() {
    let (disk, elsewhere) = (SmallDisk::mount(24 << 20).unwrap(), temporary_directory());
    let (data, workspaces) = (disk.path().join("data"), elsewhere.path().join("workspaces"));
    let set_root = format!("workspaces.root={}", workspaces.display());
    let arguments =
        ["dev", "--data-dir", data.to_str().unwrap(), "--listen", "127.0.0.1:0", "--set", &set_root];
    let mut server = Server::start(&arguments, &[]).await;
    let http = HttpClient::new(server.endpoint());
    assert_eq!(http.get("//readyz").await.status, StatusCode::OK);

    // A run that ends while the disk is full.
    let gate = elsewhere.path().join("gate");
    let command = format!("while [ ! -e {} ]; do sleep 0.02; done; echo done", gate.display());
    let waiting = json!([{ "tool": "Bash", "arguments": { "command": command } }]);
    let run = http.submit("waits", &waiting).await;
    wait_for("the run to start", TIMEOUT, || async {
        http.get(&format!("/runs/{run}")).await.body["state"] == "running"
    })
    .await;

    disk.fill().unwrap();
    std::fs::write(&gate, "").unwrap();
    let body = json!({ "create_session": true, "tools": { "calls": [{ "tool": "noop" }] } });
    // Files of the database that exist may still have room.
    let refused = wait_for("a refused submit", TIMEOUT, || async {
        let response = http.post("/sessions/new/runs", &body).await;
        (response.status != StatusCode::ACCEPTED).then_some(response)
    })
    .await;
    assert_eq!((refused.status, refused.error().0), (StatusCode::SERVICE_UNAVAILABLE, "storage_full"));
    assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    assert!(refused.body["error"]["message"].as_str().unwrap().contains("disk is full"), "{refused:?}");
    wait_for("the server to be unready", TIMEOUT, || async {
        let readiness = http.get("//readyz").await;
        let store = json!({ "name": "store", "status": "full" });
        let says_why = readiness.body["dependencies"].as_array().unwrap().contains(&store);
        readiness.status == StatusCode::SERVICE_UNAVAILABLE && says_why
    })
    .await;
    assert_eq!(http.get("//healthz").await.status, StatusCode::OK, "a restart would not help");
    assert_eq!(http.get(&format!("/runs/{run}")).await.status, StatusCode::OK, "reads need no room");
    let cli = Cli::new(server.endpoint()).run(&["run", "--tool", "noop", "--session", "other"]).await;
    assert_eq!(cli.code, 3, "the command may be repeated: {}", cli.stderr);

    disk.free().unwrap();
    wait_for("the server to be ready", TIMEOUT, || async {
        http.get("//readyz").await.status == StatusCode::OK
    })
    .await;
    let accepted = http.post("/sessions/new/runs", &body).await;
    assert_eq!(accepted.status, StatusCode::ACCEPTED, "{accepted:?}");
    for run in [accepted.text("run_id"), run] {
        wait_for("the runs to end", TIMEOUT, || async {
            http.get(&format!("/runs/{run}")).await.body["state"] == "completed"
        })
        .await;
    }
    assert!(!server.process.has_ended());
}
