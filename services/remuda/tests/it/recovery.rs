//! Runs whose workers die or drain, and what operators see of it.

use nix::sys::signal::Signal;
use remuda_domain::RunState;
use remuda_testkit::{nats_binaries, wait_for};
use serde_json::Value;

use crate::{
    api::{bash, check_run_order, history, noop, session, state, submit, wait_for_end},
    cluster::{Cluster, Services},
    harness::{Cli, Dev, TIMEOUT, temporary_directory},
    scrape::Scrape,
};

#[tokio::test]
async fn run_whose_workers_die_fails_and_its_session_continues() {
    let services = Services::start(&nats_binaries()[0]);
    services.migrate().await;
    // The process that reclaims the session applies the limit, so all processes need the same value.
    let limit = [("REMUDA_LIMITS__MAX_LOST_ATTEMPTS", "2")];
    let control_plane = services.control_plane(&limit).await;
    let (_, secret) = services.create_key("acme", &["write"]).await;
    let cli = Cli::new(control_plane.endpoint()).with_key(&secret);
    let client = cli.client();
    let directory = temporary_directory();
    let starts = directory.path().join("starts");
    let poison =
        submit(&client, "s1", vec![bash(&format!("echo x >> {}; sleep 300", starts.display())); 6]).await;
    let next = submit(&client, "s1", vec![noop(0)]).await;
    // Tools cannot kill their worker, so this test does what an out-of-memory killer would.
    for attempt in 1..=2 {
        let mut worker = services.serve(&["worker"], &limit).await;
        let started = || std::fs::read_to_string(&starts).is_ok_and(|text| text.lines().count() == attempt);
        wait_for("the tool", TIMEOUT, || std::future::ready(started())).await;
        worker.process.kill();
    }
    let mut spared = services.serve(&["worker"], &limit).await;

    let ended = wait_for_end(&client, &poison).await;
    let failure = ended.failure.clone().unwrap();
    assert_eq!((state(&ended), failure.code.as_str()), (RunState::Failed, "attempts_exhausted"), "{ended:?}");
    assert_eq!((ended.attempt, ended.lost_attempts), (2, 2));
    assert_eq!(state(&wait_for_end(&client, &next).await), RunState::Completed);

    let events = history(&client, "s1").await;
    check_run_order(&events);
    let lost: Vec<Value> = events
        .iter()
        .filter(|event| event.r#type == "run.attempt_lost")
        .map(|event| serde_json::from_str(&event.data).unwrap())
        .collect();
    assert_eq!(lost.iter().map(|data| data["attempts"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    assert_ne!(lost[0]["worker"], lost[1]["worker"]);
    let shown = cli.run(&["runs", "show", &poison]).await.stdout;
    assert!(shown.contains("2 (2 lost their worker)"), "{shown}");
    assert!(!spared.process.has_ended());
}

#[tokio::test]
async fn waiting_run_of_a_lost_worker_is_explained_as_such() {
    let mut cluster = Cluster::start(&nats_binaries()[0], 1).await;
    let (cli, client) = (cluster.cli.clone(), cluster.client());
    let directory = temporary_directory();
    let started = directory.path().join("started");
    let calls = vec![bash(&format!("touch {}; sleep 300", started.display())), noop(0)];
    let run = submit(&client, "s1", calls).await;
    wait_for("the tool", TIMEOUT, || std::future::ready(started.is_file())).await;
    cluster.workers[0].process.kill();
    let lost = || async {
        let explained = cli.one(&["explain", &run]).await;
        explained["message"].as_str().unwrap().contains("was lost").then_some(explained)
    };
    let explained = wait_for("the explanation of a lost worker", TIMEOUT, lost).await;
    assert!(["owner_lost", "no_worker"].contains(&explained["reason"].as_str().unwrap()), "{explained}");
    let attempt_lost = || async { cli.one(&["runs", "show", &run]).await["lost_attempts"] == 1 };
    wait_for("the session to be reclaimed", TIMEOUT, attempt_lost).await;
    // The task records its round only after the commit that the run shows.
    let reclaimed = || async {
        let task =
            cluster.operator.json(&["tasks"]).await.into_iter().find(|task| task["name"] == "take_back")?;
        task["last_notable"]["counts"]["sessions"].as_u64()
    };
    assert_eq!(wait_for("the round that reclaimed the session", TIMEOUT, reclaimed).await, 1);

    cluster.workers.push(cluster.services.worker().await);
    let ended = wait_for_end(&client, &run).await;
    assert_eq!((state(&ended), ended.attempt, ended.lost_attempts), (RunState::Completed, 2, 1));
    assert_eq!(ended.outcomes[0].status, "interrupted");
}

#[tokio::test]
async fn handed_over_run_does_not_count_a_lost_attempt() {
    let mut cluster = Cluster::start(&nats_binaries()[0], 1).await;
    let client = cluster.client();
    let calls: Vec<_> = (0..6).map(|_| bash("sleep 0.3")).collect();
    let run = submit(&client, "s1", calls).await;
    wait_for("the run to start", TIMEOUT, || async { !session(&client, "s1").await.worker_id.is_empty() })
        .await;
    let first = session(&client, "s1").await.worker_id;
    cluster.workers[0].process.signal(Signal::SIGTERM);
    assert_eq!(cluster.workers[0].process.exit_code().await, 0);
    let no_worker = || async {
        let explained = cluster.cli.one(&["explain", &run]).await;
        (explained["reason"] == "no_worker").then_some(explained)
    };
    let explained = wait_for("the explanation that no worker is left", TIMEOUT, no_worker).await;
    assert!(explained["message"].as_str().unwrap().contains("handed the run over"), "{explained}");

    cluster.workers.push(cluster.services.worker().await);
    let ended = wait_for_end(&client, &run).await;
    assert_eq!((state(&ended), ended.attempt, ended.lost_attempts), (RunState::Completed, 2, 0));
    assert!(ended.outcomes.iter().all(|outcome| outcome.status == "completed"), "{ended:?}");
    let events = history(&client, "s1").await;
    check_run_order(&events);
    let handed: Vec<_> = events.iter().filter(|event| event.r#type == "run.handed_over").collect();
    assert_eq!(handed.len(), 1);
    assert!(handed[0].data.contains(&first), "{}", handed[0].data);
    assert!(!events.iter().any(|event| event.r#type == "run.attempt_lost"));
}

#[tokio::test]
async fn background_tasks_report_their_rounds() {
    let dev = Dev::start().await;
    let gate = dev.path("gate");
    submit(&dev.client(), "s1", vec![bash(&format!("touch {gate}; sleep 300"))]).await;
    wait_for("the tool", TIMEOUT, || std::future::ready(std::path::Path::new(&gate).is_file())).await;
    let dev = dev.crash_and_restart().await;
    let all = || async {
        let tasks = dev.cli.json(&["tasks"]).await;
        (tasks.len() == 11).then_some(tasks)
    };
    let tasks = wait_for("every task to have run", TIMEOUT, all).await;
    let names: Vec<&str> = tasks.iter().filter_map(|task| task["name"].as_str()).collect();
    assert_eq!(
        names,
        [
            "delete_expired_keys",
            "expire_approvals",
            "find_unheld",
            "gc",
            "heal_orphans",
            "mend_transport",
            "resume_ready",
            "stop_orphans",
            "take_back",
            "trim_events",
            "wake_sessions"
        ]
    );
    for task in &tasks {
        assert!(task["rounds"].as_u64().unwrap() >= 1, "{task}");
        assert_eq!(task["failures"], 0, "{task}");
        assert!(task["last"]["started_at"].is_string() && task["last"].get("error").is_none(), "{task}");
    }
    // Either `take_back` reclaims the session, or `wake_sessions` wakes it and a worker claims it: whichever runs first.
    let found = || async {
        let tasks = dev.cli.json(&["tasks"]).await;
        let count = |task: &str, item: &str| {
            let task = tasks.iter().find(|it| it["name"] == task)?;
            task["last_notable"]["counts"][item].as_u64()
        };
        count("take_back", "sessions").or(count("wake_sessions", "woken"))
    };
    assert_eq!(wait_for("the dead worker's session to be found", TIMEOUT, found).await, 1);
    let shown = dev.cli.run(&["tasks"]).await.stdout;
    assert!(shown.contains("sessions 1") || shown.contains("woken 1"), "{shown}");
}

#[tokio::test]
async fn metrics_are_served_on_the_configured_address() {
    let dev = Dev::start_with(&["--set", "telemetry.metrics_listen=127.0.0.1:0"]).await;
    let url = dev.server.metrics().unwrap().to_owned();
    let rounds = r#"remuda_task_rounds_total{result="ok",task="wake_sessions"}"#;
    // Each task exports its metrics with its own first round.
    for name in [
        rounds,
        "remuda_task_last_success_timestamp_seconds{",
        "remuda_sessions_taken_back_total ",
        "remuda_orphaned_tokens_healed_total ",
    ] {
        let scraped = || async { Scrape::fetch(&url).await.text.contains(name) };
        wait_for(&format!("{name} in a scrape"), TIMEOUT, scraped).await;
    }
    let without = Dev::start().await;
    assert_eq!(without.server.metrics(), None);
}
