//! Tests of the local backend.

use std::sync::Arc;

use remuda_domain::{
    Code,
    execution::{ExecutionPolicy, ResourceLimits},
};
use remuda_sandbox::{Backend, Command, ExecStatus, LazySandbox, LocalBackend, LocalOptions, SandboxRequest};

use crate::fixture::{self, LONG, SandboxFixture, code, wait_for};

async fn fixture() -> SandboxFixture {
    SandboxFixture::new(&LocalBackend::new(LocalOptions::default())).await
}

crate::backend_suite!(crate::local::fixture);

fn request(workspace_root: impl Into<std::path::PathBuf>) -> SandboxRequest {
    fixture::request(workspace_root, ExecutionPolicy::default())
}

async fn limited(limits: ResourceLimits) -> SandboxFixture {
    let policy = ExecutionPolicy { limits, ..ExecutionPolicy::default() };
    SandboxFixture::with(&LocalBackend::new(LocalOptions::default()), policy).await
}

#[tokio::test]
async fn memory_limit_ends_a_memory_bomb() {
    let fixture =
        limited(ResourceLimits { memory_bytes: Some(100 << 20), ..ResourceLimits::default() }).await;
    let result = fixture.shell("x=a; while :; do x=$x$x; done").await;
    assert!(!matches!(result.status, ExecStatus::Exited(0) | ExecStatus::TimedOut), "{result:?}");
    assert!(result.usage.max_memory_bytes < 100 << 20, "{result:?}");
}

#[tokio::test]
async fn file_size_and_open_files_are_limited() {
    let limits = ResourceLimits { file_bytes: Some(4096), open_files: Some(40), ..ResourceLimits::default() };
    let fixture = limited(limits).await;
    let result =
        fixture.shell("ulimit -n; ulimit -c; head -c 10000 /dev/zero > large; stat -c %s large").await;
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "40\n0\n4096\n"));
    // Output does not count as a file.
    assert_eq!(fixture.shell("head -c 10000 /dev/zero").await.stdout.total_bytes, 10_000);
}

/// In memory, where other processes hardly change the free space.
async fn with_disk_reserve(disk_reserve_bytes: u64) -> SandboxFixture {
    let limits = ResourceLimits { disk_reserve_bytes, ..ResourceLimits::default() };
    let policy = ExecutionPolicy { limits, ..ExecutionPolicy::default() };
    let outside = tempfile::tempdir_in("/dev/shm").unwrap();
    let request = fixture::request(outside.path().join("workspace"), policy);
    let backend = LocalBackend::new(LocalOptions::default());
    SandboxFixture::over(backend.acquire(&request).await.unwrap(), outside)
}

#[tokio::test]
async fn command_that_fills_the_disk_is_killed_before_it_is_full() {
    // More than any disk has: every disk counts as nearly full.
    let fixture = with_disk_reserve(1 << 60).await;
    let script =
        "echo > begun; for i in $(seq 16); do head -c 4000000 /dev/zero >> file; sleep 0.1; done; sleep 1000";
    let result = fixture.shell(script).await;
    assert_eq!(result.status, ExecStatus::DiskFull);
    fixture.assert_nothing_runs();
    // Space can still be freed, and nothing that writes little is killed.
    let result = fixture.shell("rm file; sleep 1.2; echo freed").await;
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "freed\n"));
}

#[tokio::test]
async fn command_may_write_while_the_reserve_is_free() {
    for reserve in [0, 1] {
        let result =
            with_disk_reserve(reserve).await.shell("head -c 8000000 /dev/zero > file; sleep 1.2").await;
        assert_eq!(result.status, ExecStatus::Exited(0));
    }
}

/// Where nothing keeps commands from other processes.
async fn unprotected() -> SandboxFixture {
    let options = LocalOptions { landlock: false, bubblewrap: None, ..LocalOptions::default() };
    SandboxFixture::new(&LocalBackend::new(options)).await
}

/// A command that kills its supervisor dies with it, and so does its group.
#[tokio::test]
async fn killed_supervisor_leaves_no_process() {
    let fixture = unprotected().await;
    for script in ["sleep 1000 & kill -9 $PPID; sleep 1000", "sleep 1000 & kill -9 0; sleep 1000"] {
        let result = fixture.shell(script).await;
        assert_eq!(result.status, ExecStatus::Signalled(9), "{script}");
        fixture.assert_nothing_runs();
    }
}

/// A command that stops its supervisor is killed at its timeout nevertheless.
#[tokio::test]
async fn stopped_supervisor_is_woken_at_the_timeout() {
    let fixture = unprotected().await;
    let script = "(setsid sleep 1000 &); kill -STOP $PPID; sleep 1000";
    let result = fixture.exec(Command::shell(script, std::time::Duration::from_millis(300))).await.unwrap();
    assert_eq!(result.status, ExecStatus::TimedOut);
    fixture.assert_nothing_runs();
}

/// Commands inherit none of the worker's descriptors.
#[tokio::test]
async fn no_descriptor_is_inherited() {
    assert_eq!(fixture().await.shell("ls /proc/self/fd").await.stdout.text, "0\n1\n2\n3\n");
}

#[tokio::test]
async fn environment_of_the_supervisor_is_unreadable() {
    let result = fixture().await.shell("cat /proc/$PPID/environ | tr '\\0' '\\n'").await;
    assert_eq!(result.stdout.text, "");
}

#[test]
fn dropping_the_runtime_kills_its_commands() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fixture = runtime.block_on(async {
        let fixture = fixture().await;
        let run = fixture.exec(Command::shell("echo > begun; sleep 1000 & sleep 1000", LONG));
        tokio::select! {
            _ = run => panic!("the command ended"),
            _ = fixture.wait_for_file("begun") => {}
        }
        fixture
    });
    drop(runtime);
    let watch = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    watch.block_on(wait_for(|| fixture.alive().is_empty()));
}

#[tokio::test]
async fn invalid_workspace_root_is_rejected() {
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
