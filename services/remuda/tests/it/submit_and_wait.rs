//! Submit with `wait`: submitting a run and waiting for its end in one call.

use std::time::Duration;

use futures::future::join_all;
use remuda_client::Client;
use remuda_domain::RunState;
use remuda_proto::v1;
use remuda_testkit::nats_binaries;
use reqwest::StatusCode;
use serde_json::json;

use crate::{
    api::{noop, state, submission},
    cluster::Cluster,
    harness::{Dev, TIMEOUT},
    http_client::HttpClient,
};

fn wait_request(session: &str, sleep_ms: u64, wait: Duration) -> v1::SubmitRunRequest {
    v1::SubmitRunRequest { wait: wait.try_into().ok(), ..submission(session, vec![noop(sleep_ms)]) }
}

async fn submit_and_wait(client: &Client, request: v1::SubmitRunRequest) -> v1::Run {
    client.submit(request).await.unwrap().run.unwrap()
}

/// Asserts that the runs returned to waiters equal those in the store, to the microsecond: waiters get the end from a notice.
async fn assert_stored_equal(client: &Client, runs: &[v1::Run]) {
    for run in runs {
        let stored = client.wait_run(&run.id, Duration::ZERO).await.unwrap();
        assert_eq!((stored.finished, stored.run.as_ref()), (true, Some(run)));
    }
}

#[tokio::test]
async fn submit_with_wait_returns_the_finished_run() {
    let dev = Dev::start().await;
    let client = dev.client();
    let run = submit_and_wait(&client, wait_request("s1", 30, TIMEOUT)).await;
    assert_eq!((state(&run), run.outcomes.len()), (RunState::Completed, 1));
    assert_stored_equal(&client, &[run]).await;

    // Many waiters of one session each get their own run.
    let runs = join_all((0..20).map(|_| submit_and_wait(&client, wait_request("s1", 0, TIMEOUT)))).await;
    assert!(runs.iter().all(|run| state(run) == RunState::Completed));
    assert_stored_equal(&client, &runs).await;
    let mut numbers: Vec<i64> = runs.iter().map(|run| run.seq).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (2..=21).collect::<Vec<_>>());
}

#[tokio::test]
async fn submit_with_a_short_wait_returns_the_unfinished_run() {
    let dev = Dev::start().await;
    let client = dev.client();
    let run = submit_and_wait(&client, wait_request("s1", 60_000, Duration::from_millis(50))).await;
    assert!(matches!(state(&run), RunState::Queued | RunState::Running), "{run:?}");
    // The run was not cancelled: the session is still busy with it.
    let behind = submit_and_wait(&client, wait_request("s1", 0, Duration::ZERO)).await;
    assert_eq!(state(&behind), RunState::Queued);
    // A cancelled run ends the wait too.
    let cancelled = dev.cli.run(&["cancel", &run.id]).await;
    assert_eq!(cancelled.code, 0, "{}", cancelled.stderr);
    let ended = client.wait_until_finished(&run.id).await.unwrap();
    assert_eq!(state(&ended), RunState::Cancelled);
}

#[tokio::test]
async fn repeated_request_waits_for_the_first_run() {
    let dev = Dev::start().await;
    let client = dev.client();
    let keyed =
        || v1::SubmitRunRequest { idempotency_key: "k".to_owned(), ..wait_request("s1", 200, TIMEOUT) };
    let (first, second) = tokio::join!(submit_and_wait(&client, keyed()), submit_and_wait(&client, keyed()));
    assert_eq!((&first.id, state(&first)), (&second.id, RunState::Completed));
    assert_eq!(submit_and_wait(&client, keyed()).await, first);
}

#[tokio::test]
async fn submit_with_wait_works_over_http() {
    let dev = Dev::start().await;
    let web = HttpClient::new(dev.server.endpoint());
    web.post("/sessions", &json!({ "name": "s1" })).await;
    let calls = |sleep_ms: u64| json!({ "tools": { "calls": [{ "tool": "noop", "arguments": { "sleep_ms": sleep_ms } }] } });
    let done = web.post("/sessions/s1/runs?wait=60s", &calls(0)).await;
    assert_eq!((done.status, &done.body["run"]["state"]), (StatusCode::OK, &json!("completed")), "{done:?}");
    let early = web.post("/sessions/s1/runs?wait=10ms", &calls(60_000)).await;
    assert_eq!((early.status, early.body.get("run")), (StatusCode::ACCEPTED, None), "{early:?}");
    let wrong = web.post("/sessions/s1/runs?wait=soon", &calls(0)).await;
    assert_eq!((wrong.status, wrong.error().0), (StatusCode::BAD_REQUEST, "invalid_argument"), "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn submit_with_wait_works_on_a_cluster() {
    let cluster = Cluster::start(&nats_binaries().remove(0), 1).await;
    let client = cluster.cli.client();
    let runs = join_all((0..40).map(|number| {
        let request = wait_request(&format!("s{}", number % 7), 0, TIMEOUT);
        submit_and_wait(&client, request)
    }));
    let runs = runs.await;
    assert!(runs.iter().all(|run| state(run) == RunState::Completed));
    assert_stored_equal(&client, &runs).await;
}
