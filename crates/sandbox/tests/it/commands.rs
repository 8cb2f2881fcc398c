//! Conformance suite: commands.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use remuda_domain::Code;
use remuda_sandbox::{Command, ExecStatus, MAX_STDIN_BYTES, NoOutput, OutputSink, OutputStream, Spill};
use tokio_util::sync::CancellationToken;

use crate::fixture::{LONG, MARK, SandboxFixture, code, wait_for};

pub(crate) async fn exit_code_and_output_streams_are_reported(fixture: SandboxFixture) {
    let result = fixture.shell("echo out; echo err >&2; exit 7").await;
    assert_eq!(result.status, ExecStatus::Exited(7));
    assert_eq!((result.stdout.text.as_str(), result.stderr.text.as_str()), ("out\n", "err\n"));
    assert_eq!((result.stdout.total_bytes, result.stdout.truncated), (4, false));
    let result = fixture.shell("for i in 1 2; do\n  echo $i $#\ndone").await;
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "1 0\n2 0\n"));
    let result = fixture.shell("if then").await;
    assert_ne!(result.status, ExecStatus::Exited(0));
}

pub(crate) async fn argv_is_not_interpreted(fixture: SandboxFixture) {
    let argv = ["printf", "%s|", "$HOME", "a b", "; exit 3", "-n", "", "'\""].map(str::to_owned).to_vec();
    let result = fixture.exec(Command::argv(argv, LONG)).await.unwrap();
    assert_eq!(
        (result.status, result.stdout.text.as_str()),
        (ExecStatus::Exited(0), "$HOME|a b|; exit 3|-n||'\"|")
    );
}

/// A backend may detect it before or after the command has started.
pub(crate) async fn missing_program_fails_or_exits_with_127(fixture: SandboxFixture) {
    match fixture.exec(Command::argv(vec!["no-such-program".into()], LONG)).await {
        Ok(result) => assert_eq!(result.status, ExecStatus::Exited(127)),
        Err(error) => assert_eq!(error.code(), Code::FileNotFound),
    }
    assert_eq!(fixture.shell("no-such-program").await.status, ExecStatus::Exited(127));
}

pub(crate) async fn signal_is_reported(fixture: SandboxFixture) {
    assert_eq!(fixture.shell("kill -9 $$").await.status, ExecStatus::Signalled(9));
    assert_eq!(fixture.shell("exit 137").await.status, ExecStatus::Exited(137));
}

pub(crate) async fn environment_contains_only_allowed_variables(fixture: SandboxFixture) {
    let mut command = Command::shell("env", LONG);
    command.env.push(("GIVEN".into(), "a=b c".into()));
    let text = fixture.exec(command).await.unwrap().stdout.text;
    assert!(text.contains("GIVEN=a=b c\n"), "{text}");
    assert!(text.contains("PATH="), "{text}");
    let allowed = [
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SHELL", "GIVEN",
        MARK, // From the shell itself.
        "PWD", "OLDPWD", "SHLVL", "_",
    ];
    for line in text.lines() {
        let name = line.split('=').next().unwrap();
        assert!(allowed.contains(&name), "{name} reached the command");
    }
}

pub(crate) async fn working_directory_must_be_in_the_workspace(fixture: SandboxFixture) {
    let root = fixture.shell("pwd -P; mkdir -p a/b").await.stdout.text;
    let within = |cwd: &str| {
        let mut command = Command::shell("pwd -P", LONG);
        command.cwd = Some(cwd.to_owned());
        command
    };
    let beneath = fixture.exec(within("a/b")).await.unwrap().stdout.text;
    assert_eq!(beneath.trim(), format!("{}/a/b", root.trim()));
    fixture.shell("ln -s / root; echo > file").await;
    for (cwd, expected) in [
        ("..", Code::PathNotAllowed),
        ("/", Code::PathNotAllowed),
        ("root/etc", Code::PathNotAllowed),
        ("missing", Code::FileNotFound),
        ("file", Code::FileNotFound),
        ("", Code::InvalidArgument),
    ] {
        let error = fixture.exec(within(cwd)).await.unwrap_err();
        assert_eq!((error.code(), error.field()), (expected, Some("cwd")), "{cwd:?}");
    }
}

