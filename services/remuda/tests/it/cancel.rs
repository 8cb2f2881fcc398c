//! Cancellation with a receipt for every stage: single runs, session trees, and runs whose worker is dead.

use std::time::{Duration, Instant};

use remuda_domain::RunState;
use remuda_proto::v1;
use remuda_testkit::{nats_binaries, wait_for};
use serde_json::Value;

use crate::{
    api::{bash, check_run_order, history, noop, session, state, submit, wait_for_end},
    cluster::Cluster,
    harness::{Cli, Dev, TIMEOUT, is_alive, pids, temporary_directory, wait_until_gone},
};

/// The worker lease that `cluster.rs` configures.
const LEASE: Duration = Duration::from_secs(3);

fn event_types(events: &[v1::Event], run: &str) -> Vec<String> {
    events.iter().filter(|event| event.run_id == run).map(|event| event.r#type.clone()).collect()
}

/// The times of a cancelled run's receipts, in their expected order.
fn receipt_times(run: &Value) -> Vec<&str> {
    ["requested_at", "delivered_at", "stopped_at", "released_at"]
        .into_iter()
        .filter_map(|stage| run["cancel"][stage].as_str())
        .collect()
}

fn receipt_names(explained: &Value) -> Vec<&str> {
    explained["receipts"].as_array().unwrap().iter().filter_map(|receipt| receipt["name"].as_str()).collect()
}

#[tokio::test]
async fn cancelled_executing_run_has_all_receipts_in_order() {
    let dev = Dev::start().await;
    let (client, path) = (dev.client(), dev.path("pids"));
    let script = format!("sleep 300 & echo $! >> {path}; echo $$ >> {path}; wait");
    let run = submit(&client, "s1", vec![bash(&script), noop(0)]).await;
    wait_for("the tool", TIMEOUT, || std::future::ready(pids(&path).len() == 2)).await;

    let cancelled = dev.cli.one(&["cancel", &run, "--wait", "--reason", "wrong branch"]).await;
    assert!(!pids(&path).iter().any(|pid| is_alive(*pid)), "processes are dead once the run is over");
    assert_eq!((&cancelled["state"], &cancelled["already_finished"]), (&"cancelled".into(), &false.into()));
    assert_eq!(cancelled["cancel"]["reason"], "wrong branch");
    let stages = receipt_times(&cancelled);
    assert_eq!(stages.len(), 4, "{cancelled}");
    assert!(stages.is_sorted(), "{cancelled}");
    assert_eq!(cancelled["finished_at"], cancelled["cancel"]["released_at"]);

    let explained = dev.cli.one(&["explain", &run]).await;
    assert_eq!(receipt_names(&explained), ["requested", "delivered", "stopped", "released"]);
    let events = history(&client, "s1").await;
    let types = event_types(&events, &run);
    let stages: Vec<&str> = types
        .iter()
        .map(String::as_str)
        .filter(|name| name.contains("cancel") || *name == "run.stopped")
        .collect();
    assert_eq!(stages, ["run.cancel_requested", "run.cancel_delivered", "run.stopped", "run.cancelled"]);
    check_run_order(&events);

    // The human-readable output shows the same receipts.
    for command in [&["explain", &run][..], &["runs", "show", &run]] {
        let shown = dev.cli.run(command).await.stdout;
        for words in ["requested", "delivered", "processes dead", "slot free", "+"] {
            assert!(shown.contains(words), "{words} in {shown}");
        }
    }
    let watched = dev.cli.run(&["watch", &run]).await.stdout;
    assert!(watched.contains("stopped: no process is left"), "{watched}");
    let again = dev.cli.run(&["cancel", &run, "--wait"]).await;
    assert!(again.stdout.contains("already finished"), "{}", again.stdout);
}

#[tokio::test]
async fn cancelled_queued_run_has_no_delivery_receipt() {
    let dev = Dev::start().await;
    let client = dev.client();
    let first = submit(&client, "s1", vec![noop(60_000)]).await;
    let second = submit(&client, "s1", vec![noop(0)]).await;
    let cancelled = dev.cli.one(&["cancel", &second, "--wait"]).await;
    assert_eq!(cancelled["state"], "cancelled");
    assert!(cancelled["cancel"].get("delivered_at").is_none(), "{cancelled}");
    assert_eq!(receipt_names(&dev.cli.one(&["explain", &second]).await), ["requested", "released"]);
    let shown = dev.cli.run(&["cancel", &first, "--wait"]).await.stdout;
    assert!(shown.starts_with("the run is cancelled\n") && shown.contains("slot free"), "{shown}");
}

/// Creates a child session and returns its id.
async fn child(cli: &Cli, name: &str, parent: &str) -> String {
    let created = cli.one(&["sessions", "create", name, "--parent", parent]).await;
    created["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn cancelling_a_session_tree_cancels_all_its_runs() {
    let cluster = Cluster::start(&nats_binaries()[0], 2).await;
    let (cli, client) = (&cluster.cli, cluster.client());
    let directory = temporary_directory();
    let path = directory.path().join("pids").to_str().unwrap().to_owned();
    cli.json(&["sessions", "create", "root"]).await;
    let middle = child(cli, "middle", "root").await;
    let leaf = child(cli, "leaf", &middle).await;
    cli.json(&["sessions", "create", "other"]).await;
    assert_eq!(cli.one(&["sessions", "show", "leaf"]).await["parent_id"], middle.as_str());

    let names = ["root", "middle", "leaf", "other"];
    let (mut executing, mut waiting) = (Vec::new(), Vec::new());
    for name in names {
        executing.push(submit(&client, name, vec![bash(&format!("echo $$ >> {path}; sleep 300"))]).await);
        waiting.push(submit(&client, name, vec![noop(0)]).await);
    }
    wait_for("the tools", TIMEOUT, || std::future::ready(pids(&path).len() == names.len())).await;

    // Without `--tree` only this session is cancelled: its children continue.
    let alone = cli.one(&["sessions", "cancel", "middle", "--reason", "alone"]).await;
    assert_eq!(alone["ended_run_ids"], serde_json::json!([waiting[1]]));
    assert_eq!(alone["requested_run_ids"], serde_json::json!([executing[1]]));
    assert_eq!(alone["session_ids"], serde_json::json!([middle]));
    assert_eq!(state(&wait_for_end(&client, &executing[1]).await), RunState::Cancelled);
    assert_eq!(session(&client, "leaf").await.pending_runs, 2);

    let tree = cli.one(&["sessions", "cancel", "root", "--tree", "--reason", "all of it"]).await;
    let sorted = |ids: &Value| {
        let mut ids: Vec<String> =
            ids.as_array().unwrap().iter().filter_map(|id| id.as_str().map(str::to_owned)).collect();
        ids.sort();
        ids
    };
    let expected = |runs: &[String]| {
        let mut runs = vec![runs[0].clone(), runs[2].clone()];
        runs.sort();
        runs
    };
    assert_eq!(sorted(&tree["ended_run_ids"]), expected(&waiting));
    assert_eq!(sorted(&tree["requested_run_ids"]), expected(&executing));
    assert!(sorted(&tree["session_ids"]).contains(&leaf));
    for run in [&executing[0], &executing[2], &waiting[0], &waiting[2]] {
        let ended = wait_for_end(&client, run).await;
        assert_eq!((state(&ended), ended.cancel_reason.as_str()), (RunState::Cancelled, "all of it"));
    }
    let killed = pids(&path).iter().filter(|pid| !is_alive(**pid)).count();
    assert_eq!(killed, 3, "only the tree was stopped");
    assert_eq!(session(&client, "other").await.pending_runs, 2);
    for name in ["root", "middle", "leaf"] {
        check_run_order(&history(&client, name).await);
        // The sessions stay open for new runs.
        assert_eq!(cli.run(&["run", "--session", name, "--tool", "noop"]).await.code, 0);
    }
    let nothing = cli.run(&["sessions", "cancel", "root", "--tree"]).await;
    assert!(nothing.stdout.contains("no unfinished run to cancel"), "{}", nothing.stdout);
}

#[tokio::test]
async fn closing_a_session_with_cancel_runs_cancels_its_queue() {
    let dev = Dev::start().await;
    let client = dev.client();
    let mut runs = Vec::new();
    for _ in 0..300 {
        runs.push(submit(&client, "s1", vec![noop(60_000)]).await);
    }
    dev.cli.json(&["sessions", "close", "s1", "--cancel-runs"]).await;
    for run in [&runs[0], &runs[150], &runs[299]] {
        let ended = wait_for_end(&client, run).await;
        assert_eq!(ended.cancel_reason, "the session was closed");
    }
    assert_eq!(session(&client, "s1").await.pending_runs, 0);
    check_run_order(&history(&client, "s1").await);
}

#[tokio::test]
async fn run_of_a_dead_worker_is_cancelled_when_no_worker_is_left() {
    let mut cluster = Cluster::start(&nats_binaries()[0], 1).await;
    let client = cluster.client();
    let directory = temporary_directory();
    let path = directory.path().join("pids").to_str().unwrap().to_owned();
    let run = submit(&client, "s1", vec![bash(&format!("echo $$ >> {path}; sleep 300"))]).await;
    let waiting = submit(&client, "s1", vec![noop(0)]).await;
    wait_for("the tool", TIMEOUT, || std::future::ready(pids(&path).len() == 1)).await;
    cluster.workers[0].process.kill();
    let killed = Instant::now();
    // Its lease has not expired, so the control plane does not know yet that the worker is dead.
    let asked = cluster.cli.one(&["cancel", &run]).await;
    assert!(asked["cancel"]["requested_at"].is_string(), "{asked}");
    let ended = wait_for_end(&client, &run).await;
    let took = killed.elapsed();
    assert_eq!(state(&ended), RunState::Cancelled);
    assert!(took < LEASE + Duration::from_secs(2), "{took:?} after the worker's death");
    let receipts = ended.cancel.unwrap();
    assert_eq!(receipts.delivered_at, None, "no worker was left to deliver the request to");
    assert!(receipts.released_at.is_some());
    wait_until_gone(&pids(&path)).await;
    // The queued run waits for a worker, and can be cancelled without one.
    let no_worker = || async { cluster.cli.one(&["explain", &waiting]).await["reason"] == "no_worker" };
    wait_for("the explanation that no worker is left", TIMEOUT, no_worker).await;
    assert_eq!(cluster.cli.one(&["cancel", &waiting]).await["state"], "cancelled");
    check_run_order(&history(&client, "s1").await);
}
