//! Hostile commands.

use std::time::Duration;

use remuda_domain::execution::ResourceLimits;
use remuda_sandbox::{Backend, Command, ExecStatus, Sandbox};

use super::docker_fixture::{DockerFixture, run, shell};
use crate::fixture::LONG;

async fn limited(
    fixture: &DockerFixture,
    adjust: impl FnOnce(&mut ResourceLimits),
) -> std::sync::Arc<dyn Sandbox> {
    let mut request = fixture.request();
    adjust(&mut request.policy.limits);
    fixture.backend.acquire(&request).await.unwrap()
}

/// Number of processes in the container, without the supervisors and the counting command.
async fn others(sandbox: &dyn Sandbox) -> usize {
    let count = shell(sandbox, "ls -d /proc/[0-9]* | wc -l").await.stdout.text;
    // init, supervisor, shell, ls, wc
    count.trim().parse::<usize>().unwrap().saturating_sub(5)
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_bomb_is_limited_to_its_container_and_call() {
    let fixture = DockerFixture::new().await;
    let sandbox = limited(&fixture, |limits| limits.processes = Some(40)).await;
    let bomb = "b() { b | b & }; b; sleep 1000";
    let escaping = "while :; do setsid sleep 1000 & done";
    for (script, left_behind) in [(bomb, 0), (escaping, 50)] {
        let result = run(&*sandbox, Command::shell(script, Duration::from_secs(2))).await.unwrap();
        // A shell that cannot fork may exit by itself.
        assert!(matches!(result.status, ExecStatus::TimedOut | ExecStatus::Exited(2)), "{:?}", result.status);
        assert!(result.usage.left_behind >= left_behind, "{:?}", result.usage);
        assert_eq!(others(&*sandbox).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_bomb_is_reported_as_out_of_memory() {
    let fixture = DockerFixture::new().await;
    let sandbox = limited(&fixture, |limits| limits.memory_bytes = Some(32 << 20)).await;
    let command = Command::argv(["tail", "/dev/zero"].map(str::to_owned).to_vec(), LONG);
    assert_eq!(run(&*sandbox, command).await.unwrap().status, ExecStatus::OutOfMemory);
    assert_eq!(shell(&*sandbox, "exec tail /dev/zero").await.status, ExecStatus::OutOfMemory);
    // Later commands are not reported as out of memory.
    assert_eq!(shell(&*sandbox, "kill -9 $$").await.status, ExecStatus::Signalled(9));
    assert_eq!(shell(&*sandbox, "echo well").await.stdout.text, "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn tmpfs_and_file_sizes_are_limited() {
    let fixture = DockerFixture::new().await;
    let sandbox = limited(&fixture, |limits| {
        limits.scratch_bytes = 4 << 20;
        limits.file_bytes = Some(2 << 20);
    })
    .await;
    let script =
        "for f in a b c d e f; do head -c 1500000 /dev/zero > /tmp/$f; done; cat /tmp/? | wc -c; rm /tmp/?";
    let kept: u64 = shell(&*sandbox, script).await.stdout.text.trim().parse().unwrap();
    assert!((3 << 20..=4 << 20).contains(&kept), "{kept}");
    let result = shell(&*sandbox, "dd if=/dev/zero of=big bs=65536 count=64; stat -c %s big").await;
    assert!(result.stdout.text.ends_with("2097152\n"), "{} {}", result.stdout.text, result.stderr.text);
    for directory in ["/run", "/dev/shm"] {
        let script = format!(
            "i=0; while [ $i -lt 100 ] && head -c 1000000 /dev/zero > {directory}/$i; do i=$((i+1)); done; echo $i; rm {directory}/*"
        );
        let filled: u32 = shell(&*sandbox, &script).await.stdout.text.trim().parse().unwrap();
        assert!(filled < 100, "{directory} took {filled} MB");
    }
    assert_eq!(shell(&*sandbox, "echo well > /tmp/x && cat /tmp/x").await.stdout.text, "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_all_affects_only_the_own_container() {
    let fixture = DockerFixture::new().await;
    let sandbox = fixture.sandbox().await;
    let cancel = tokio_util::sync::CancellationToken::new();
    let victim =
        sandbox.exec(Command::shell("echo > there; sleep 1000", LONG), &remuda_sandbox::NoOutput, &cancel);
    let killer = async {
        crate::fixture::wait_for(|| fixture.workspace().join("there").is_file()).await;
        run(&*sandbox, Command::shell("kill -9 -1", LONG)).await
    };
    let (victim, killer) = tokio::join!(victim, killer);
    assert_eq!(victim.unwrap().status, ExecStatus::Signalled(9));
    // `kill -1` spares the caller, but not its supervisor.
    assert!(matches!(killer.unwrap().status, ExecStatus::Signalled(9) | ExecStatus::Exited(0)));
    assert_eq!(shell(&*sandbox, "echo well").await.stdout.text, "well\n");
    assert_eq!(others(&*sandbox).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_supervisor_does_not_block_the_call() {
    let fixture = DockerFixture::new().await;
    let request = fixture.request();
    let sandbox = fixture.backend.acquire(&request).await.unwrap();
    let script = "kill -STOP $PPID; sleep 1000";
    let result = run(&*sandbox, Command::shell(script, Duration::from_millis(300))).await.unwrap();
    assert_eq!(result.status, ExecStatus::TimedOut);
    // A command that cannot be killed alone is killed with its container; the next acquisition creates
    // another.
    drop(sandbox);
    let sandbox = fixture.backend.acquire(&request).await.unwrap();
    assert_eq!(others(&*sandbox).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn detached_processes_do_not_outlive_the_call() {
    let fixture = DockerFixture::new().await;
    let sandbox = fixture.sandbox().await;
    let script = "(setsid sh -c 'setsid sleep 1000 & setsid sleep 1000' &) ; setsid sleep 1000 & echo done";
    let result = shell(&*sandbox, script).await;
    assert_eq!(result.stdout.text, "done\n");
    assert_eq!(others(&*sandbox).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_input_does_not_block_other_commands() {
    let fixture = DockerFixture::new().await;
    let sandbox = fixture.sandbox().await;
    let mut command = Command::shell("echo > there; sleep 1000", Duration::from_secs(3));
    command.stdin = Some(vec![b'x'; 1 << 20]);
    let other = async {
        crate::fixture::wait_for(|| fixture.workspace().join("there").is_file()).await;
        shell(&*sandbox, "echo well").await.stdout.text
    };
    let (result, other) = tokio::join!(run(&*sandbox, command), other);
    assert_eq!((result.unwrap().status, other.as_str()), (ExecStatus::TimedOut, "well\n"));
    let mut command = Command::shell("wc -c", LONG);
    command.stdin = Some(vec![b'x'; 1 << 20]);
    assert_eq!(run(&*sandbox, command).await.unwrap().stdout.text.trim(), "1048576");
}
