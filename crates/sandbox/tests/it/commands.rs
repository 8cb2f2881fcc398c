//! What every backend does with commands.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use remuda_domain::Code;
use remuda_sandbox::{Command, ExecStatus, NoOutput, OutputSink, OutputStream};
use tokio_util::sync::CancellationToken;

use crate::bench::{Bench, LONG, code, group_alive, process_alive, wait_for};

pub(crate) async fn echo_exit_code_and_streams(bench: Bench) {
    let result = bench.shell("echo out; echo err >&2; exit 7").await;
    assert_eq!(result.status, ExecStatus::Exited(7));
    assert_eq!((result.stdout.text.as_str(), result.stderr.text.as_str()), ("out\n", "err\n"));
    assert_eq!((result.stdout.total_bytes, result.stdout.truncated), (4, false));
    let result = bench.shell("for i in 1 2; do\n  echo $i $#\ndone").await;
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "1 0\n2 0\n"));
    let result = bench.shell("if then").await;
    assert_ne!(result.status, ExecStatus::Exited(0));
}

pub(crate) async fn argv_is_not_interpreted(bench: Bench) {
    let argv = ["printf", "%s|", "$HOME", "a b", "; exit 3", "-n", "", "'\""].map(str::to_owned).to_vec();
    let result = bench.exec(Command::argv(argv, LONG)).await.unwrap();
    assert_eq!(
        (result.status, result.stdout.text.as_str()),
        (ExecStatus::Exited(0), "$HOME|a b|; exit 3|-n||'\"|")
    );
}

/// A backend may find out before or after the command has begun.
pub(crate) async fn a_program_that_does_not_exist(bench: Bench) {
    match bench.exec(Command::argv(vec!["no-such-program".into()], LONG)).await {
        Ok(result) => assert_eq!(result.status, ExecStatus::Exited(127)),
        Err(error) => assert_eq!(error.code(), Code::FileNotFound),
    }
    assert_eq!(bench.shell("no-such-program").await.status, ExecStatus::Exited(127));
}

pub(crate) async fn signal_is_reported(bench: Bench) {
    assert_eq!(bench.shell("kill -9 $$").await.status, ExecStatus::Signalled(9));
    assert_eq!(bench.shell("exit 137").await.status, ExecStatus::Exited(137));
}

pub(crate) async fn environment_is_only_what_is_allowed(bench: Bench) {
    let mut command = Command::shell("env", LONG);
    command.env.push(("GIVEN".into(), "a=b c".into()));
    let text = bench.exec(command).await.unwrap().stdout.text;
    assert!(text.contains("GIVEN=a=b c\n"), "{text}");
    assert!(text.contains("PATH="), "{text}");
    let allowed = [
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SHELL", "GIVEN",
        // From the shell itself.
        "PWD", "OLDPWD", "SHLVL", "_",
    ];
    for line in text.lines() {
        let name = line.split('=').next().unwrap();
        assert!(allowed.contains(&name), "{name} reached the command");
    }
}

pub(crate) async fn runs_in_the_workspace_or_beneath(bench: Bench) {
    let root = bench.shell("pwd -P; mkdir -p a/b").await.stdout.text;
    let within = |cwd: &str| {
        let mut command = Command::shell("pwd -P", LONG);
        command.cwd = Some(cwd.to_owned());
        command
    };
    let beneath = bench.exec(within("a/b")).await.unwrap().stdout.text;
    assert_eq!(beneath.trim(), format!("{}/a/b", root.trim()));
    bench.shell("ln -s / root; echo > file").await;
    for (cwd, expected) in [
        ("..", Code::PathNotAllowed),
        ("/", Code::PathNotAllowed),
        ("root/etc", Code::PathNotAllowed),
        ("missing", Code::FileNotFound),
        ("file", Code::FileNotFound),
        ("", Code::InvalidArgument),
    ] {
        let error = bench.exec(within(cwd)).await.unwrap_err();
        assert_eq!((error.code(), error.field()), (expected, Some("cwd")), "{cwd:?}");
    }
}

