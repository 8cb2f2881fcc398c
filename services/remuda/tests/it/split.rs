//! Separate processes on PostgreSQL and NATS.

use std::{fs, path::PathBuf};

use nix::sys::signal::Signal;
use remuda_domain::RunState;
use remuda_testkit::{nats_binaries, wait_for};

use crate::{
    api::{bash, check_run_order, history, noop, session, state, submit, wait_for_end},
    cluster::{Cluster, Services},
    harness::{TIMEOUT, is_alive, pids, temporary_directory, wait_until_gone},
};

/// Runs the test with each configured nats-server.
async fn on_each_nats(test: impl AsyncFn(PathBuf)) {
    for binary in nats_binaries() {
        println!("with {}", binary.display());
        test(binary).await;
    }
}

#[tokio::test]
async fn client_commands_work_against_separate_processes() {
    on_each_nats(async |nats| {
        let cluster = Cluster::start(&nats, 2).await;
        let cli = &cluster.cli;
        let followed = cli
            .run(&["run", "--tool", "Bash", "--arg", "command=echo hi", "--session", "s1", "--follow"])
            .await;
        assert_eq!((followed.code, followed.stdout.as_str()), (0, "hi\n"), "{}", followed.stderr);
        let run = cli.one(&["run", "--session", "s1", "--tool", "noop", "--record"]).await;
        let id = run["id"].as_str().unwrap();
        assert_eq!(cli.one(&["runs", "show", id]).await["state"], "completed");
        assert_eq!(cli.json(&["runs", "steps", id]).await.len(), 1);
        assert_eq!(cli.json(&["runs", "list", "--session", "s1"]).await.len(), 2);
        assert_eq!(cli.json(&["sessions", "messages", "s1"]).await.len(), 1);
        assert_eq!(cli.json(&["sessions", "list"]).await.len(), 1);
        assert!(cli.json(&["sessions", "queue", "s1"]).await.is_empty());
        assert_eq!(cli.one(&["explain", id]).await["reason"], "finished");
        // A worker prints that it is ready before it registers.
        let registered = || async {
            let operator = &cluster.operator;
            operator.json(&["workers"]).await.len() == 2
                && operator.one(&["queue", "stats"]).await["workers"] == 2
        };
        wait_for("both workers to be listed", TIMEOUT, registered).await;
        // The run's own events end with its completion.
        let watched = cli.json(&["watch", id]).await;
        assert_eq!(watched.last().unwrap()["type"], "run.completed");

        let slow = cli.run(&["run", "--tool", "noop", "--arg", "sleep_ms:=60000", "--detach"]).await;
        assert_eq!(cli.run(&["cancel", slow.stdout.trim()]).await.code, 0);
        assert_eq!(cli.run(&["runs", "wait", slow.stdout.trim()]).await.code, 6);
        assert_eq!(cli.run(&["run", "--tool", "noop", "--arg", "fail=x"]).await.code, 1);
        check_run_order(&history(&cluster.client(), "s1").await);
    })
    .await;
}

#[tokio::test]
async fn control_plane_advertises_the_stream_service() {
    let mut cluster = Cluster::start(&nats_binaries()[0], 1).await;
    let info = cluster.client().get_server_info(Default::default()).await.unwrap();
    assert_eq!((info.mode.as_str(), info.keys_required), ("split", true));
    assert_eq!(info.stream_endpoint, cluster.stream.endpoint());
    let run = submit(&cluster.client(), "s1", vec![noop(0)]).await;
    assert_eq!(cluster.cli.run(&["watch", &run]).await.code, 0);
    // Events come from the stream service: without it, `watch` gets none.
    cluster.stream.process.kill();
    let endpoint = cluster.stream.endpoint().to_owned();
    let refused = cluster.cli.start(&["watch", &run]);
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(refused.stdout(), "", "{endpoint} is gone");
    // The flag overrides the advertised endpoint.
    let control_plane = cluster.control_plane.endpoint().to_owned();
    assert_eq!(cluster.cli.run(&["watch", &run, "--stream-endpoint", &control_plane]).await.code, 0);
}

#[tokio::test]
async fn another_worker_resumes_the_run_of_a_killed_worker() {
    on_each_nats(async |nats| {
        let mut cluster = Cluster::start(&nats, 2).await;
        let client = cluster.client();
        let directory = temporary_directory();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let (log, processes) = (path("log"), path("pids"));
        let first = vec![
            bash(&format!("echo first >> {log}")),
            bash(&format!("trap '' TERM; echo $$ >> {processes}; sleep 300; echo never >> {log}")),
            bash(&format!("echo last >> {log}")),
        ];
        let cut = submit(&client, "s1", first).await;
        let next = submit(&client, "s1", vec![bash(&format!("echo next >> {log}"))]).await;
        wait_for("the tool", TIMEOUT, || std::future::ready(pids(&processes).len() == 1)).await;

        let owner = session(&client, "s1").await.worker_id;
        let mut victim = None;
        for (index, worker) in cluster.workers.iter().enumerate() {
            if worker.worker_id().await == owner {
                victim = Some(index);
            }
        }
        cluster.workers[victim.expect("one of them owns it")].process.kill();
        wait_until_gone(&pids(&processes)).await;

        let ended = wait_for_end(&client, &cut).await;
        assert_eq!((state(&ended), ended.attempt), (RunState::Completed, 2));
        let statuses: Vec<&str> = ended.outcomes.iter().map(|outcome| outcome.status.as_str()).collect();
        assert_eq!(statuses, ["completed", "interrupted", "completed"]);
        assert_eq!(state(&wait_for_end(&client, &next).await), RunState::Completed);
        assert_eq!(fs::read_to_string(&log).unwrap(), "first\nlast\nnext\n");
        let observed = check_run_order(&history(&client, "s1").await);
        assert_eq!(observed.iter().map(|run| run.starts).collect::<Vec<_>>(), [2, 1]);
        let one_left = || async { cluster.operator.json(&["workers"]).await.len() == 1 };
        wait_for("the killed worker to leave the list", TIMEOUT, one_left).await;
    })
    .await;
}

