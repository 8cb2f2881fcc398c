//! The `supervise` mode: one command.

use std::{io::Write, os::unix::fs::PermissionsExt, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, getpgid, getsid},
};
use remuda_supervisor::{ExitStatus, FromSupervisor, Limits, Program, RefusalKind, ToSupervisor};

use crate::supervisor_process::{SupervisorProcess, wait_until};

const KILLED: ExitStatus = ExitStatus::Signalled(9);

fn supervise() -> SupervisorProcess {
    SupervisorProcess::start("supervise")
}

#[test]
fn exit_codes_signals_and_output_streams_are_reported() {
    let mut supervisor = supervise();
    let outcome = supervisor.shell("echo out; echo err >&2; exit 7");
    assert_eq!(outcome.status(), ExitStatus::Exited(7));
    assert_eq!((outcome.text(), outcome.stderr.as_slice()), ("out\n", &b"err\n"[..]));
    assert!(supervisor.wait().success());

    assert_eq!(supervise().shell("kill -TERM $$").status(), ExitStatus::Signalled(15));
    // A real-time signal.
    assert_eq!(supervise().shell("kill -40 $$").status(), ExitStatus::Signalled(40));
    assert_eq!(supervise().shell("exit 137").status(), ExitStatus::Exited(137));
}

#[test]
fn command_inherits_no_environment_descriptors_or_signal_state() {
    let supervisor = supervise();
    let mut request = supervisor.request(Program::Argv(["env".to_owned()].to_vec()));
    request.env.push(("GIVEN".to_owned(), "a=b".to_owned()));
    let mut supervisor = supervisor;
    supervisor.start_command(0, request);
    let outcome = supervisor.outcome(0);
    let names: Vec<&str> = outcome.text().lines().map(|line| line.split('=').next().unwrap()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(outcome.text().contains("GIVEN=a=b\n"));

    // The three standard streams and the directory being listed.
    assert_eq!(supervise().shell("ls /proc/self/fd").text(), "0\n1\n2\n3\n");
    let outcome = supervise().shell("cat; ulimit -c; grep -E '^(NoNewPrivs|SigBlk)' /proc/self/status");
    assert_eq!(outcome.text(), "0\nSigBlk:\t0000000000000000\nNoNewPrivs:\t1\n");
    let outcome = supervise().shell("sed -n 's/^SigIgn:\t//p' /proc/self/status");
    let ignored = u64::from_str_radix(outcome.text().trim(), 16).unwrap();
    // The parent of the test process may ignore the real-time signals that the C library uses.
    assert_eq!(ignored & 0x7fff_ffff, 0, "{ignored:x}");
}

#[test]
fn supervisor_leads_the_session_and_group_of_its_command() {
    let mut supervisor = supervise();
    let request = supervisor.script("echo begun; read -r x </proc/self/fd/2 || sleep 1000");
    supervisor.start_command(0, request);
    supervisor.expect_output(0, "begun\n");
    let leader = Some(Pid::from_raw(supervisor.id()));
    assert_eq!((getsid(leader).ok(), getpgid(leader).ok()), (leader, leader));
    let command = Some(Pid::from_raw(supervisor.alive()[0]));
    assert_eq!((getsid(command).ok(), getpgid(command).ok()), (leader, leader));
}

#[test]
fn large_input_is_delivered_completely() {
    let mut supervisor = supervise();
    let mut request = supervisor.request(Program::Argv(vec!["cat".to_owned()]));
    request.has_input = true;
    supervisor.start_command(0, request);
    let input: Vec<u8> = (0..1_000_000_u32).map(|number| number.to_be_bytes()[3]).collect();
    for chunk in input.chunks(100_000) {
        supervisor.send(0, ToSupervisor::Input(chunk.to_vec()));
    }
    supervisor.send(0, ToSupervisor::Input(Vec::new()));
    assert!(supervisor.outcome(0).stdout == input);

    // A command that does not read its input.
    let mut supervisor = supervise();
    let mut request = supervisor.script("exec <&-; echo done");
    request.has_input = true;
    supervisor.start_command(0, request);
    let _may_be_gone = supervisor.try_send(0, ToSupervisor::Input(input));
    assert_eq!(supervisor.outcome(0).text(), "done\n");
}

#[test]
fn large_output_arrives_completely() {
    let outcome = supervise().shell("head -c 20000000 /dev/zero; head -c 3000000 /dev/zero >&2; echo last");
    assert_eq!((outcome.stdout.len(), outcome.stderr.len()), (20_000_005, 3_000_000));
    assert!(outcome.stdout.ends_with(b"\0last\n"));
}

#[test]
fn usage_is_reported() {
    let end = supervise().shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").end();
    assert!(end.cpu_ms > 0 && end.max_rss_kib > 500, "{end:?}");
    assert_eq!((end.left_behind, end.out_of_memory), (0, false));
}

#[test]
fn refusals_carry_the_kind_of_failure() {
    let argv = |argv: &[&str]| Program::Argv(argv.iter().map(|argument| (*argument).to_owned()).collect());
    let long = "x".repeat(200_000);
    for (program, expected) in [
        (argv(&["no-such-program"]), RefusalKind::ProgramNotFound),
        (argv(&[]), RefusalKind::ProgramNotFound),
        (argv(&["/etc/passwd"]), RefusalKind::ProgramNotExecutable),
        (argv(&["/bin/true", &long]), RefusalKind::ArgumentsTooLong),
        (
            Program::Shell { shell: Some("/no/shell".to_owned()), script: ":".to_owned() },
            RefusalKind::ProgramNotFound,
        ),
    ] {
        let mut supervisor = supervise();
        let request = supervisor.request(program);
        supervisor.start_command(0, request);
        assert_eq!(supervisor.outcome(0).result.unwrap_err().kind, expected);
        assert!(supervisor.wait().success());
    }
    let mut supervisor = supervise();
    let mut request = supervisor.script(":");
    request.cwd = Some("/no/directory".to_owned());
    supervisor.start_command(0, request);
    assert_eq!(supervisor.outcome(0).result.unwrap_err().kind, RefusalKind::DirectoryNotFound);
}

#[test]
fn rlimits_are_applied_to_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let mut supervisor = supervise();
    let mut request = supervisor.script(
        "ulimit -n; head -c 3000 /dev/zero > small; head -c 5000 /dev/zero > large; stat -c %s large",
    );
    request.cwd = Some(directory.path().to_str().unwrap().to_owned());
    request.limits = Limits { file_bytes: Some(4096), open_files: Some(50), ..Limits::default() };
    supervisor.start_command(0, request);
    assert_eq!(supervisor.outcome(0).text(), "50\n4096\n");

    let mut supervisor = supervise();
    let mut request = supervisor.script("x=a; while :; do x=$x$x; done");
    request.limits.memory_bytes = Some(64 << 20);
    supervisor.start_command(0, request);
    let end = supervisor.outcome(0).end();
    assert_ne!(end.status, ExitStatus::Exited(0));
    assert!(end.max_rss_kib < 64 << 10, "{end:?}");
}

