//! Lifecycle of containers.

use std::{sync::Arc, time::Duration};

use bollard::models::ContainerSummaryStateEnum as State;
use remuda_domain::{Code, execution::WorkspaceAccess};
use remuda_sandbox::{Backend, Command, EngineResourceKind, ExecStatus};

use super::docker_fixture::{DockerFixture, eventually, run, shell};
use crate::fixture::{LONG, code};

#[tokio::test(flavor = "multi_thread")]
async fn session_keeps_its_container_across_acquisitions() {
    let fixture = DockerFixture::new().await;
    let request = fixture.request();
    let first = fixture.backend.acquire(&request).await.unwrap();
    shell(&*first, "echo kept > /tmp/state").await;
    let execution_site = first.execution_site().unwrap();
    drop(first);
    let mut later = request.clone();
    later.epoch = 2;
    let again = fixture.backend.acquire(&later).await.unwrap();
    assert_eq!(again.execution_site().unwrap(), execution_site);
    assert_eq!(shell(&*again, "cat /tmp/state").await.stdout.text, "kept\n");
    // An older owner is rejected, also in the same process.
    assert_eq!(code(fixture.backend.acquire(&request).await), Code::OwnershipLost);
    drop(again);
    // Another worker owned the session in between.
    later.epoch = 9;
    let afresh = fixture.backend.acquire(&later).await.unwrap();
    assert_eq!(shell(&*afresh, "ls /tmp").await.stdout.text, "");
    let other = fixture.sandbox().await;
    assert_ne!(other.execution_site().unwrap().sandbox, execution_site.sandbox);
    assert_eq!(shell(&*other, "ls /tmp").await.stdout.text, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_policy_replaces_the_container() {
    let fixture = DockerFixture::new().await;
    let request = fixture.request();
    let first = fixture.backend.acquire(&request).await.unwrap();
    let mut other = request.clone();
    other.policy.limits.processes = Some(77);
    assert_eq!(code(fixture.backend.acquire(&other).await), Code::Unavailable);
    let execution_site = first.execution_site().unwrap();
    drop(first);
    let second = fixture.backend.acquire(&other).await.unwrap();
    assert_ne!(second.execution_site().unwrap().sandbox, execution_site.sandbox);
    eventually("the first is gone", || async { fixture.containers().await.len() == 1 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_container_is_paused_then_removed() {
    let fixture = DockerFixture::with(|options| {
        options.pause_after = Duration::from_millis(100);
        options.remove_after = Duration::from_secs(3);
    })
    .await;
    let request = fixture.request();
    let sandbox = fixture.backend.acquire(&request).await.unwrap();
    shell(&*sandbox, "echo kept > /tmp/state").await;
    fixture.backend.feed_watchdog(Duration::from_millis(1500));
    drop(sandbox);
    let state = || async { fixture.containers().await.first().and_then(|container| container.state) };
    eventually("it is paused", || async { state().await == Some(State::PAUSED) }).await;
    // Longer than the watchdog time, which must not fire while paused.
    tokio::time::sleep(Duration::from_millis(1600)).await;
    fixture.backend.feed_watchdog(Duration::from_secs(600));
    let sandbox = fixture.backend.acquire(&request).await.unwrap();
    assert_eq!(shell(&*sandbox, "cat /tmp/state").await.stdout.text, "kept\n");
    assert_eq!(state().await, Some(State::RUNNING));
    drop(sandbox);
    eventually("it is removed", || async { fixture.containers().await.is_empty() }).await;
    // And created again.
    let sandbox = fixture.backend.acquire(&request).await.unwrap();
    assert_eq!(shell(&*sandbox, "ls /tmp").await.stdout.text, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn container_limit_evicts_idle_containers() {
    let fixture = DockerFixture::with(|options| options.max_containers = 2).await;
    let (first, second) = (fixture.sandbox().await, fixture.sandbox().await);
    drop(first);
    // The idle container is evicted.
    let third = fixture.sandbox().await;
    assert_eq!(fixture.containers().await.len(), 2);
    assert_eq!(code(fixture.backend.acquire(&fixture.request()).await), Code::Overloaded);
    drop(second);
    let fourth = fixture.sandbox().await;
    assert_eq!(fixture.containers().await.len(), 2);
    drop((third, fourth));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_acquisitions_share_one_container() {
    let fixture = DockerFixture::new().await;
    let request = fixture.request();
    let all = (0..5).map(|_| fixture.backend.acquire(&request));
    let all: Vec<_> = futures::future::join_all(all).await;
    let first = all[0].as_ref().unwrap().execution_site().unwrap();
    assert!(all.iter().all(|one| one.as_ref().unwrap().execution_site().unwrap() == first));
    assert_eq!(fixture.containers().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_acquisition_leaves_no_container() {
    let fixture = DockerFixture::new().await;
    for patience in [1, 20, 100, 200] {
        let acquire = tokio::time::timeout(Duration::from_millis(patience), fixture.sandbox());
        drop(acquire.await);
    }
    eventually("nothing is left", || async { fixture.containers().await.is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_watchdog_ends_the_container() {
    let fixture = DockerFixture::new().await;
    let sandbox = fixture.sandbox().await;
    fixture.backend.feed_watchdog(Duration::from_millis(300));
    let error = run(&*sandbox, Command::shell("sleep 1000", LONG)).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().contains("the sandbox is gone"), "{error}");
    eventually("it is removed", || async { fixture.containers().await.is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_removes_all_containers_even_in_use() {
    let mut fixture = DockerFixture::new().await;
    let request = fixture.request();
    let sandbox = fixture.backend.acquire(&request).await.unwrap();
    let found = fixture.backend.list().await.unwrap();
    let container = found.iter().find(|existing| existing.kind == EngineResourceKind::Container).unwrap();
    assert_eq!(container.worker, request.worker);
    assert_eq!(container.sandbox, sandbox.execution_site().unwrap().sandbox);
    let holder = container.holder.unwrap();
    assert_eq!((holder.tenant, holder.session, holder.epoch), (request.tenant, request.session, 1));
    assert!(found.iter().any(|existing| existing.kind == EngineResourceKind::Volume));
    assert!(found.iter().all(|existing| existing.ours));
    fixture.close().await;
    assert_eq!(fixture.backend.list().await.unwrap(), vec![]);
    assert_eq!(code(run(&*sandbox, Command::shell("true", LONG)).await), Code::Unavailable);
    assert_eq!(code(fixture.backend.acquire(&request).await), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_leak_no_resources() {
    let fixture = DockerFixture::new().await;
    let sandbox = fixture.sandbox().await;
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let inside = "ls /proc/1/task | wc -l; ls -d /proc/[0-9]* | wc -l; ls /tmp | wc -l";
    for _ in 0..10 {
        shell(&*sandbox, "true").await;
    }
    let numbers = || async {
        let text = shell(&*sandbox, inside).await.stdout.text;
        text.lines().map(|line| line.trim().parse::<u32>().unwrap()).collect::<Vec<_>>()
    };
    let before = numbers().await;
    // Other tests run in this process at the same time, so only a leak per call is detectable.
    let files_before = files();
    for number in 0..200 {
        let result = shell(&*sandbox, "echo x; echo y >&2; sleep 1000 & exit 3").await;
        assert_eq!((result.status, result.usage.left_behind), (ExecStatus::Exited(3), 1), "{number}");
    }
    let after = numbers().await;
    // One process may be exiting.
    assert!(
        after.iter().zip(&before).all(|(after, before)| *after <= before + 1),
        "{before:?} grew to {after:?}"
    );
    assert!(files() < files_before + 150, "{files_before} files grew to {}", files());
    assert_eq!(fixture.containers().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_is_usable_from_many_tasks() {
    let fixture = DockerFixture::new().await;
    let sandbox = fixture.sandbox().await;
    let mut running = tokio::task::JoinSet::new();
    for number in 0..100 {
        let sandbox = Arc::clone(&sandbox);
        running.spawn(async move {
            let result = shell(&*sandbox, &format!("echo {number}")).await;
            assert_eq!(result.stdout.text, format!("{number}\n"));
        });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    assert_eq!(fixture.request().policy.workspace, WorkspaceAccess::Mount);
}
