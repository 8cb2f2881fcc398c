//! The lifecycle of a cluster: start, unexpected deaths, and cleanup.

use std::{path::Path, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use remuda_cluster::{Cluster, ClusterOptions, FaultKind, Process, still_alive};
use remuda_domain::RunState;
use remuda_testkit::wait_for;

use crate::harness::{
    TIMEOUT, assert_works, client, inject, options, small_cluster, start_sleeper, state, wait_for_end,
};

#[tokio::test]
async fn run_of_a_killed_worker_completes_and_drop_removes_everything() {
    let cluster = small_cluster().await;
    let client = client(&cluster);
    let run = start_sleeper(&cluster, &client).await;
    let before = cluster.processes();

    let record = inject(&cluster, FaultKind::WorkerKill, 1).await;
    assert!(record.target.starts_with("worker-"), "{record:?}");
    assert_eq!(record.survivors, Some(0));
    assert!(!record.note.contains("with 0 tool"), "it did not hit the busy worker: {record:?}");
    let ended = wait_for_end(&client, &run).await;
    assert_eq!((state(&ended), ended.attempt), (RunState::Completed, 2));
    let statuses: Vec<&str> = ended.outcomes.iter().map(|outcome| outcome.status.as_str()).collect();
    assert_eq!(statuses, ["interrupted", "completed"]);
    assert!(cluster.unexpected_deaths().is_empty(), "an injected death was reported as unexpected");
    assert!(cluster.panics().is_empty());

    start_sleeper(&cluster, &client).await;
    let logs = cluster.logs();
    assert!(logs.join("worker-0.log").is_file());
    let everyone: Vec<Process> = before.into_iter().chain(cluster.processes()).collect();
    // Two servers, four members, guards and tools.
    assert!(still_alive(&everyone).len() >= 10, "{everyone:?}");
    drop(cluster);
    assert_eq!(still_alive(&everyone), []);
    assert!(!logs.parent().unwrap().try_exists().unwrap(), "{} is left", logs.display());
}

#[tokio::test]
async fn unexpected_death_is_reported_and_logs_are_kept() {
    let cluster = small_cluster().await;
    let victim = &cluster.streams()[0];
    kill(Pid::from_raw(i32::try_from(victim.pid().unwrap()).unwrap()), Signal::SIGABRT).unwrap();
    wait_for("the death to be noticed", TIMEOUT, || {
        std::future::ready(!cluster.unexpected_deaths().is_empty())
    })
    .await;
    let deaths = cluster.unexpected_deaths();
    assert_eq!((deaths.len(), deaths[0].member.as_str()), (1, "stream-0"));
    assert_eq!(victim.pid(), None);
    // A fault restarts it, and the earlier death is still reported.
    inject(&cluster, FaultKind::StreamKill, 1).await;
    assert!(victim.pid().is_some());
    assert_eq!(cluster.unexpected_deaths().len(), 1);

    let logs = cluster.logs();
    drop(cluster);
    assert!(logs.join("stream-0.log").is_file());
    assert!(logs.join("postgres.log").is_file() && logs.join("nats.log").is_file());
    std::fs::remove_dir_all(logs.parent().unwrap()).unwrap();
}

#[tokio::test]
async fn failed_start_reports_the_reason_and_the_log_directory() {
    let options = ClusterOptions {
        start_timeout: Duration::from_secs(1),
        settings: vec![("REMUDA_WORKER__LEESE".to_owned(), "3s".to_owned())],
        ..options()
    };
    let error = Cluster::start(options).await.unwrap_err();
    let logs = error.to_string();
    let logs = Path::new(logs.strip_prefix("logs are in ").unwrap());
    assert!(logs.join("worker-0.log").is_file());
    std::fs::remove_dir_all(logs.parent().unwrap()).unwrap();
    let error = format!("{error:#}");
    assert!(error.contains("REMUDA_WORKER__LEESE"), "{error}");
}

#[tokio::test]
async fn restarted_process_serves_on_the_same_address() {
    let cluster = small_cluster().await;
    let client = client(&cluster);
    let endpoints = (cluster.control_plane_endpoints(), cluster.stream_endpoints());
    inject(&cluster, FaultKind::ControlPlaneKill, 1).await;
    inject(&cluster, FaultKind::StreamKill, 1).await;
    assert_eq!((cluster.control_plane_endpoints(), cluster.stream_endpoints()), endpoints);
    assert_works(&client).await;
}