#[tokio::test]
async fn stopped_worker_loses_its_session_and_its_tools() {
    let mut cluster = Cluster::start(&nats_binaries()[0], 1).await;
    let client = cluster.client();
    let directory = temporary_directory();
    let processes = directory.path().join("pids").to_str().unwrap().to_owned();
    let run = submit(&client, "s1", vec![bash(&format!("echo $$ >> {processes}; sleep 300"))]).await;
    wait_for("the tool", TIMEOUT, || std::future::ready(pids(&processes).len() == 1)).await;
    let tools = pids(&processes);
    // The stopped worker can neither renew its lease nor kill its tools: its guard kills them before the lease expires.
    cluster.workers[0].process.signal(Signal::SIGSTOP);
    cluster.workers.push(cluster.services.worker().await);
    let ended = wait_for_end(&client, &run).await;
    assert!(!is_alive(tools[0]), "the tool outlived its owner's lease");
    assert_eq!(ended.outcomes[0].status, "interrupted");
    cluster.workers[0].process.signal(Signal::SIGCONT);
    assert_eq!(
        state(&wait_for_end(&client, &submit(&client, "s1", vec![noop(0)]).await).await),
        RunState::Completed
    );
    check_run_order(&history(&client, "s1").await);
}

#[tokio::test]
async fn restarted_or_wiped_nats_loses_no_run() {
    on_each_nats(async |nats| {
        let mut cluster = Cluster::start(&nats, 2).await;
        let client = cluster.client();
        let mut runs = Vec::new();
        for wipe in [false, true] {
            for index in 0..20 {
                for _ in 0..5 {
                    runs.push(submit(&client, &format!("s{index}"), vec![noop(100)]).await);
                }
            }
            if wipe {
                cluster.services.nats.wipe_and_restart().unwrap();
            } else {
                cluster.services.nats.restart().unwrap();
            }
            // Runs accepted while NATS restarts must not be lost either.
            for index in 0..20 {
                runs.push(submit(&client, &format!("s{index}"), vec![noop(10)]).await);
            }
        }
        for run in &runs {
            assert_eq!(state(&wait_for_end(&client, run).await), RunState::Completed);
        }
        for index in 0..20 {
            assert_eq!(check_run_order(&history(&client, &format!("s{index}")).await).len(), 12);
        }
    })
    .await;
}

#[tokio::test]
async fn sigterm_hands_a_session_to_another_worker() {
    let mut cluster = Cluster::start(&nats_binaries()[0], 1).await;
    let client = cluster.client();
    let calls: Vec<_> = (0..6).map(|_| bash("sleep 0.2")).collect();
    let run = submit(&client, "s1", calls).await;
    wait_for("the run to start", TIMEOUT, || async { !session(&client, "s1").await.worker_id.is_empty() })
        .await;
    cluster.workers.push(cluster.services.worker().await);
    let second = cluster.workers[1].worker_id().await;
    cluster.workers[0].process.signal(Signal::SIGTERM);
    assert_eq!(cluster.workers[0].process.exit_code().await, 0);
    let ended = wait_for_end(&client, &run).await;
    assert_eq!(state(&ended), RunState::Completed);
    assert!(ended.outcomes.iter().all(|outcome| outcome.status == "completed"), "{ended:?}");
    let events = history(&client, "s1").await;
    assert_eq!(check_run_order(&events)[0].starts, 2);
    let starts = events.iter().filter(|event| event.r#type == "tool.started").count();
    assert_eq!(starts, 6, "no finished call was executed again");
    let last_start = events.iter().rfind(|event| event.r#type == "run.started").unwrap();
    assert!(last_start.data.contains(&second), "{}", last_start.data);
}

#[tokio::test]
async fn all_roles_in_one_process_run_on_postgres_and_nats() {
    let services = Services::start(&nats_binaries()[0]);
    services.migrate().await;
    let (_, secret) = services.create_key("acme", &[]).await;
    let all = services.serve(&["all", "--listen", "127.0.0.1:0"], &[]).await;
    let cli = crate::harness::Cli::new(all.endpoint()).with_key(&secret);
    let done = cli.run(&["run", "--tool", "Bash", "--arg", "command=echo hi", "--follow"]).await;
    assert_eq!((done.code, done.stdout.as_str()), (0, "hi\n"));
}