pub(crate) async fn bad_commands_are_refused(bench: Bench) {
    for (command, expected) in [
        (Command::shell("", LONG), Code::InvalidArgument),
        (Command::shell(" \n", LONG), Code::InvalidArgument),
        (Command::shell("echo a\0b", LONG), Code::InvalidArgument),
        (Command::shell(format!("echo {}", "x".repeat(200_000)), LONG), Code::TooLarge),
        (Command::argv(vec![], LONG), Code::InvalidArgument),
        (Command::argv(vec![String::new()], LONG), Code::InvalidArgument),
        (Command::argv(vec!["echo".into(), "a\0b".into()], LONG), Code::InvalidArgument),
    ] {
        assert_eq!(code(bench.exec(command).await), expected);
    }
    for name in ["", "A=B", "A\0"] {
        let mut command = Command::shell("true", LONG);
        command.env.push((name.into(), "x".into()));
        assert_eq!(code(bench.exec(command).await), Code::InvalidArgument, "{name:?}");
    }
    let longest = format!(": {}", "x".repeat(127 * 1024 - 2));
    assert_eq!(bench.shell(&longest).await.status, ExecStatus::Exited(0));
}

pub(crate) async fn input_is_closed(bench: Bench) {
    let result = bench.shell("cat; read x || echo none").await;
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "none\n"));
    let result = bench.exec(Command::argv(vec!["cat".into()], LONG)).await.unwrap();
    assert_eq!((result.status, result.stdout.total_bytes), (ExecStatus::Exited(0), 0));
}

pub(crate) async fn timeout_kills_grandchildren(bench: Bench) {
    let script = "echo $$ > leader; echo before; sleep 1000 & (sleep 1000 & sleep 1000)";
    let result = bench.exec(Command::shell(script, Duration::from_millis(300))).await.unwrap();
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::TimedOut, "before\n"));
    assert!(!group_alive(bench.number("leader").await));
}

pub(crate) async fn timeout_ends_a_process_that_ignores_sigterm(bench: Bench) {
    let script = "trap '' TERM; echo $$ > leader; while :; do sleep 0.1; done";
    let start = Instant::now();
    let result = bench.exec(Command::shell(script, Duration::from_millis(200))).await.unwrap();
    assert_eq!(result.status, ExecStatus::TimedOut);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(!group_alive(bench.number("leader").await));
}

pub(crate) async fn cancel_is_quick(bench: Bench) {
    let cancel = CancellationToken::new();
    let run = bench.sandbox.exec(
        Command::shell("echo $$ > leader; sleep 1000 & sleep 1000", LONG),
        &NoOutput,
        &cancel,
    );
    let stop = async {
        let leader = bench.number("leader").await;
        cancel.cancel();
        (leader, Instant::now())
    };
    let (result, (leader, cancelled)) = tokio::join!(run, stop);
    assert_eq!(result.unwrap().status, ExecStatus::Cancelled);
    assert!(cancelled.elapsed() < Duration::from_secs(1), "{:?}", cancelled.elapsed());
    assert!(!group_alive(leader));
}

pub(crate) async fn cancelled_before_it_began(bench: Bench) {
    let cancel = CancellationToken::new();
    cancel.cancel();
    let result = bench.sandbox.exec(Command::shell("echo > began", LONG), &NoOutput, &cancel).await.unwrap();
    assert_eq!(result.status, ExecStatus::Cancelled);
    assert!(!bench.workspace().join("began").try_exists().unwrap());
}

pub(crate) async fn dropping_the_call_kills(bench: Bench) {
    let leader = {
        let run = bench.exec(Command::shell("trap '' TERM; echo $$ > leader; sleep 1000 & sleep 1000", LONG));
        tokio::select! {
            _ = run => panic!("it sleeps"),
            leader = bench.number("leader") => leader,
        }
    };
    wait_for(|| !group_alive(leader)).await;
}

