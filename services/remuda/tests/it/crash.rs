//! `remuda dev` dies, or is asked to go, in the middle of its work.

use std::{
    fs,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use remuda_domain::RunState;
use remuda_testkit::wait_for;

use crate::{
    api::{bash, finished, history, judge, noop, state, submit},
    harness::{Dev, PATIENCE, is_alive, pids, wait_until_gone},
};

fn lines(path: &str) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

async fn wait_for_line(path: &str, line: &str) {
    let there = || std::future::ready(lines(path).iter().any(|found| found == line));
    wait_for(&format!("{line} in the log of the tools"), PATIENCE, there).await;
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
        assert_eq!(state(&finished(&client, run).await), RunState::Completed);
    }
    // Run 3 was cut short: its first call is not repeated, its second is reported as interrupted or, if it had not
    // started yet, executed now. Everything else happened once and in order.
    let found = lines(&log);
    let mut expected: Vec<String> =
        (0..10).flat_map(|index| [format!("{index}a"), format!("{index}b")]).collect();
    if !found.contains(&"3b".to_owned()) {
        expected.retain(|line| line != "3b");
        let cut = finished(&client, &runs[3]).await;
        assert!(cut.outcomes.iter().any(|outcome| outcome.status == "interrupted"), "{cut:?}");
        assert_eq!(cut.attempt, 2);
    }
    assert_eq!(found, expected);

    let told = judge(&history(&client, "s1").await);
    let order: Vec<&str> = told.iter().map(|told| told.run.as_str()).collect();
    assert_eq!(order, runs);
    assert!(told.iter().enumerate().all(|(place, told)| told.starts == 1 || place == 3), "{told:?}");
    for index in 0..4 {
        // A read-only call is simply repeated.
        assert_eq!(judge(&history(&client, &format!("sleeper-{index}")).await).len(), 1);
    }
    wait_until_gone(&pids(&processes)).await;
}

#[tokio::test]
async fn the_tools_of_a_killed_process_die_with_it() {
    let mut dev = Dev::start().await;
    let processes = dev.path("pids");
    let script =
        format!("trap '' TERM; echo $$ >> {processes}; sleep 300 & echo $! >> {processes}; wait; sleep 300");
    let run = submit(&dev.client(), "s1", vec![bash(&script), bash("echo after")]).await;
    wait_for("the tool", PATIENCE, || std::future::ready(pids(&processes).len() == 2)).await;
    dev.server.process.kill();
    wait_until_gone(&pids(&processes)).await;

    let dev = dev.crash_and_restart().await;
    let ended = finished(&dev.client(), &run).await;
    assert_eq!(ended.outcomes[0].status, "interrupted");
    assert_eq!(ended.outcomes[0].failure.as_ref().unwrap().code, "interrupted");
    assert_eq!(ended.outcomes[1].status, "completed", "an interrupted call does not stop the run");
}

#[tokio::test]
async fn a_follower_survives_the_restart_of_its_server() {
    // The port has to stay the same, so the second life asks for the first one's.
    let dev = Dev::start().await;
    let endpoint = dev.server.endpoint().to_owned();
    let run = submit(&dev.client(), "s1", vec![noop(700), noop(700)]).await;
    let mut watch = dev.cli.start(&["watch", &run, "--json"]);
    wait_for("the first events", PATIENCE, || std::future::ready(watch.documents().len() >= 2)).await;

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
    assert_eq!(lines(&log), ["start", "first"], "the step was finished, the next one not begun");

    let dev = dev.crash_and_restart().await;
    let ended = finished(&dev.client(), &run).await;
    assert_eq!(state(&ended), RunState::Completed);
    assert_eq!(lines(&log), ["start", "first", "second"]);
    judge(&history(&dev.client(), "s1").await);
}

#[tokio::test]
async fn a_second_signal_exits_at_once_and_leaves_nothing() {
    let mut dev = Dev::start().await;
    let processes = dev.path("pids");
    let run = submit(&dev.client(), "s1", vec![bash(&format!("echo $$ > {processes}; sleep 300"))]).await;
    wait_for("the tool", PATIENCE, || std::future::ready(pids(&processes).len() == 1)).await;
    dev.server.process.signal(Signal::SIGINT);
    dev.server.process.says("a second signal exits at once").await;
    assert!(is_alive(pids(&processes)[0]), "the first signal waits for the step");
    let started = Instant::now();
    dev.server.process.signal(Signal::SIGTERM);
    assert_eq!(dev.server.process.exit_code().await, 0);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    wait_until_gone(&pids(&processes)).await;

    let dev = dev.crash_and_restart().await;
    assert_eq!(finished(&dev.client(), &run).await.outcomes[0].status, "interrupted");
}
