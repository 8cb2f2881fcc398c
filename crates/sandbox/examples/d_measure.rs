#![allow(clippy::all, clippy::unwrap_used, clippy::print_stdout, clippy::expect_used)]
use std::{sync::Arc, time::{Duration, Instant}};
use bollard::{Docker, exec::{CreateExecOptions, StartExecResults}, models::*, query_parameters::*};
use futures::StreamExt;
use remuda_domain::{execution::*, *};
use remuda_sandbox::{docker::WarmTarget, *};
use tokio_util::sync::CancellationToken;

fn show(name: &str, mut times: Vec<Duration>) {
    times.sort();
    println!("{name}: p50 {:?} p90 {:?} min {:?} n {}", times[times.len() / 2], times[times.len() * 9 / 10], times[0], times.len());
}
async fn exec(s: &dyn Sandbox) { let r = s.exec(Command::argv(vec!["true".into()], Duration::from_secs(10)), &NoOutput, &CancellationToken::new()).await.unwrap(); assert_eq!(r.status, ExecStatus::Exited(0)); }
async fn shell(s: &dyn Sandbox) { let r = s.exec(Command::shell("true", Duration::from_secs(10)), &NoOutput, &CancellationToken::new()).await.unwrap(); assert_eq!(r.status, ExecStatus::Exited(0)); }

#[tokio::main]
async fn main() {
    let host = "unix:///tmp/dk/d.sock";
    let mut options = DockerOptions::new(host, "measure", WorkerId::new());
    options.warm = vec![WarmTarget { image: "busy:1".into(), count: 1, network: "none".into(), limits: ResourceLimits::default() }];
    let backend = DockerBackend::new(options);
    let stop = CancellationToken::new();
    let tasks = tokio_util::task::TaskTracker::new();
    let (k, s) = (backend.clone(), stop.clone());
    tasks.spawn(async move { k.keep(s).await });
    let dir = std::path::PathBuf::from("/tmp/d_measure_ws");
    std::fs::create_dir_all(&dir).unwrap();
    let request = |access, n: u32| SandboxRequest { tenant: TenantId::new(), session: SessionId::new(), epoch: 1, worker: WorkerId::new(), workspace_root: dir.join(n.to_string()),
        policy: ExecutionPolicy { backend: BackendKind::Docker, image: Some("busy:1".into()), workspace: access, ..Default::default() } };
    let t = Instant::now();
    let sandbox: Arc<dyn Sandbox> = backend.acquire(&request(WorkspaceAccess::Mount, 0)).await.unwrap();
    println!("first container with volume: {:?}", t.elapsed());
    let t = Instant::now();
    drop(backend.acquire(&request(WorkspaceAccess::Mount, 1)).await.unwrap());
    println!("another container: {:?}", t.elapsed());
    for _ in 0..20 { exec(&*sandbox).await }
    let mut times = vec![];
    for _ in 0..200 { let t = Instant::now(); exec(&*sandbox).await; times.push(t.elapsed()); }
    show("warm exec argv", times);
    let mut times = vec![];
    for _ in 0..200 { let t = Instant::now(); shell(&*sandbox).await; times.push(t.elapsed()); }
    show("warm exec shell", times);
    let copy = backend.acquire(&request(WorkspaceAccess::Copy, 2)).await.unwrap();
    let mut times = vec![];
    for _ in 0..200 { let t = Instant::now(); exec(&*copy).await; times.push(t.elapsed()); }
    show("warm exec argv, copy", times);
    let mut times = vec![]; let mut acq = vec![];
    for n in 0..8 {
        loop {
            let found = backend.list().await.unwrap();
            if found.iter().filter(|e| e.what == ExistingKind::Container && e.holder.is_none()).count() == 1 { break }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
        let request = request(WorkspaceAccess::Copy, 10 + n);
        let t = Instant::now();
        let s = backend.acquire(&request).await.unwrap();
        acq.push(t.elapsed());
        exec(&*s).await;
        times.push(t.elapsed());
    }
    show("acquire spare", acq);
    show("first call on spare", times);
    let docker = Docker::connect_with_host(host).unwrap().negotiate_version().await.unwrap();
    let id = docker.create_container(None::<CreateContainerOptions>, ContainerCreateBody { image: Some("busy:1".into()), cmd: Some(vec!["sleep".into(), "1000".into()]), host_config: Some(HostConfig { network_mode: Some("none".into()), ..Default::default() }), ..Default::default() }).await.unwrap().id;
    docker.start_container(&id, None::<StartContainerOptions>).await.unwrap();
    let mut times = vec![];
    for _ in 0..30 {
        let t = Instant::now();
        let e = docker.create_exec(&id, CreateExecOptions { cmd: Some(vec!["true"]), attach_stdout: Some(true), attach_stderr: Some(true), ..Default::default() }).await.unwrap().id;
        if let StartExecResults::Attached { mut output, .. } = docker.start_exec(&e, None).await.unwrap() { while output.next().await.is_some() {} }
        assert_eq!(docker.inspect_exec(&e).await.unwrap().exit_code, Some(0));
        times.push(t.elapsed());
    }
    show("raw docker exec", times);
    docker.remove_container(&id, Some(RemoveContainerOptions { force: true, ..Default::default() })).await.unwrap();
    drop((sandbox, copy));
    stop.cancel(); tasks.close(); tasks.wait().await;
    std::fs::remove_dir_all(&dir).ok();
}
