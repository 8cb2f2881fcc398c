//! Submitting a run and waiting for its end in one call.

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
    harness::{Dev, PATIENCE},
    web::Web,
};

fn waiting(session: &str, sleep_ms: u64, wait: Duration) -> v1::SubmitRunRequest {
    v1::SubmitRunRequest { wait: wait.try_into().ok(), ..submission(session, vec![noop(sleep_ms)]) }
}

async fn waited(client: &Client, request: v1::SubmitRunRequest) -> v1::Run {
    client.submit(request).await.unwrap().run.unwrap()
}

/// Who waited was told of the end of a run; who asks later reads it from the store. Both see the same, to the microsecond.
async fn as_stored(client: &Client, runs: &[v1::Run]) {
    for run in runs {
        let stored = client.wait_run(&run.id, Duration::ZERO).await.unwrap();
        assert_eq!((stored.finished, stored.run.as_ref()), (true, Some(run)));
    }
}

#[tokio::test]
async fn the_answer_is_the_finished_run() {
    let dev = Dev::start().await;
    let client = dev.client();
    let run = waited(&client, waiting("s1", 30, PATIENCE)).await;
    assert_eq!((state(&run), run.outcomes.len()), (RunState::Completed, 1));
    as_stored(&client, &[run]).await;

    // Many who wait in one session get their own runs, in the order of the session.
    let runs = join_all((0..20).map(|_| waited(&client, waiting("s1", 0, PATIENCE)))).await;
    assert!(runs.iter().all(|run| state(run) == RunState::Completed));
    as_stored(&client, &runs).await;
    let mut numbers: Vec<i64> = runs.iter().map(|run| run.seq).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (2..=21).collect::<Vec<_>>());
}

#[tokio::test]
async fn who_waits_for_less_gets_the_run_as_it_is() {
    let dev = Dev::start().await;
    let client = dev.client();
    let run = waited(&client, waiting("s1", 60_000, Duration::from_millis(50))).await;
    assert!(matches!(state(&run), RunState::Queued | RunState::Running), "{run:?}");
    // Nobody stopped it: the session is still busy with it.
    let behind = waited(&client, waiting("s1", 0, Duration::ZERO)).await;
    assert_eq!(state(&behind), RunState::Queued);
    // One that is stopped has ended, too.
    let cancelled = dev.cli.run(&["cancel", &run.id]).await;
    assert_eq!(cancelled.code, 0, "{}", cancelled.stderr);
    let ended = client.wait_until_finished(&run.id).await.unwrap();
    assert_eq!(state(&ended), RunState::Cancelled);
}

#[tokio::test]
async fn a_repeated_request_waits_for_the_first_ones_run() {
    let dev = Dev::start().await;
    let client = dev.client();
    let keyed = || v1::SubmitRunRequest { idempotency_key: "k".to_owned(), ..waiting("s1", 200, PATIENCE) };
    let (first, second) = tokio::join!(waited(&client, keyed()), waited(&client, keyed()));
    assert_eq!((&first.id, state(&first)), (&second.id, RunState::Completed));
    assert_eq!(waited(&client, keyed()).await, first);
}

#[tokio::test]
async fn over_http_too() {
    let dev = Dev::start().await;
    let web = Web::new(dev.server.endpoint());
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
async fn on_a_cluster_too() {
    let cluster = Cluster::start(&nats_binaries().remove(0), 1).await;
    let client = cluster.cli.client();
    let runs = join_all((0..40).map(|number| {
        let request = waiting(&format!("s{}", number % 7), 0, PATIENCE);
        waited(&client, request)
    }));
    let runs = runs.await;
    assert!(runs.iter().all(|run| state(run) == RunState::Completed));
    as_stored(&client, &runs).await;
}