pub(crate) async fn large_output_is_bounded(bench: Bench) {
    const TOTAL: u64 = 50 * 1024 * 1024;
    let mut command =
        Command::shell(format!("echo first; head -c {TOTAL} /dev/zero | tr '\\0' x; echo; echo last"), LONG);
    command.output_limit = 10_000;
    let result = bench.exec(command).await.unwrap();
    assert_eq!(result.status, ExecStatus::Exited(0));
    assert_eq!(result.stdout.total_bytes, TOTAL + 12);
    assert!(result.stdout.truncated);
    assert!(result.stdout.text.len() < 10_100, "{}", result.stdout.text.len());
    assert!(result.stdout.text.starts_with("first\nxxx") && result.stdout.text.ends_with("xxx\nlast\n"));
}

pub(crate) async fn endless_output_ends_with_the_timeout(bench: Bench) {
    let start = Instant::now();
    let result = bench.exec(Command::shell("yes", Duration::from_millis(500))).await.unwrap();
    assert_eq!(result.status, ExecStatus::TimedOut);
    assert!(result.stdout.truncated && result.stdout.text.starts_with("y\ny\n"));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

pub(crate) async fn background_child_does_not_outlive_the_call(bench: Bench) {
    let start = Instant::now();
    let result = bench.shell("echo $$ > leader; sleep 1000 & echo done").await;
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "done\n"));
    assert!(!result.stdout.truncated);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(!group_alive(bench.number("leader").await));
}

/// One that holds the pipe from outside the group delays the call a little, and no more.
pub(crate) async fn escaped_child_does_not_hold_the_call(bench: Bench) {
    let start = Instant::now();
    let result = bench
        .shell(
            "setsid sh -c 'echo $$ > escaped; exec sleep 30' & while ! [ -s escaped ]; do :; done; echo done",
        )
        .await;
    let escaped = bench.number("escaped").await;
    if process_alive(escaped) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(escaped), nix::sys::signal::Signal::SIGKILL)
            .unwrap();
    }
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "done\n"));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

pub(crate) async fn invalid_utf8_and_nul_are_replaced(bench: Bench) {
    let result = bench.shell(r"printf 'a\377b\000c\303\251\n'; printf '\303' >&2").await;
    assert_eq!(result.stdout.text, "a\u{fffd}b\u{fffd}cé\n");
    assert_eq!((result.stdout.total_bytes, result.stderr.text.as_str()), (8, "\u{fffd}"));
}

#[derive(Debug, Default)]
struct Seen(Mutex<Vec<u8>>);

impl OutputSink for Seen {
    fn write(&self, stream: OutputStream, chunk: &[u8]) {
        if stream == OutputStream::Stdout {
            self.0.lock().unwrap().extend_from_slice(chunk);
        }
    }
}

pub(crate) async fn live_output_arrives_before_the_end(bench: Bench) {
    let seen = Seen::default();
    let cancel = CancellationToken::new();
    let command = Command::shell(
        "echo hidden >&2; echo early; while ! [ -e go ]; do sleep 0.01; done; echo late",
        LONG,
    );
    let watch = async {
        wait_for(|| *seen.0.lock().unwrap() == b"early\n").await;
        std::fs::write(bench.workspace().join("go"), "").unwrap();
    };
    let (result, ()) = tokio::join!(bench.sandbox.exec(command, &seen, &cancel), watch);
    assert_eq!(result.unwrap().status, ExecStatus::Exited(0));
    assert_eq!(*seen.0.lock().unwrap(), b"early\nlate\n");
}

pub(crate) async fn many_at_once(bench: Bench) {
    let mut running = tokio::task::JoinSet::new();
    for number in 0..40 {
        let sandbox = std::sync::Arc::clone(&bench.sandbox);
        running.spawn(async move {
            let command = Command::shell(format!("echo {number}; exit {number}"), LONG);
            let result = sandbox.exec(command, &NoOutput, &CancellationToken::new()).await.unwrap();
            assert_eq!(result.status, ExecStatus::Exited(number));
            assert_eq!(result.stdout.text, format!("{number}\n"));
        });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
}
