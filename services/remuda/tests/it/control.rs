//! Cancel, timeouts, parallel calls, busy sessions and idempotency keys.

use std::time::{Duration, Instant};

use remuda_domain::{Code, RunState};
use remuda_proto::v1;
use remuda_testkit::wait_for;
use serde_json::json;

use crate::{
    api::{bash, call, check_run_order, history, noop, state, submission, submit, wait_for_end},
    harness::{Dev, TIMEOUT, is_alive, pids, wait_until_gone},
};

/// A command that starts three processes, one of which ignores SIGTERM, and writes their ids to `path`.
fn process_tree_script(path: &str) -> String {
    format!(
        "(trap '' TERM; echo $BASHPID >> {path}; while :; do sleep 0.1; done) & \
         sleep 300 & echo $! >> {path}; echo $$ >> {path}; wait"
    )
}

/// Waits until all three processes run and returns their ids.
async fn wait_for_process_tree(path: &str) -> Vec<u32> {
    let complete = || std::future::ready(Some(pids(path)).filter(|pids| pids.len() == 3));
    let processes = wait_for("the tool's processes", TIMEOUT, complete).await;
    assert!(processes.iter().all(|pid| is_alive(*pid)));
    processes
}

fn statuses(run: &v1::Run) -> Vec<&str> {
    run.outcomes.iter().map(|outcome| outcome.status.as_str()).collect()
}

fn failure(run: &v1::Run) -> &str {
    run.failure.as_ref().map_or("", |failure| failure.code.as_str())
}

#[tokio::test]
async fn cancel_from_another_process_kills_the_whole_process_group() {
    let dev = Dev::start().await;
    let path = dev.path("pids");
    let calls = vec![bash(&process_tree_script(&path)), noop(0)];
    let run = submit(&dev.client(), "s1", calls).await;
    let processes = wait_for_process_tree(&path).await;
    assert_eq!(dev.cli.run(&["cancel", &run, "--reason", "wrong branch"]).await.code, 0);
    let ended = wait_for_end(&dev.client(), &run).await;
    assert_eq!((state(&ended), failure(&ended)), (RunState::Cancelled, "cancelled"));
    assert_eq!(ended.cancel_reason, "wrong branch");
    assert_eq!(statuses(&ended), ["cancelled", "cancelled"]);
    // The end is committed only after the tools are dead.
    assert!(!processes.iter().any(|pid| is_alive(*pid)), "a process survived its run");

    let again = dev.cli.one(&["cancel", &run]).await;
    assert_eq!((&again["already_finished"], &again["state"]), (&true.into(), &"cancelled".into()));
    // The session accepts further runs.
    assert_eq!(dev.cli.run(&["run", "--session", "s1", "--tool", "noop"]).await.code, 0);
}

#[tokio::test]
async fn queued_run_is_cancelled_at_once_and_the_others_keep_their_order() {
    let dev = Dev::start().await;
    let client = dev.client();
    let gate = dev.path("gate");
    let first = submit(&client, "s1", vec![bash(&format!("until [ -e {gate} ]; do sleep 0.02; done"))]).await;
    let second = submit(&client, "s1", vec![noop(0)]).await;
    let third = submit(&client, "s1", vec![noop(0)]).await;
    assert_eq!(dev.cli.one(&["cancel", &second]).await["state"], "cancelled");
    std::fs::write(&gate, "").unwrap();
    assert_eq!(state(&wait_for_end(&client, &third).await), RunState::Completed);
    let observed = check_run_order(&history(&client, "s1").await);
    let observed: Vec<_> = observed.iter().map(|run| (run.run.as_str(), run.state, run.starts)).collect();
    let expected = [
        (first.as_str(), RunState::Completed, 1),
        (second.as_str(), RunState::Cancelled, 0),
        (third.as_str(), RunState::Completed, 1),
    ];
    assert_eq!(observed, expected);
}

#[tokio::test]
async fn run_and_tool_timeouts_kill_the_processes() {
    let dev = Dev::start().await;
    let client = dev.client();
    let path = dev.path("pids");
    let mut request = submission("run", vec![bash(&process_tree_script(&path)), noop(0)]);
    request.timeout = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    let run = client.submit(request).await.unwrap().run.unwrap().id;
    let processes = wait_for_process_tree(&path).await;
    let ended = wait_for_end(&client, &run).await;
    assert_eq!((state(&ended), failure(&ended)), (RunState::TimedOut, "run_timed_out"));
    assert_eq!(statuses(&ended)[1], "skipped");
    wait_until_gone(&processes).await;

    let path = dev.path("tool-pids");
    let mut slow = bash(&process_tree_script(&path));
    slow.timeout = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    let run = submit(&client, "tool", vec![slow, noop(0)]).await;
    let processes = wait_for_process_tree(&path).await;
    let ended = wait_for_end(&client, &run).await;
    assert_eq!((state(&ended), failure(&ended)), (RunState::Failed, "tool_timed_out"));
    assert_eq!(statuses(&ended), ["timed_out", "skipped"]);
    wait_until_gone(&processes).await;

    let own = call("Bash", &json!({ "command": "sleep 60", "timeout_ms": 50 }));
    let ended = wait_for_end(&client, &submit(&client, "tool", vec![own]).await).await;
    assert_eq!(statuses(&ended), ["timed_out"]);
}

