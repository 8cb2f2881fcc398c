//! The local backend.

use std::sync::Arc;

use remuda_domain::{
    Code,
    execution::{ExecutionPolicy, ResourceLimits},
};
use remuda_sandbox::{Backend, Command, ExecStatus, LazySandbox, LocalBackend, LocalOptions, SandboxRequest};

use crate::bench::{self, Bench, LONG, code, wait_for};

async fn bench() -> Bench {
    Bench::new(&LocalBackend::new(LocalOptions::default())).await
}

crate::backend_suite!(crate::local::bench);

fn request(workspace_root: impl Into<std::path::PathBuf>) -> SandboxRequest {
    bench::request(workspace_root, ExecutionPolicy::default())
}

async fn limited(limits: ResourceLimits) -> Bench {
    let policy = ExecutionPolicy { limits, ..ExecutionPolicy::default() };
    Bench::with(&LocalBackend::new(LocalOptions::default()), policy).await
}

#[tokio::test]
async fn a_memory_bomb_ends_by_its_limit() {
    let bench = limited(ResourceLimits { memory_bytes: Some(100 << 20), ..ResourceLimits::default() }).await;
    let result = bench.shell("x=a; while :; do x=$x$x; done").await;
    assert!(!matches!(result.status, ExecStatus::Exited(0) | ExecStatus::TimedOut), "{result:?}");
    assert!(result.usage.max_memory_bytes < 100 << 20, "{result:?}");
}

#[tokio::test]
async fn files_are_limited_in_size_and_number() {
    let limits = ResourceLimits { file_bytes: Some(4096), open_files: Some(40), ..ResourceLimits::default() };
    let bench = limited(limits).await;
    let result = bench.shell("ulimit -n; ulimit -c; head -c 10000 /dev/zero > large; stat -c %s large").await;
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "40\n0\n4096\n"));
    // Output is no file.
    assert_eq!(bench.shell("head -c 10000 /dev/zero").await.stdout.total_bytes, 10_000);
}

/// A command that kills its supervisor ends with it, and so does its group.
#[tokio::test]
async fn a_killed_supervisor_leaves_nothing() {
    let bench = bench().await;
    for script in ["sleep 1000 & kill -9 $PPID; sleep 1000", "sleep 1000 & kill -9 0; sleep 1000"] {
        let result = bench.shell(script).await;
        assert_eq!(result.status, ExecStatus::Signalled(9), "{script}");
        bench.assert_nothing_runs();
    }
}

/// A command that stops its supervisor is stopped itself in the end.
#[tokio::test]
async fn a_stopped_supervisor_is_woken() {
    let bench = bench().await;
    let script = "(setsid sleep 1000 &); kill -STOP $PPID; sleep 1000";
    let result = bench.exec(Command::shell(script, std::time::Duration::from_millis(300))).await.unwrap();
    assert_eq!(result.status, ExecStatus::TimedOut);
    bench.assert_nothing_runs();
}

/// A worker's descriptors, whatever they are, are not its commands'.
#[tokio::test]
async fn no_descriptor_is_inherited() {
    assert_eq!(bench().await.shell("ls /proc/self/fd").await.stdout.text, "0\n1\n2\n3\n");
}

#[tokio::test]
async fn the_supervisor_cannot_be_looked_into() {
    let result = bench().await.shell("cat /proc/$PPID/environ | tr '\\0' '\\n'").await;
    assert_eq!(result.stdout.text, "");
}

#[test]
fn a_runtime_that_ends_takes_its_commands_along() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = runtime.block_on(async {
        let bench = bench().await;
        let run = bench.exec(Command::shell("echo > begun; sleep 1000 & sleep 1000", LONG));
        tokio::select! {
            _ = run => panic!("it sleeps"),
            _ = bench.written("begun") => {}
        }
        bench
    });
    drop(runtime);
    let watch = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    watch.block_on(wait_for(|| bench.alive().is_empty()));
}

#[tokio::test]
async fn a_workspace_that_cannot_be_is_refused() {
    let backend = LocalBackend::new(LocalOptions::default());
    assert_eq!(code(backend.acquire(&request("relative")).await), Code::InvalidArgument);
    assert_eq!(code(backend.acquire(&request("/dev/null/beneath")).await), Code::Unavailable);
}

#[tokio::test]
async fn lazy_acquires_once_and_retries_failures() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("workspace");
    let lazy = LazySandbox::new(Arc::new(LocalBackend::new(LocalOptions::default())), request(&root));
    assert!(!root.try_exists().unwrap());

    std::fs::write(&root, "in the way").unwrap();
    assert_eq!(code(lazy.get().await), Code::Unavailable);
    std::fs::remove_file(&root).unwrap();
    let (first, second) = (lazy.get().await.unwrap(), lazy.get().await.unwrap());
    assert!(Arc::ptr_eq(&first, &second));
    assert!(root.is_dir());
}
