//! Small clusters and runs on them.

use std::time::Duration;

use rand::{SeedableRng as _, rngs::StdRng};
use remuda_client::{Client, ClientOptions};
use remuda_cluster::{Cluster, ClusterOptions, FaultKind, FaultRecord, find_or_build_remuda};
use remuda_domain::RunState;
use remuda_proto::v1;
use remuda_testkit::{nats_binaries, wait_for};

/// Generous: the machine may be busy with other tests.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// One control plane, two workers and one stream service, on the newest available nats-server.
pub(crate) fn options() -> ClusterOptions {
    let remuda = find_or_build_remuda(false).unwrap();
    let nats = nats_binaries().pop().unwrap();
    ClusterOptions { control_planes: 1, workers: 2, streams: 1, ..ClusterOptions::new(remuda, nats) }
}

pub(crate) async fn small_cluster() -> Cluster {
    Cluster::start(options()).await.unwrap()
}

pub(crate) fn client(cluster: &Cluster) -> Client {
    let options = ClientOptions {
        endpoint: cluster.control_plane_endpoints().remove(0),
        api_key: Some(cluster.api_key().into()),
        ..ClientOptions::default()
    };
    Client::connect(options).unwrap()
}

pub(crate) fn bash(command: &str) -> v1::ToolCall {
    let arguments = serde_json::json!({ "command": command }).to_string();
    v1::ToolCall { tool: "Bash".to_owned(), arguments, ..Default::default() }
}

/// A run of these calls.
pub(crate) fn submission(session: &str, calls: Vec<v1::ToolCall>) -> v1::SubmitRunRequest {
    let tools = v1::ToolsInput { calls, ..Default::default() };
    v1::SubmitRunRequest {
        session: session.to_owned(),
        create_session: true,
        idempotency_key: format!("{session}-{}", rand::random::<u64>()),
        input: Some(v1::submit_run_request::Input::Tools(tools)),
        ..Default::default()
    }
}

/// Submits a run of these calls and returns its id. Retries while the server is unreachable.
pub(crate) async fn submit(client: &Client, session: &str, calls: Vec<v1::ToolCall>) -> String {
    client.submit(submission(session, calls)).await.unwrap().run.unwrap().id
}

pub(crate) async fn wait_for_end(client: &Client, run: &str) -> v1::Run {
    match tokio::time::timeout(TIMEOUT, client.wait_until_finished(run)).await {
        Ok(ended) => ended.unwrap(),
        Err(_) => panic!(
            "the run does not end: {:?}",
            client.explain_run(v1::ExplainRunRequest { run_id: run.to_owned() }).await
        ),
    }
}

pub(crate) fn state(run: &v1::Run) -> RunState {
    remuda_proto::convert::run_state("state", run.state).unwrap()
}

/// Submits a tool call that sleeps longer than any test, and waits until it runs.
pub(crate) async fn start_sleeper(cluster: &Cluster, client: &Client) -> String {
    let run = submit(client, "sleeper", vec![bash("sleep 300"), bash("echo after")]).await;
    wait_for("the tool", TIMEOUT, || {
        let runs = |worker: &remuda_cluster::Member| {
            worker.tools().iter().any(|tool| tool.cmdline.contains("sleep 300"))
        };
        std::future::ready(cluster.workers().iter().any(runs))
    })
    .await;
    run
}

/// Injects a fault and asserts that it observed no misbehaviour.
pub(crate) async fn inject(cluster: &Cluster, kind: FaultKind, seed: u64) -> FaultRecord {
    let record = kind.inject(cluster, &mut StdRng::seed_from_u64(seed)).await.unwrap();
    println!("{record:?}");
    assert_eq!((record.kind, &record.problems[..]), (kind, &[][..]));
    assert!(record.began < record.ended);
    record
}

/// Asserts that the cluster completes a run.
pub(crate) async fn assert_works(client: &Client) {
    let run = submit(client, "proof", vec![bash("echo works")]).await;
    assert_eq!(state(&wait_for_end(client, &run).await), RunState::Completed);
}
