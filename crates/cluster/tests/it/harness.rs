//! Small clusters and runs in them.

use std::time::Duration;

use rand::{SeedableRng as _, rngs::StdRng};
use remuda_client::{Client, ClientOptions};
use remuda_cluster::{Cluster, ClusterOptions, FaultKind, FaultRecord, find_or_build_remuda};
use remuda_domain::RunState;
use remuda_proto::v1;
use remuda_testkit::{nats_binaries, wait_for};

/// Generous: the machine may be busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One control plane, two workers, one stream service, on the newest nats-server there is.
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

/// Submits a run of these calls and gives its id. Tries again while the server cannot be reached.
pub(crate) async fn submit(client: &Client, session: &str, calls: Vec<v1::ToolCall>) -> String {
    let tools = v1::ToolsInput { calls, ..Default::default() };
    let request = v1::SubmitRunRequest {
        session: session.to_owned(),
        create_session: true,
        idempotency_key: format!("{session}-{}", rand::random::<u64>()),
        input: Some(v1::submit_run_request::Input::Tools(tools)),
        ..Default::default()
    };
    client.submit(request).await.unwrap().run.unwrap().id
}

pub(crate) async fn finished(client: &Client, run: &str) -> v1::Run {
    match tokio::time::timeout(PATIENCE, client.wait_until_finished(run)).await {
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

/// Submits a tool that sleeps for longer than any test, and waits until it runs.
pub(crate) async fn sleeper(cluster: &Cluster, client: &Client) -> String {
    let run = submit(client, "sleeper", vec![bash("sleep 300"), bash("echo after")]).await;
    wait_for("the tool", PATIENCE, || {
        let runs = |worker: &remuda_cluster::Member| {
            worker.tools().iter().any(|tool| tool.cmdline.contains("sleep 300"))
        };
        std::future::ready(cluster.workers().iter().any(runs))
    })
    .await;
    run
}

/// Injects a fault in which the system does nothing wrong.
pub(crate) async fn inject(cluster: &Cluster, kind: FaultKind, seed: u64) -> FaultRecord {
    let record = kind.inject(cluster, &mut StdRng::seed_from_u64(seed)).await.unwrap();
    println!("{record:?}");
    assert_eq!((record.kind, &record.problems[..]), (kind, &[][..]));
    assert!(record.began < record.ended);
    record
}

/// Proves that the cluster works.
pub(crate) async fn assert_works(client: &Client) {
    let run = submit(client, "proof", vec![bash("echo works")]).await;
    assert_eq!(state(&finished(client, &run).await), RunState::Completed);
}
