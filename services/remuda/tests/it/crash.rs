//! `remuda dev` is killed or terminated while it executes runs.

use std::{
    fs,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use remuda_domain::RunState;
use remuda_testkit::{faketime_library, wait_for};

use crate::{
    api::{bash, check_run_order, history, noop, state, submit, wait_for_end},
    harness::{Cli, Dev, Server, TIMEOUT, is_alive, pids, variables, wait_until_gone},
    http_client::HttpClient,
};

fn lines(path: &str) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

async fn wait_for_line(path: &str, line: &str) {
    let there = || std::future::ready(lines(path).iter().any(|found| found == line));
    wait_for(&format!("{line} in the log of the tools"), TIMEOUT, there).await;
}

#[tokio::test]
async fn sigkill_in_the_middle_of_ten_queued_runs_loses_and_repeats_nothing() {
    let dev = Dev::start().await;
    let client = dev.client();
    let (log, processes) = (dev.path("log"), dev.path("pids"));
    let mut runs = Vec::new();
    for index in 0..10 {
        let short = bash(&format!("echo {index}a >> {log}"));
        let long = bash(&format!(
            "echo $$ >> {processes}; sleep 0.4 & echo $! >> {processes}; wait; echo {index}b >> {log}"
        ));
        runs.push(submit(&client, "s1", vec![short, long]).await);
    }
    let mut sleepers = Vec::new();
    for index in 0..4 {
        sleepers.push(submit(&client, &format!("sleeper-{index}"), vec![noop(1500), noop(0)]).await);
    }
    wait_for_line(&log, "3a").await;
    let dev = dev.crash_and_restart().await;
    let client = dev.client();

    for run in runs.iter().chain(&sleepers) {
        assert_eq!(state(&wait_for_end(&client, run).await), RunState::Completed);
    }
    // Run 3 was interrupted: its first call is not repeated; its second is reported as interrupted or, if it had not
    // started yet, executed now. All other calls executed once and in order.
    let found = lines(&log);
    let mut expected: Vec<String> =
        (0..10).flat_map(|index| [format!("{index}a"), format!("{index}b")]).collect();
    if !found.contains(&"3b".to_owned()) {
        expected.retain(|line| line != "3b");
        let cut = wait_for_end(&client, &runs[3]).await;
        assert!(cut.outcomes.iter().any(|outcome| outcome.status == "interrupted"), "{cut:?}");
        assert_eq!(cut.attempt, 2);
    }
    assert_eq!(found, expected);

    let observed = check_run_order(&history(&client, "s1").await);
    let order: Vec<&str> = observed.iter().map(|run| run.run.as_str()).collect();
    assert_eq!(order, runs);
    assert!(observed.iter().enumerate().all(|(index, run)| run.starts == 1 || index == 3), "{observed:?}");
    for index in 0..4 {
        // A read-only call may be repeated.
        assert_eq!(check_run_order(&history(&client, &format!("sleeper-{index}")).await).len(), 1);
    }
    wait_until_gone(&pids(&processes)).await;
}

#[tokio::test]
async fn tools_of_a_killed_server_die_with_it() {
    let mut dev = Dev::start().await;
    let processes = dev.path("pids");
    let script =
        format!("trap '' TERM; echo $$ >> {processes}; sleep 300 & echo $! >> {processes}; wait; sleep 300");
    let run = submit(&dev.client(), "s1", vec![bash(&script), bash("echo after")]).await;
    wait_for("the tool", TIMEOUT, || std::future::ready(pids(&processes).len() == 2)).await;
    dev.server.process.kill();
    wait_until_gone(&pids(&processes)).await;

    let dev = dev.crash_and_restart().await;
    let ended = wait_for_end(&dev.client(), &run).await;
    assert_eq!(ended.outcomes[0].status, "interrupted");
    assert_eq!(ended.outcomes[0].failure.as_ref().unwrap().code, "interrupted");
    assert_eq!(ended.outcomes[1].status, "completed", "an interrupted call does not stop the run");
}

#[tokio::test]
async fn follower_reconnects_after_a_server_restart() {
    // The follower reconnects to the same port, so the restarted server must listen on it.
    let dev = Dev::start().await;
    let endpoint = dev.server.endpoint().to_owned();
    let run = submit(&dev.client(), "s1", vec![noop(700), noop(700)]).await;
    let mut watch = dev.cli.start(&["watch", &run, "--json"]);
    wait_for("the first events", TIMEOUT, || std::future::ready(watch.documents().len() >= 2)).await;

    let Dev { mut server, directory, .. } = dev;
    server.process.kill();
    drop(server);
    let address = endpoint.strip_prefix("http://").unwrap();
    let _second = Dev::start_in(directory, &["--listen", address]).await;
    assert_eq!(watch.exit_code().await, 0);
    let cursors: Vec<i64> = watch.documents().iter().filter_map(|event| event["cursor"].as_i64()).collect();
    assert!(cursors.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{cursors:?}");
    assert_eq!(watch.documents().last().unwrap()["type"], "run.completed");
}

#[tokio::test]
async fn sigterm_hands_over_at_the_next_step_and_exits_with_success() {
    let mut dev = Dev::start().await;
    let log = dev.path("log");
    let calls = vec![
        bash(&format!("echo start >> {log}; sleep 0.5; echo first >> {log}")),
        bash(&format!("echo second >> {log}")),
    ];
    let run = submit(&dev.client(), "s1", calls).await;
    wait_for_line(&log, "start").await;
    dev.server.process.signal(Signal::SIGTERM);
    assert_eq!(dev.server.process.exit_code().await, 0);
    assert_eq!(lines(&log), ["start", "first"], "the step must finish and the next one must not start");

    let dev = dev.crash_and_restart().await;
    let ended = wait_for_end(&dev.client(), &run).await;
    assert_eq!(state(&ended), RunState::Completed);
    assert_eq!(lines(&log), ["start", "first", "second"]);
    check_run_order(&history(&dev.client(), "s1").await);
}

#[tokio::test]
async fn second_signal_exits_at_once_and_leaves_no_process() {
    let mut dev = Dev::start().await;
    let processes = dev.path("pids");
    let run = submit(&dev.client(), "s1", vec![bash(&format!("echo $$ > {processes}; sleep 300"))]).await;
    wait_for("the tool", TIMEOUT, || std::future::ready(pids(&processes).len() == 1)).await;
    dev.server.process.signal(Signal::SIGINT);
    dev.server.process.wait_for_stderr("a second signal exits immediately").await;
    assert!(is_alive(pids(&processes)[0]), "the first signal waits for the step");
    let started = Instant::now();
    dev.server.process.signal(Signal::SIGTERM);
    assert_eq!(dev.server.process.exit_code().await, 0);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    wait_until_gone(&pids(&processes)).await;

    let dev = dev.crash_and_restart().await;
    assert_eq!(wait_for_end(&dev.client(), &run).await.outcomes[0].status, "interrupted");
}

/// The wall clock is a day ahead after the restart. The run was executed for seconds of its minute.
#[tokio::test]
async fn forward_clock_jump_over_a_restart_ends_no_run() {
    let dev = Dev::start().await;
    let client = dev.client();
    let run = submit(&client, "s1", vec![noop(2000)]).await;
    let behind = submit(&client, "s1", vec![noop(0)]).await;
    let http = HttpClient::new(dev.server.endpoint());
    let running = || async { http.get(&format!("/runs/{run}")).await.body["state"] == "running" };
    wait_for("the run to start", TIMEOUT, running).await;

    let Dev { mut server, directory, .. } = dev;
    server.process.kill();
    drop(server);
    let library = faketime_library().expect("libfaketime; install the package faketime");
    let clock = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("FAKETIME", "+1d"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        // The name in versions before 0.9.9.
        ("DONT_FAKE_MONOTONIC", "1"),
    ];
    let data = directory.path().join("data");
    let arguments = ["dev", "--data-dir", data.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let server = Server::start(&arguments, &variables(&clock)).await;
    let client = Cli::new(server.endpoint()).client();
    for run in [&run, &behind] {
        let ended = wait_for_end(&client, run).await;
        assert_eq!(state(&ended), RunState::Completed, "{ended:?}");
    }
}
