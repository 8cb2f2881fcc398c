//! Failures of engine, worker and containers, and foreign containers that must not be touched.

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
    docker_fixture::{DockerFixture, containers, eventually, host, run, shell},
};
use crate::fixture::{LONG, code, wait_for};

/// A container that Remuda did not create.
struct ForeignContainer<'a> {
    fixture: &'a DockerFixture,
    id: String,
}

impl<'a> ForeignContainer<'a> {
    async fn start(fixture: &'a DockerFixture, labels: &[(&str, &str)]) -> Self {
        let labels: HashMap<_, _> = labels.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        let body = ContainerCreateBody {
            image: Some(fixture.image.name.clone()),
            cmd: Some(["sleep", "600"].map(str::to_owned).to_vec()),
            labels: Some(labels),
            host_config: Some(HostConfig { network_mode: Some("none".into()), ..Default::default() }),
            ..Default::default()
        };
        let id = fixture.docker.create_container(None::<CreateContainerOptions>, body).await.unwrap().id;
        let foreign_container = Self { fixture, id };
        fixture.docker.start_container(&foreign_container.id, None::<StartContainerOptions>).await.unwrap();
        foreign_container
    }

    async fn runs(&self) -> bool {
        let found = self.fixture.docker.inspect_container(&self.id, None).await;
        found.is_ok_and(|found| found.state.and_then(|state| state.running) == Some(true))
    }
}