pub(crate) async fn invalid_commands_are_rejected(fixture: SandboxFixture) {
    for (command, expected) in [
        (Command::shell("", LONG), Code::InvalidArgument),
        (Command::shell(" \n", LONG), Code::InvalidArgument),
        (Command::shell("echo a\0b", LONG), Code::InvalidArgument),
        (Command::shell(format!("echo {}", "x".repeat(200_000)), LONG), Code::TooLarge),
        (Command::argv(vec![], LONG), Code::InvalidArgument),
        (Command::argv(vec![String::new()], LONG), Code::InvalidArgument),
        (Command::argv(vec!["echo".into(), "a\0b".into()], LONG), Code::InvalidArgument),
    ] {
        assert_eq!(code(fixture.exec(command).await), expected);
    }
    for name in ["", "A=B", "A\0"] {
        let mut command = Command::shell("true", LONG);
        command.env.push((name.into(), "x".into()));
        assert_eq!(code(fixture.exec(command).await), Code::InvalidArgument, "{name:?}");
    }
    let longest = format!(": {}", "x".repeat(127 * 1024 - 2));
    assert_eq!(fixture.shell(&longest).await.status, ExecStatus::Exited(0));
}

pub(crate) async fn stdin_is_empty_by_default(fixture: SandboxFixture) {
    let result = fixture.shell("cat; read x || echo none").await;
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "none\n"));
    let result = fixture.exec(Command::argv(vec!["cat".into()], LONG)).await.unwrap();
    assert_eq!((result.status, result.stdout.total_bytes), (ExecStatus::Exited(0), 0));
}

pub(crate) async fn timeout_kills_grandchildren(fixture: SandboxFixture) {
    let script = "echo before; sleep 1000 & (sleep 1000 & sleep 1000)";
    let result = fixture.exec(Command::shell(script, Duration::from_millis(300))).await.unwrap();
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::TimedOut, "before\n"));
    fixture.assert_nothing_runs();
}

pub(crate) async fn timeout_ends_a_process_that_ignores_sigterm(fixture: SandboxFixture) {
    let script = "trap '' TERM; while :; do sleep 0.1; done";
    let start = Instant::now();
    let result = fixture.exec(Command::shell(script, Duration::from_millis(200))).await.unwrap();
    assert_eq!(result.status, ExecStatus::TimedOut);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    fixture.assert_nothing_runs();
}

pub(crate) async fn cancel_kills_within_a_second(fixture: SandboxFixture) {
    let cancel = CancellationToken::new();
    let command = fixture.marked(Command::shell("echo > begun; sleep 1000 & sleep 1000", LONG));
    let run = fixture.sandbox.exec(command, &NoOutput, &cancel);
    let stop = async {
        fixture.wait_for_file("begun").await;
        assert!(!fixture.alive().is_empty());
        cancel.cancel();
        Instant::now()
    };
    let (result, cancelled) = tokio::join!(run, stop);
    assert_eq!(result.unwrap().status, ExecStatus::Cancelled);
    assert!(cancelled.elapsed() < Duration::from_secs(1), "{:?}", cancelled.elapsed());
    fixture.assert_nothing_runs();
}

pub(crate) async fn cancelled_command_never_starts(fixture: SandboxFixture) {
    let cancel = CancellationToken::new();
    cancel.cancel();
    let result =
        fixture.sandbox.exec(Command::shell("echo > began", LONG), &NoOutput, &cancel).await.unwrap();
    assert_eq!(result.status, ExecStatus::Cancelled);
    assert!(!fixture.workspace().join("began").try_exists().unwrap());
}