/// Forked twice and in its own session: neither group nor parent identifies it.
#[test]
fn daemon_left_behind_is_killed_and_counted() {
    let mut supervisor = supervise();
    let script =
        "(setsid sh -c 'echo > daemon; exec sleep 1000' &); sleep 1000 & while ! [ -e daemon ]; do :; done";
    let directory = tempfile::tempdir().unwrap();
    let mut request = supervisor.script(script);
    request.cwd = Some(directory.path().to_str().unwrap().to_owned());
    supervisor.start_command(0, request);
    let outcome = supervisor.outcome(0);
    assert_eq!(outcome.status(), ExitStatus::Exited(0));
    supervisor.assert_nothing_runs();
    assert_eq!(outcome.end().left_behind, 2);
}

/// Each hop is a new process in a new session whose parent has exited.
#[test]
fn process_that_forks_endlessly_into_new_sessions_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let hop = directory.path().join("hop");
    std::fs::write(&hop, "#!/bin/sh\nsetsid \"$0\" &\n").unwrap();
    std::fs::set_permissions(&hop, PermissionsExt::from_mode(0o755)).unwrap();
    let mut supervisor = supervise();
    let outcome = supervisor.shell(&format!("{}; echo done", hop.display()));
    assert_eq!(outcome.text(), "done\n");
    supervisor.wait();
    supervisor.assert_nothing_runs();
}

/// Every process starts two more, until a few hundred sleep.
#[test]
fn a_small_fork_bomb_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let bomb = directory.path().join("bomb");
    let script = "#!/bin/sh\n[ $1 = 0 ] && exec sleep 1000\n\"$0\" $(($1-1)) & \"$0\" $(($1-1)) & wait\n";
    std::fs::write(&bomb, script).unwrap();
    std::fs::set_permissions(&bomb, PermissionsExt::from_mode(0o755)).unwrap();
    let mut supervisor = supervise();
    let request = supervisor.script(&format!("{} 6 & echo begun; sleep 1000", bomb.display()));
    supervisor.start_command(0, request);
    supervisor.expect_output(0, "begun\n");
    wait_until(|| supervisor.alive().len() > 10);
    supervisor.send(0, ToSupervisor::Kill);
    assert_eq!(supervisor.outcome(0).status(), KILLED);
    supervisor.assert_nothing_runs();
    assert!(supervisor.wait().success());
}

#[test]
fn stop_sends_sigterm_and_kills_after_the_grace_period() {
    let mut supervisor = supervise();
    let request = supervisor.script("trap 'echo asked; exit 3' TERM; echo begun; sleep 1000 & wait");
    supervisor.start_command(0, request);
    supervisor.expect_output(0, "begun\n");
    supervisor.send(0, ToSupervisor::Stop);
    let outcome = supervisor.outcome(0);
    assert_eq!((outcome.status(), outcome.text()), (ExitStatus::Exited(3), "asked\n"));
    supervisor.assert_nothing_runs();

    let mut supervisor = supervise();
    let request = supervisor.script("trap '' TERM; echo begun; while :; do sleep 0.05; done");
    supervisor.start_command(0, request);
    supervisor.expect_output(0, "begun\n");
    supervisor.send(0, ToSupervisor::Stop);
    supervisor.send(0, ToSupervisor::Stop);
    assert_eq!(supervisor.outcome(0).status(), KILLED);
    supervisor.assert_nothing_runs();
}

