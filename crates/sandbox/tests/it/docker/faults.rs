//! What breaks, and who must not be touched.

use std::{collections::HashMap, process::Stdio, time::Duration};

use bollard::{
    models::{ContainerCreateBody, HostConfig},
    query_parameters::{CreateContainerOptions, RemoveContainerOptions, StartContainerOptions},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use remuda_domain::{Code, WorkerId};
use remuda_sandbox::{Backend, Command, DockerBackend, DockerOptions, NoOutput};
use tokio::io::AsyncBufReadExt;
use tokio_util::sync::CancellationToken;

use super::{
    daemon::Daemon,
    lab::{Lab, containers, eventually, host, run, shell},
};
use crate::bench::{LONG, code, wait_for};

/// A container that somebody else made.
struct Stranger<'a> {
    lab: &'a Lab,
    id: String,
}

impl<'a> Stranger<'a> {
    async fn start(lab: &'a Lab, labels: &[(&str, &str)]) -> Self {
        let labels: HashMap<_, _> = labels.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        let body = ContainerCreateBody {
            image: Some(lab.image.name.clone()),
            cmd: Some(["sleep", "600"].map(str::to_owned).to_vec()),
            labels: Some(labels),
            host_config: Some(HostConfig { network_mode: Some("none".into()), ..Default::default() }),
            ..Default::default()
        };
        let id = lab.docker.create_container(None::<CreateContainerOptions>, body).await.unwrap().id;
        let stranger = Self { lab, id };
        lab.docker.start_container(&stranger.id, None::<StartContainerOptions>).await.unwrap();
        stranger
    }