#[tokio::test]
async fn parallel_calls_overlap_and_a_failing_one_does_not_stop_the_others() {
    let dev = Dev::start().await;
    let client = dev.client();
    let parallel = |mut call: v1::ToolCall| {
        call.parallel = true;
        call
    };
    // Each waits for the other: executed one after the other they would never end.
    let (a, b) = (dev.path("a"), dev.path("b"));
    let meet = |mine: &str, other: &str| {
        parallel(bash(&format!("touch {mine}; until [ -e {other} ]; do sleep 0.02; done")))
    };
    let fail = || parallel(call("noop", &json!({ "fail": "on purpose" })));
    let run = submit(&client, "s1", vec![meet(&a, &b), fail(), meet(&b, &a), noop(0)]).await;
    let ended = wait_for_end(&client, &run).await;
    assert_eq!((state(&ended), failure(&ended)), (RunState::Failed, "tool_failed"));
    assert_eq!(statuses(&ended), ["completed", "failed", "completed", "skipped"]);

    let started = Instant::now();
    let sleepers = (0..50).map(|_| parallel(noop(300))).collect();
    assert_eq!(
        state(&wait_for_end(&client, &submit(&client, "s1", sleepers).await).await),
        RunState::Completed
    );
    assert!(started.elapsed() < Duration::from_secs(10), "50 times 300 ms took {:?}", started.elapsed());
}

#[tokio::test]
async fn continue_on_error_runs_the_remaining_calls_and_completes() {
    let dev = Dev::start().await;
    let fail = ["--tool", "noop", "--arg", "fail=no", "--tool", "noop", "--arg", "echo=yes"];
    let stopped = dev.cli.run(&[&["run", "--json"], &fail[..]].concat()).await;
    assert_eq!(stopped.code, 1);
    assert_eq!(stopped.documents()[0]["outcomes"][1]["status"], "skipped");
    let went_on = dev.cli.one(&[&["run", "--continue-on-error"], &fail[..]].concat()).await;
    assert_eq!(went_on["state"], "completed");
    assert_eq!(went_on["outcomes"][0]["failure"]["code"], "tool_failed");
    assert_eq!(went_on["outcomes"][1]["output"], "yes");
}

#[tokio::test]
async fn if_busy_rejects_or_interrupts_in_a_busy_session() {
    let dev = Dev::start().await;
    let client = dev.client();
    let path = dev.path("pids");
    let first = submit(&client, "s1", vec![bash(&process_tree_script(&path))]).await;
    let second = submit(&client, "s1", vec![noop(0)]).await;
    let processes = wait_for_process_tree(&path).await;

    let reject = ["run", "--session", "s1", "--tool", "noop", "--if-busy", "reject"];
    let rejected = dev.cli.run(&[&reject[..], &["--json"]].concat()).await;
    assert_eq!((rejected.code, rejected.error().0.as_str()), (8, "session_busy"));

    let mut request = submission("s1", vec![bash("echo made it")]);
    request.if_busy = v1::IfBusy::Interrupt.into();
    let answer = client.submit(request).await.unwrap();
    let mut interrupted = answer.interrupted_run_ids;
    interrupted.sort();
    assert_eq!(interrupted, [first.clone(), second.clone()]);
    let third = answer.run.unwrap().id;
    assert_eq!(state(&wait_for_end(&client, &third).await), RunState::Completed);
    assert!(
        !processes.iter().any(|pid| is_alive(*pid)),
        "the interrupted run's processes are gone before the next"
    );
    let observed = check_run_order(&history(&client, "s1").await);
    let states: Vec<RunState> = observed.iter().map(|run| run.state).collect();
    assert_eq!(states, [RunState::Cancelled, RunState::Cancelled, RunState::Completed]);
    assert_eq!(dev.cli.run(&reject).await.code, 0, "an idle session takes it");
}

#[tokio::test]
async fn idempotency_key_returns_the_same_run_or_a_conflict() {
    let dev = Dev::start().await;
    let (cli, path) = (&dev.cli, dev.path("log"));
    let command = format!("command=echo once >> {path}");
    let arguments =
        ["run", "--session", "s1", "--tool", "Bash", "--arg", &command, "--idempotency-key", "build-42"];
    let (first, second) = (cli.one(&arguments).await, cli.one(&arguments).await);
    assert_eq!(first["id"], second["id"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "once\n");
    let repeated = cli.run(&arguments).await;
    assert!(repeated.stderr.contains("earlier request with this idempotency key"), "{}", repeated.stderr);

    let other = ["run", "--session", "s1", "--tool", "noop", "--idempotency-key", "build-42"];
    assert_eq!(cli.run(&other).await.code, 8);
    let mut request = submission("s1", vec![noop(1)]);
    request.idempotency_key = "build-42".to_owned();
    let error = dev.client().submit(request).await.unwrap_err();
    assert_eq!(error.code(), Code::IdempotencyConflict);

    // Concurrent requests with one key create one run.
    let client = dev.client();
    let mut request = submission("s1", vec![noop(0)]);
    request.idempotency_key = "race".to_owned();
    let answers = futures::future::join_all((0..20).map(|_| client.submit(request.clone()))).await;
    let answers: Vec<v1::SubmitRunResponse> = answers.into_iter().map(|answer| answer.unwrap()).collect();
    assert_eq!(answers.iter().filter(|answer| !answer.deduplicated).count(), 1);
    let mut ids: Vec<String> = answers.into_iter().map(|answer| answer.run.unwrap().id).collect();
    ids.dedup();
    assert_eq!(ids.len(), 1);
}