impl Drop for ForeignContainer<'_> {
    fn drop(&mut self) {
        let options = RemoveContainerOptions { force: true, ..Default::default() };
        super::docker_fixture::block_on(self.fixture.docker.remove_container(&self.id, Some(options))).ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_containers_are_neither_listed_nor_removed() {
    let mut fixture = DockerFixture::new().await;
    let other = fixture.second();
    let worker = WorkerId::new().to_string();
    let unlabelled = ForeignContainer::start(&other, &[]).await;
    let elsewhere = [
        ("dev.remuda.installation", "another"),
        ("dev.remuda.worker", worker.as_str()),
        ("dev.remuda.sandbox", "sbx_00000000000000000000000000"),
    ];
    let foreign = ForeignContainer::start(&other, &elsewhere).await;
    let sandbox = fixture.sandbox().await;
    let found = fixture.backend.list().await.unwrap();
    assert!(!found.iter().any(|existing| existing.handle == unlabelled.id || existing.handle == foreign.id));
    for existing in &found {
        fixture.backend.remove(existing).await.ok();
    }
    drop(sandbox);
    fixture.close().await;
    assert!(unlabelled.runs().await && foreign.runs().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn container_removed_by_hand_is_reported_and_replaced() {
    let fixture = DockerFixture::new().await;
    let request = fixture.request();
    let sandbox = fixture.backend.acquire(&request).await.unwrap();
    let container = fixture.only_container().await;
    let remove = async {
        wait_for(|| fixture.workspace().join("there").is_file()).await;
        let options = RemoveContainerOptions { force: true, ..Default::default() };
        fixture.docker.remove_container(&container, Some(options)).await.unwrap();
    };
    let (result, ()) = tokio::join!(run(&*sandbox, Command::shell("echo > there; sleep 1000", LONG)), remove);
    let error = result.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().starts_with("the sandbox is gone: "), "{error}");
    assert_eq!(code(run(&*sandbox, Command::shell("true", LONG)).await), Code::Unavailable);
    let again = fixture.backend.acquire(&request).await.unwrap();
    assert_eq!(shell(&*again, "echo well").await.stdout.text, "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_removed_by_hand_is_created_again() {
    let fixture = DockerFixture::with(|options| options.remove_after = Duration::from_millis(50)).await;
    drop(fixture.sandbox().await);
    eventually("no container", || async { fixture.containers().await.is_empty() }).await;
    for existing in fixture.backend.list().await.unwrap() {
        fixture.backend.remove(&existing).await.unwrap();
    }
    let sandbox = fixture.sandbox().await;
    assert_eq!(shell(&*sandbox, "echo well").await.stdout.text, "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_owner_wins_concurrent_acquisition() {
    let first = DockerFixture::new().await;
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

    // Concurrently: never two, and never none.
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
async fn unreachable_engine_fails_only_the_call() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = format!("unix://{}", directory.path().join("none.sock").display());
    let backend = DockerBackend::new(DockerOptions::new(&nowhere, "x", WorkerId::new()));
    let fixture = DockerFixture::new().await;
    for error in [
        backend.check(&fixture.request()).await.unwrap_err(),
        backend.acquire(&fixture.request()).await.unwrap_err(),
        backend.list().await.unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().contains("does not answer"), "{error}");
    }
    let bad = DockerBackend::new(DockerOptions::new("nonsense", "x", WorkerId::new()));
    assert_eq!(code(bad.acquire(&fixture.request()).await), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_engine_is_reconnected() {
    let mut daemon = Daemon::start();
    let fixture = DockerFixture::at(&daemon.host()).await;
    let request = fixture.request();
    let sandbox = fixture.backend.acquire(&request).await.unwrap();
    let stop = async {
        wait_for(|| fixture.workspace().join("there").is_file()).await;
        tokio::task::block_in_place(|| daemon.stop());
    };
    let (result, ()) = tokio::join!(run(&*sandbox, Command::shell("echo > there; sleep 1000", LONG)), stop);
    assert_eq!(code(result), Code::Unavailable);
    assert_eq!(code(fixture.backend.acquire(&request).await), Code::Unavailable);
    tokio::task::block_in_place(|| daemon.restart());
    let again = fixture.backend.acquire(&request).await.unwrap();
    assert_eq!(shell(&*again, "echo well").await.stdout.text, "well\n");
    eventually("only one container", || async { fixture.containers().await.len() == 1 }).await;
    drop((sandbox, again, fixture));
}

const WORKER_VARIABLE: &str = "REMUDA_TEST_WORKER_OF";

/// Not a test by itself: the worker process that [`containers_of_a_killed_worker_are_removed`] kills.
#[tokio::test(flavor = "multi_thread")]
async fn worker_to_be_killed() {
    let Ok(arguments) = std::env::var(WORKER_VARIABLE) else { return };
    let [installation, image, root]: [&str; 3] = arguments.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let backend = DockerBackend::new(DockerOptions::new(host(), installation, WorkerId::new()));
    let mut busy = tokio::task::JoinSet::new();
    for number in 0..3 {
        let mut request = DockerFixture::new().await.request();
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
async fn containers_of_a_killed_worker_are_removed() {
    let fixture = DockerFixture::new().await;
    let foreign_container = ForeignContainer::start(&fixture, &[]).await;
    let root = fixture.outside.path().display();
    let mut worker = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "docker::faults::worker_to_be_killed", "--nocapture"])
        .env(WORKER_VARIABLE, format!("{} {} {root}", fixture.installation, fixture.image.name))
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = tokio::io::BufReader::new(worker.stdout.take().unwrap()).lines();
    while lines.next_line().await.unwrap().expect("the worker printed nothing") != "busy" {}
    assert_eq!(fixture.containers().await.len(), 3);
    kill(Pid::from_raw(worker.id().unwrap().try_into().unwrap()), Signal::SIGKILL).unwrap();
    worker.wait().await.unwrap();
    eventually("its containers are gone", || async {
        containers(&fixture.docker, &fixture.installation).await.is_empty()
    })
    .await;
    assert!(foreign_container.runs().await);
    // The rest is found by its labels.
    let left = fixture.backend.list().await.unwrap();
    assert_eq!(left.len(), 1, "the volume: {left:?}");
    assert!(!left[0].ours);
    fixture.backend.remove(&left[0]).await.unwrap();
    assert_eq!(fixture.backend.list().await.unwrap(), vec![]);
}