pub(crate) async fn dropping_the_call_kills_the_command(fixture: SandboxFixture) {
    let script = "trap '' TERM; (setsid sleep 1000 &); echo > begun; sleep 1000 & sleep 1000";
    let begun = async {
        fixture.wait_for_file("begun").await;
        assert!(!fixture.alive().is_empty());
    };
    tokio::select! {
        _ = fixture.exec(Command::shell(script, LONG)) => panic!("the command ended"),
        () = begun => {}
    }
    wait_for(|| fixture.alive().is_empty()).await;
}

pub(crate) async fn large_output_is_bounded(fixture: SandboxFixture) {
    const TOTAL: u64 = 50 * 1024 * 1024;
    let mut command =
        Command::shell(format!("echo first; head -c {TOTAL} /dev/zero | tr '\\0' x; echo; echo last"), LONG);
    command.output_limit = 10_000;
    let result = fixture.exec(command).await.unwrap();
    assert_eq!(result.status, ExecStatus::Exited(0));
    assert_eq!(result.stdout.total_bytes, TOTAL + 12);
    assert!(result.stdout.truncated);
    assert!(result.stdout.text.len() < 10_100, "{}", result.stdout.text.len());
    assert!(result.stdout.text.starts_with("first\nxxx") && result.stdout.text.ends_with("xxx\nlast\n"));
}

pub(crate) async fn endless_output_ends_with_the_timeout(fixture: SandboxFixture) {
    let start = Instant::now();
    let result = fixture.exec(Command::shell("yes", Duration::from_millis(500))).await.unwrap();
    assert_eq!(result.status, ExecStatus::TimedOut);
    assert!(result.stdout.truncated && result.stdout.text.starts_with("y\ny\n"));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

pub(crate) async fn background_child_does_not_outlive_the_call(fixture: SandboxFixture) {
    let start = Instant::now();
    let result = fixture.shell("sleep 1000 & echo done").await;
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "done\n"));
    assert!(!result.stdout.truncated);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    fixture.assert_nothing_runs();
}

/// Forked twice, in its own session, and holding the pipe: neither group nor parent identifies it.
pub(crate) async fn daemon_does_not_outlive_the_call(fixture: SandboxFixture) {
    let start = Instant::now();
    let script =
        "(setsid sh -c 'echo > begun; exec sleep 1000' &); while ! [ -s begun ]; do :; done; echo done";
    let result = fixture.shell(script).await;
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "done\n"));
    assert!(!result.stdout.truncated);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    fixture.assert_nothing_runs();
    assert_eq!(result.usage.left_behind, 1);
}

pub(crate) async fn usage_is_reported(fixture: SandboxFixture) {
    let busy = fixture.shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").await.usage;
    assert!(busy.cpu > Duration::ZERO && busy.cpu < LONG, "{busy:?}");
    assert!(busy.max_memory_bytes > 500_000, "{busy:?}");
    assert_eq!(busy.left_behind, 0);
}

pub(crate) async fn stdin_is_delivered(fixture: SandboxFixture) {
    let with = |script: &str, stdin: Vec<u8>| {
        let mut command = Command::shell(script, LONG);
        command.stdin = Some(stdin);
        fixture.exec(command)
    };
    assert_eq!(with("cat; echo end", b"a\0b".to_vec()).await.unwrap().stdout.total_bytes, 7);
    assert_eq!(with("cat", Vec::new()).await.unwrap().stdout.total_bytes, 0);
    let large = vec![b'x'; MAX_STDIN_BYTES];
    assert_eq!(with("wc -c", large.clone()).await.unwrap().stdout.text.trim(), large.len().to_string());
    // A command need not read its input.
    assert_eq!(with("exit 3", large.clone()).await.unwrap().status, ExecStatus::Exited(3));
    let error = with("cat", [large, vec![b'x']].concat()).await.unwrap_err();
    assert_eq!((error.code(), error.field()), (Code::TooLarge, Some("stdin")));
}