    async fn runs(&self) -> bool {
        let found = self.lab.docker.inspect_container(&self.id, None).await;
        found.is_ok_and(|found| found.state.and_then(|state| state.running) == Some(true))
    }
}

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        let options = RemoveContainerOptions { force: true, ..Default::default() };
        super::lab::block_on(self.lab.docker.remove_container(&self.id, Some(options))).ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_neither_listed_nor_touched() {
    let mut lab = Lab::new().await;
    let other = lab.second();
    let worker = WorkerId::new().to_string();
    let unlabelled = Stranger::start(&other, &[]).await;
    let elsewhere = [
        ("dev.remuda.installation", "another"),
        ("dev.remuda.worker", worker.as_str()),
        ("dev.remuda.sandbox", "sbx_00000000000000000000000000"),
    ];
    let foreign = Stranger::start(&other, &elsewhere).await;
    let sandbox = lab.sandbox().await;
    let found = lab.backend.list().await.unwrap();
    assert!(!found.iter().any(|existing| existing.handle == unlabelled.id || existing.handle == foreign.id));
    for existing in &found {
        lab.backend.remove(existing).await.ok();
    }
    drop(sandbox);
    lab.close().await;
    assert!(unlabelled.runs().await && foreign.runs().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_removed_by_hand_is_a_clear_error_and_then_another() {
    let lab = Lab::new().await;
    let request = lab.request();
    let sandbox = lab.backend.acquire(&request).await.unwrap();
    let container = lab.only_container().await;
    let remove = async {
        wait_for(|| lab.workspace().join("there").is_file()).await;
        let options = RemoveContainerOptions { force: true, ..Default::default() };
        lab.docker.remove_container(&container, Some(options)).await.unwrap();
    };
    let (result, ()) = tokio::join!(run(&*sandbox, Command::shell("echo > there; sleep 1000", LONG)), remove);
    let error = result.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().starts_with("the sandbox is gone: "), "{error}");
    assert_eq!(code(run(&*sandbox, Command::shell("true", LONG)).await), Code::Unavailable);
    let again = lab.backend.acquire(&request).await.unwrap();
    assert_eq!(shell(&*again, "echo well").await.stdout.text, "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_removed_by_hand_is_made_anew() {
    let lab = Lab::with(|options| options.remove_after = Duration::from_millis(50)).await;
    drop(lab.sandbox().await);
    eventually("no container", || async { lab.containers().await.is_empty() }).await;
    for existing in lab.backend.list().await.unwrap() {
        lab.backend.remove(&existing).await.unwrap();
    }
    let sandbox = lab.sandbox().await;
    assert_eq!(shell(&*sandbox, "echo well").await.stdout.text, "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newer_owner_wins_a_race() {
    let first = Lab::new().await;
    let second = first.second();
    let old = first.request();
    let mut new = old.clone();
    new.epoch = 2;
    let sandbox = first.backend.acquire(&old).await.unwrap();
    let running = run(&*sandbox, Command::shell("echo > there; sleep 1000", LONG));
    let take_over = async {
        wait_for(|| first.workspace().join("there").is_file()).await;
        second.backend.acquire(&new).await.unwrap()
    };
    let (lost, taken) = tokio::join!(running, take_over);
    assert_eq!(code(lost), Code::Unavailable);
    assert_eq!(shell(&*taken, "echo well").await.stdout.text, "well\n");
    assert_eq!(code(first.backend.acquire(&old).await), Code::OwnershipLost);
    assert_eq!(first.containers().await.len(), 1);
    drop(taken);

    // At the very same time: never two, and never none.
    for epoch in [10, 20, 30] {
        let (mut older, mut newer) = (old.clone(), old.clone());
        (older.epoch, newer.epoch) = (epoch, epoch + 1);
        let (older, newer) = tokio::join!(first.backend.acquire(&older), second.backend.acquire(&newer));
        let newer = newer.unwrap();
        assert_eq!(shell(&*newer, "echo well").await.stdout.text, "well\n");
        if let Ok(older) = older {
            assert_eq!(code(run(&*older, Command::shell("true", LONG)).await), Code::Unavailable);
        }
        assert_eq!(first.containers().await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_down_is_an_error_of_the_call_only() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = format!("unix://{}", directory.path().join("none.sock").display());
    let backend = DockerBackend::new(DockerOptions::new(&nowhere, "x", WorkerId::new()));
    let lab = Lab::new().await;
    for error in [
        backend.check(&lab.request()).await.unwrap_err(),
        backend.acquire(&lab.request()).await.unwrap_err(),
        backend.list().await.unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().contains("does not answer"), "{error}");
    }
    let bad = DockerBackend::new(DockerOptions::new("nonsense", "x", WorkerId::new()));
    assert_eq!(code(bad.acquire(&lab.request()).await), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_is_found_again() {
    let mut daemon = Daemon::start();
    let lab = Lab::at(&daemon.host()).await;
    let request = lab.request();
    let sandbox = lab.backend.acquire(&request).await.unwrap();
    let stop = async {
        wait_for(|| lab.workspace().join("there").is_file()).await;
        tokio::task::block_in_place(|| daemon.stop());
    };
    let (result, ()) = tokio::join!(run(&*sandbox, Command::shell("echo > there; sleep 1000", LONG)), stop);
    assert_eq!(code(result), Code::Unavailable);
    assert_eq!(code(lab.backend.acquire(&request).await), Code::Unavailable);
    tokio::task::block_in_place(|| daemon.start_again());
    let again = lab.backend.acquire(&request).await.unwrap();
    assert_eq!(shell(&*again, "echo well").await.stdout.text, "well\n");
    eventually("only one container", || async { lab.containers().await.len() == 1 }).await;
    drop((sandbox, again, lab));
}

const WORKER_VARIABLE: &str = "REMUDA_TEST_WORKER_OF";

/// Not a test by itself: the worker that [`a_killed_worker_takes_its_containers_along`] kills.
#[tokio::test(flavor = "multi_thread")]
async fn worker_to_be_killed() {
    let Ok(arguments) = std::env::var(WORKER_VARIABLE) else { return };
    let [installation, image, root]: [&str; 3] = arguments.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let backend = DockerBackend::new(DockerOptions::new(host(), installation, WorkerId::new()));
    let mut busy = tokio::task::JoinSet::new();
    for number in 0..3 {
        let mut request = Lab::new().await.request();
        request.workspace_root = format!("{root}/{number}").into();
        request.policy.image = Some(image.to_owned());
        let sandbox = backend.acquire(&request).await.unwrap();
        busy.spawn(async move {
            let command = Command::shell("echo; setsid sleep 1000", Duration::from_secs(1000));
            sandbox.exec(command, &NoOutput, &CancellationToken::new()).await
        });
    }
    println!("\nbusy");
    while busy.join_next().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_takes_its_containers_along() {
    let lab = Lab::new().await;
    let stranger = Stranger::start(&lab, &[]).await;
    let root = lab.outside.path().display();
    let mut worker = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "docker::faults::worker_to_be_killed", "--nocapture"])
        .env(WORKER_VARIABLE, format!("{} {} {root}", lab.installation, lab.image.name))
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = tokio::io::BufReader::new(worker.stdout.take().unwrap()).lines();
    while lines.next_line().await.unwrap().expect("the worker said nothing") != "busy" {}
    assert_eq!(lab.containers().await.len(), 3);
    kill(Pid::from_raw(worker.id().unwrap().try_into().unwrap()), Signal::SIGKILL).unwrap();
    worker.wait().await.unwrap();
    eventually("its containers are gone", || async {
        containers(&lab.docker, &lab.installation).await.is_empty()
    })
    .await;
    assert!(stranger.runs().await);
    // What does not end by itself is found by its labels.
    let left = lab.backend.list().await.unwrap();
    assert_eq!(left.len(), 1, "the volume: {left:?}");
    assert!(!left[0].ours);
    lab.backend.remove(&left[0]).await.unwrap();
    assert_eq!(lab.backend.list().await.unwrap(), vec![]);
}
