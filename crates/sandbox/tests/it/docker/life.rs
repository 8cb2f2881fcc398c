//! Containers come and go.

use std::{sync::Arc, time::Duration};

use bollard::models::ContainerSummaryStateEnum as State;
use remuda_domain::{Code, execution::WorkspaceAccess};
use remuda_sandbox::{Backend, Command, ExecStatus, ExistingKind};

use super::lab::{Lab, eventually, run, shell};
use crate::bench::{LONG, code};

#[tokio::test(flavor = "multi_thread")]
async fn a_session_keeps_its_container_and_others_have_their_own() {
    let lab = Lab::new().await;
    let request = lab.request();
    let first = lab.backend.acquire(&request).await.unwrap();
    shell(&*first, "echo kept > /tmp/state").await;
    let place = first.place().unwrap();
    drop(first);
    let mut later = request.clone();
    later.epoch = 2;
    let again = lab.backend.acquire(&later).await.unwrap();
    assert_eq!(again.place().unwrap(), place);
    assert_eq!(shell(&*again, "cat /tmp/state").await.stdout.text, "kept\n");
    // An older owner is turned away, in this process, too.
    assert_eq!(code(lab.backend.acquire(&request).await), Code::OwnershipLost);
    drop(again);
    // Somebody else had it in between.
    later.epoch = 9;
    let afresh = lab.backend.acquire(&later).await.unwrap();
    assert_eq!(shell(&*afresh, "ls /tmp").await.stdout.text, "");
    let other = lab.sandbox().await;
    assert_ne!(other.place().unwrap().sandbox, place.sandbox);
    assert_eq!(shell(&*other, "ls /tmp").await.stdout.text, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_policy_gets_another_container() {
    let lab = Lab::new().await;
    let request = lab.request();
    let first = lab.backend.acquire(&request).await.unwrap();
    let mut other = request.clone();
    other.policy.limits.processes = Some(77);
    assert_eq!(code(lab.backend.acquire(&other).await), Code::Unavailable);
    let place = first.place().unwrap();
    drop(first);
    let second = lab.backend.acquire(&other).await.unwrap();
    assert_ne!(second.place().unwrap().sandbox, place.sandbox);
    eventually("the first is gone", || async { lab.containers().await.len() == 1 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_containers_pause_and_go() {
    let lab = Lab::with(|options| {
        options.pause_after = Duration::from_millis(100);
        options.remove_after = Duration::from_secs(3);
    })
    .await;
    let request = lab.request();
    let sandbox = lab.backend.acquire(&request).await.unwrap();
    shell(&*sandbox, "echo kept > /tmp/state").await;
    lab.backend.feed(Duration::from_millis(1500));
    drop(sandbox);
    let state = || async { lab.containers().await.first().and_then(|container| container.state) };
    eventually("it is paused", || async { state().await == Some(State::PAUSED) }).await;
    // Longer than the promise, which a paused container cannot hear of.
    tokio::time::sleep(Duration::from_millis(1600)).await;
    lab.backend.feed(Duration::from_secs(600));
    let sandbox = lab.backend.acquire(&request).await.unwrap();
    assert_eq!(shell(&*sandbox, "cat /tmp/state").await.stdout.text, "kept\n");
    assert_eq!(state().await, Some(State::RUNNING));
    drop(sandbox);
    eventually("it is removed", || async { lab.containers().await.is_empty() }).await;
    // And made anew.
    let sandbox = lab.backend.acquire(&request).await.unwrap();
    assert_eq!(shell(&*sandbox, "ls /tmp").await.stdout.text, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_containers_is_bounded() {
    let lab = Lab::with(|options| options.max_containers = 2).await;
    let (first, second) = (lab.sandbox().await, lab.sandbox().await);
    drop(first);
    // The idle one makes room.
    let third = lab.sandbox().await;
    assert_eq!(lab.containers().await.len(), 2);
    assert_eq!(code(lab.backend.acquire(&lab.request()).await), Code::Overloaded);
    drop(second);
    let fourth = lab.sandbox().await;
    assert_eq!(lab.containers().await.len(), 2);
    drop((third, fourth));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_acquisition_serves_all_who_ask_at_once() {
    let lab = Lab::new().await;
    let request = lab.request();
    let all = (0..5).map(|_| lab.backend.acquire(&request));
    let all: Vec<_> = futures::future::join_all(all).await;
    let first = all[0].as_ref().unwrap().place().unwrap();
    assert!(all.iter().all(|one| one.as_ref().unwrap().place().unwrap() == first));
    assert_eq!(lab.containers().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_that_is_given_up_leaves_nothing() {
    let lab = Lab::new().await;
    for patience in [1, 20, 100, 200] {
        let acquire = tokio::time::timeout(Duration::from_millis(patience), lab.sandbox());
        drop(acquire.await);
    }
    eventually("nothing is left", || async { lab.containers().await.is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unkept_promise_ends_the_container() {
    let lab = Lab::new().await;
    let sandbox = lab.sandbox().await;
    lab.backend.feed(Duration::from_millis(300));
    let error = run(&*sandbox, Command::shell("sleep 1000", LONG)).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().contains("the sandbox is gone"), "{error}");
    eventually("it is removed", || async { lab.containers().await.is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_found_and_removed_at_the_end_also_what_is_in_use() {
    let mut lab = Lab::new().await;
    let request = lab.request();
    let sandbox = lab.backend.acquire(&request).await.unwrap();
    let found = lab.backend.list().await.unwrap();
    let container = found.iter().find(|existing| existing.what == ExistingKind::Container).unwrap();
    assert_eq!(container.worker, request.worker);
    assert_eq!(container.sandbox, sandbox.place().unwrap().sandbox);
    let holder = container.holder.unwrap();
    assert_eq!((holder.tenant, holder.session, holder.epoch), (request.tenant, request.session, 1));
    assert!(found.iter().any(|existing| existing.what == ExistingKind::Volume));
    assert!(found.iter().all(|existing| existing.ours));
    lab.close().await;
    assert_eq!(lab.backend.list().await.unwrap(), vec![]);
    assert_eq!(code(run(&*sandbox, Command::shell("true", LONG)).await), Code::Unavailable);
    assert_eq!(code(lab.backend.acquire(&request).await), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_grows_over_many_calls() {
    let lab = Lab::new().await;
    let sandbox = lab.sandbox().await;
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
    // Other tests run in this process at the same time, so only a leak per call shows.
    let files_before = files();
    for number in 0..200 {
        let result = shell(&*sandbox, "echo x; echo y >&2; sleep 1000 & exit 3").await;
        assert_eq!((result.status, result.usage.left_behind), (ExecStatus::Exited(3), 1), "{number}");
    }
    let after = numbers().await;
    // One process may be on its way out.
    assert!(
        after.iter().zip(&before).all(|(after, before)| *after <= before + 1),
        "{before:?} grew to {after:?}"
    );
    assert!(files() < files_before + 150, "{files_before} files grew to {}", files());
    assert_eq!(lab.containers().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_are_used_from_many_tasks() {
    let lab = Lab::new().await;
    let sandbox = lab.sandbox().await;
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
    assert_eq!(lab.request().policy.workspace, WorkspaceAccess::Mount);
}