pub(crate) async fn long_output_is_spilled_to_a_file(fixture: SandboxFixture) {
    let long = |max_bytes| {
        let mut command = Command::shell("seq 1 20000; echo short >&2", LONG);
        command.output_limit = 1000;
        command.spill = Some(Spill { directory: ".outputs/7".to_owned(), max_bytes });
        command
    };
    let numbers: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    let result = fixture.exec(long(1 << 20)).await.unwrap();
    assert!(result.stdout.truncated && result.stdout.text.len() < 1100);
    let artifact = result.stdout.artifact.unwrap();
    assert_eq!(artifact, ".outputs/7/stdout");
    assert_eq!(std::fs::read_to_string(fixture.workspace().join(&artifact)).unwrap(), numbers);
    assert_eq!((result.stderr.text.as_str(), result.stderr.artifact), ("short\n", None));
    assert!(!fixture.workspace().join(".outputs/7/stderr").try_exists().unwrap());

    // Truncated at the limit, and replacing the earlier file.
    let result = fixture.exec(long(5000)).await.unwrap();
    assert_eq!(result.stdout.total_bytes, numbers.len() as u64);
    assert_eq!(std::fs::read_to_string(fixture.workspace().join(&artifact)).unwrap(), numbers[..5000]);
}

/// If the spill file cannot be created, the command still succeeds.
pub(crate) async fn output_is_not_spilled_outside_the_workspace(fixture: SandboxFixture) {
    fixture.shell("ln -s ../.. out; ln -s /tmp absolute; mkfifo fifo; mkdir -p taken/stdout").await;
    for directory in ["out", "absolute", "..", "/tmp", "fifo", "taken"] {
        let mut command = Command::shell("seq 1 2000", LONG);
        command.output_limit = 100;
        command.spill = Some(Spill { directory: directory.to_owned(), max_bytes: 1 << 20 });
        let result = fixture.exec(command).await.unwrap();
        assert_eq!((result.status, result.stdout.artifact), (ExecStatus::Exited(0), None), "{directory}");
    }
    let outside = std::fs::read_dir(fixture.outside.path()).unwrap().count();
    assert_eq!(outside, 1);
}

pub(crate) async fn invalid_utf8_and_nul_are_replaced(fixture: SandboxFixture) {
    let result = fixture.shell(r"printf 'a\377b\000c\303\251\n'; printf '\303' >&2").await;
    assert_eq!(result.stdout.text, "a\u{fffd}b\u{fffd}cé\n");
    assert_eq!((result.stdout.total_bytes, result.stderr.text.as_str()), (8, "\u{fffd}"));
}

#[derive(Debug, Default)]
struct CollectedOutput(Mutex<Vec<u8>>);

impl OutputSink for CollectedOutput {
    fn write(&self, stream: OutputStream, chunk: &[u8]) {
        if stream == OutputStream::Stdout {
            self.0.lock().unwrap().extend_from_slice(chunk);
        }
    }
}

pub(crate) async fn live_output_arrives_before_the_end(fixture: SandboxFixture) {
    let output = CollectedOutput::default();
    let cancel = CancellationToken::new();
    let script = "echo hidden >&2; echo early; while ! [ -e go ]; do sleep 0.01; done; echo late";
    let command = Command::shell(script, LONG);
    let watch = async {
        wait_for(|| *output.0.lock().unwrap() == b"early\n").await;
        std::fs::write(fixture.workspace().join("go"), "").unwrap();
    };
    let (result, ()) = tokio::join!(fixture.sandbox.exec(command, &output, &cancel), watch);
    assert_eq!(result.unwrap().status, ExecStatus::Exited(0));
    assert_eq!(*output.0.lock().unwrap(), b"early\nlate\n");
}

pub(crate) async fn many_commands_run_concurrently(fixture: SandboxFixture) {
    let mut running = tokio::task::JoinSet::new();
    for number in 0..40 {
        let sandbox = std::sync::Arc::clone(&fixture.sandbox);
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