/// Signals sent to the whole process group do not end the supervisor.
#[test]
fn signals_to_the_process_group_do_not_end_the_supervisor() {
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1", "TSTP", "ALRM"] {
        let outcome =
            supervise().shell(&format!("trap 'echo heard' {signal}; kill -{signal} 0; sleep 0; exit 4"));
        assert_eq!((outcome.status(), outcome.text()), (ExitStatus::Exited(4), "heard\n"), "{signal}");
    }
}

#[test]
fn command_is_killed_when_the_worker_is_gone() {
    let busy = "trap '' TERM; (setsid sleep 1000 &); echo begun; sleep 1000 & wait";
    type End = fn(&mut SupervisorProcess);
    let ends: [(&str, End); 4] = [
        ("stdin closed", SupervisorProcess::close_input),
        ("watchdog expired", |supervisor| {
            supervisor.send(0, ToSupervisor::FeedWatchdog(Duration::from_millis(10)))
        }),
        ("signal of the guard", |supervisor| kill(Pid::from_raw(supervisor.id()), Signal::SIGUSR2).unwrap()),
        ("protocol violation", |supervisor| {
            supervisor.send(0, ToSupervisor::Start(Box::new(supervisor.script(":"))))
        }),
    ];
    for (why, end) in ends {
        let mut supervisor = supervise();
        let request = supervisor.script(busy);
        supervisor.start_command(0, request);
        supervisor.expect_output(0, "begun\n");
        wait_until(|| supervisor.alive().len() >= 3);
        end(&mut supervisor);
        assert!(!supervisor.wait().success(), "{why}");
        supervisor.assert_nothing_runs();
    }
}

#[test]
fn fed_watchdog_kills_nothing() {
    let mut supervisor = supervise();
    let request = supervisor.script("sleep 0.3; echo done");
    supervisor.start_command(0, request);
    supervisor.send(0, ToSupervisor::FeedWatchdog(Duration::from_millis(50)));
    supervisor.send(0, ToSupervisor::FeedWatchdog(Duration::from_secs(60)));
    assert_eq!(supervisor.outcome(0).text(), "done\n");
}

#[test]
fn idle_supervisor_ends_when_the_worker_is_gone() {
    let mut supervisor = supervise();
    supervisor.close_input();
    assert!(!supervisor.wait().success());
    let mut supervisor = supervise();
    supervisor.send(0, ToSupervisor::FeedWatchdog(Duration::from_millis(1)));
    assert!(!supervisor.wait().success());
    for arguments in [&[][..], &["what"], &["supervise", "what"]] {
        let program = env!("CARGO_BIN_EXE_remuda-supervisor");
        assert_eq!(std::process::Command::new(program).args(arguments).status().unwrap().code(), Some(2));
    }
}

/// The worker reads nothing: the command is held up by backpressure, memory stays bounded, and a kill still
/// works.
#[test]
fn command_with_unread_output_blocks_and_can_be_killed() {
    use std::process::{Command, Stdio};
    let supervisor = supervise();
    let mut child = Command::new(env!("CARGO_BIN_EXE_remuda-supervisor"))
        .arg("supervise")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let unread = child.stdout.take().unwrap();
    let mut send = |message| {
        let frame = remuda_supervisor::Frame { channel: 0, message };
        input.write_all(&frame.to_bytes()).unwrap();
    };
    let directory = tempfile::tempdir().unwrap();
    // More than both pipes can hold.
    let mut request = supervisor.script("head -c 200000 /dev/zero; echo > full; exec yes");
    request.cwd = Some(directory.path().to_str().unwrap().to_owned());
    send(ToSupervisor::Start(Box::new(request)));
    wait_until(|| directory.path().join("full").is_file());
    let memory_is_bounded = || memory_kib(child.id()) < 10_000;
    assert!(memory_is_bounded());
    send(ToSupervisor::Kill);
    wait_until(|| supervisor.alive().is_empty());
    assert!(memory_is_bounded());
    drop(unread);
    assert!(!child.wait().unwrap().success());
}

fn memory_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn output_is_forwarded_while_the_command_runs() {
    let mut supervisor = supervise();
    let request = supervisor.script("echo early; sleep 1000");
    supervisor.start_command(0, request);
    assert_eq!(supervisor.next().message, FromSupervisor::Stdout(b"early\n".to_vec()));
    supervisor.send(0, ToSupervisor::Kill);
    let outcome = supervisor.outcome(0);
    assert_eq!((outcome.status(), outcome.stdout.len()), (KILLED, 0));
}
