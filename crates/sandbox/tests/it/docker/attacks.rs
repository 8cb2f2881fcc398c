//! Commands that want to do harm.

use std::time::Duration;

use remuda_domain::execution::ResourceLimits;
use remuda_sandbox::{Backend, Command, ExecStatus, Sandbox};

use super::lab::{Lab, run, shell};
use crate::bench::LONG;

async fn limited(lab: &Lab, adjust: impl FnOnce(&mut ResourceLimits)) -> std::sync::Arc<dyn Sandbox> {
    let mut request = lab.request();
    adjust(&mut request.policy.limits);
    lab.backend.acquire(&request).await.unwrap()
}

/// How many processes are in the container besides our own two and the command that counts.
async fn others(sandbox: &dyn Sandbox) -> usize {
    let count = shell(sandbox, "ls -d /proc/[0-9]* | wc -l").await.stdout.text;
    // init, supervisor, shell, ls, wc
    count.trim().parse::<usize>().unwrap().saturating_sub(5)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_fills_its_own_container_and_ends_with_its_call() {
    let lab = Lab::new().await;
    let sandbox = limited(&lab, |limits| limits.processes = Some(40)).await;
    let bomb = "b() { b | b & }; b; sleep 1000";
    let escaping = "while :; do setsid sleep 1000 & done";
    for (script, left_behind) in [(bomb, 0), (escaping, 50)] {
        let result = run(&*sandbox, Command::shell(script, Duration::from_secs(2))).await.unwrap();
        // A shell that cannot start a process may give up by itself.
        assert!(matches!(result.status, ExecStatus::TimedOut | ExecStatus::Exited(2)), "{:?}", result.status);
        assert!(result.usage.left_behind >= left_behind, "{:?}", result.usage);
        assert_eq!(others(&*sandbox).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_bomb_is_told_from_other_ends() {
    let lab = Lab::new().await;
    let sandbox = limited(&lab, |limits| limits.memory_bytes = Some(32 << 20)).await;
    let command = Command::argv(["tail", "/dev/zero"].map(str::to_owned).to_vec(), LONG);
    assert_eq!(run(&*sandbox, command).await.unwrap().status, ExecStatus::OutOfMemory);
    assert_eq!(shell(&*sandbox, "exec tail /dev/zero").await.status, ExecStatus::OutOfMemory);
    // Others are not blamed for it.
    assert_eq!(shell(&*sandbox, "kill -9 $$").await.status, ExecStatus::Signalled(9));
    assert_eq!(shell(&*sandbox, "echo well").await.stdout.text, "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_fill_up_to_their_size() {
    let lab = Lab::new().await;
    let sandbox = limited(&lab, |limits| {
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
    for place in ["/run", "/dev/shm"] {
        let script = format!(
            "i=0; while [ $i -lt 100 ] && head -c 1000000 /dev/zero > {place}/$i; do i=$((i+1)); done; echo $i; rm {place}/*"
        );
        let filled: u32 = shell(&*sandbox, &script).await.stdout.text.trim().parse().unwrap();
        assert!(filled < 100, "{place} took {filled} MB");
    }
    assert_eq!(shell(&*sandbox, "echo well > /tmp/x && cat /tmp/x").await.stdout.text, "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_kills_everything_harms_only_its_own_container() {
    let lab = Lab::new().await;
    let sandbox = lab.sandbox().await;
    let cancel = tokio_util::sync::CancellationToken::new();
    let victim =
        sandbox.exec(Command::shell("echo > there; sleep 1000", LONG), &remuda_sandbox::NoOutput, &cancel);
    let killer = async {
        crate::bench::wait_for(|| lab.workspace().join("there").is_file()).await;
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
async fn a_supervisor_that_was_stopped_does_not_hold_the_call() {
    let lab = Lab::new().await;
    let request = lab.request();
    let sandbox = lab.backend.acquire(&request).await.unwrap();
    let script = "kill -STOP $PPID; sleep 1000";
    let result = run(&*sandbox, Command::shell(script, Duration::from_millis(300))).await.unwrap();
    assert_eq!(result.status, ExecStatus::TimedOut);
    // What cannot be killed singly is killed with its container; the next acquisition makes another.
    drop(sandbox);
    let sandbox = lab.backend.acquire(&request).await.unwrap();
    assert_eq!(others(&*sandbox).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_left_its_group_or_session_outlives_the_call() {
    let lab = Lab::new().await;
    let sandbox = lab.sandbox().await;
    let script = "(setsid sh -c 'setsid sleep 1000 & setsid sleep 1000' &) ; setsid sleep 1000 & echo done";
    let result = shell(&*sandbox, script).await;
    assert_eq!(result.stdout.text, "done\n");
    assert_eq!(others(&*sandbox).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn input_that_nobody_reads_does_not_block_others() {
    let lab = Lab::new().await;
    let sandbox = lab.sandbox().await;
    let mut command = Command::shell("echo > there; sleep 1000", Duration::from_secs(3));
    command.stdin = Some(vec![b'x'; 1 << 20]);
    let other = async {
        crate::bench::wait_for(|| lab.workspace().join("there").is_file()).await;
        shell(&*sandbox, "echo well").await.stdout.text
    };
    let (result, other) = tokio::join!(run(&*sandbox, command), other);
    assert_eq!((result.unwrap().status, other.as_str()), (ExecStatus::TimedOut, "well\n"));
    let mut command = Command::shell("wc -c", LONG);
    command.stdin = Some(vec![b'x'; 1 << 20]);
    assert_eq!(run(&*sandbox, command).await.unwrap().stdout.text.trim(), "1048576");
}
