//! One command.

use std::{io::Write, os::unix::fs::PermissionsExt, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, getpgid, getsid},
};
use remuda_supervisor::{ExitStatus, FromSupervisor, Limits, Program, RefusalKind, ToSupervisor};

use crate::peer::{Peer, wait_until};

const KILLED: ExitStatus = ExitStatus::Signalled(9);

fn supervise() -> Peer {
    Peer::start("supervise")
}

#[test]
fn exit_codes_signals_and_streams() {
    let mut peer = supervise();
    let outcome = peer.shell("echo out; echo err >&2; exit 7");
    assert_eq!(outcome.status(), ExitStatus::Exited(7));
    assert_eq!((outcome.text(), outcome.stderr.as_slice()), ("out\n", &b"err\n"[..]));
    assert!(peer.wait().success());

    assert_eq!(supervise().shell("kill -TERM $$").status(), ExitStatus::Signalled(15));
    // A real-time signal.
    assert_eq!(supervise().shell("kill -40 $$").status(), ExitStatus::Signalled(40));
    assert_eq!(supervise().shell("exit 137").status(), ExitStatus::Exited(137));
}

#[test]
fn nothing_is_inherited_but_what_is_given() {
    let peer = supervise();
    let mut request = peer.request(Program::Argv(["env".to_owned()].to_vec()));
    request.env.push(("GIVEN".to_owned(), "a=b".to_owned()));
    let mut peer = peer;
    peer.start_command(0, request);
    let outcome = peer.outcome(0);
    let names: Vec<&str> = outcome.text().lines().map(|line| line.split('=').next().unwrap()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(outcome.text().contains("GIVEN=a=b\n"));

    // Three streams and the directory that is being listed.
    assert_eq!(supervise().shell("ls /proc/self/fd").text(), "0\n1\n2\n3\n");
    let outcome = supervise().shell("cat; ulimit -c; grep -E '^(NoNewPrivs|SigBlk)' /proc/self/status");
    assert_eq!(outcome.text(), "0\nSigBlk:\t0000000000000000\nNoNewPrivs:\t1\n");
    let outcome = supervise().shell("sed -n 's/^SigIgn:\t//p' /proc/self/status");
    let ignored = u64::from_str_radix(outcome.text().trim(), 16).unwrap();
    // Whoever started the tests may ignore signals that only the C library uses.
    assert_eq!(ignored & 0x7fff_ffff, 0, "{ignored:x}");
}

#[test]
fn it_leads_a_session_that_the_command_is_in() {
    let mut peer = supervise();
    let request = peer.script("echo begun; read -r x </proc/self/fd/2 || sleep 1000");
    peer.start_command(0, request);
    peer.expect_output(0, "begun\n");
    let leader = Some(Pid::from_raw(peer.id()));
    assert_eq!((getsid(leader).ok(), getpgid(leader).ok()), (leader, leader));
    let command = Some(Pid::from_raw(peer.alive()[0]));
    assert_eq!((getsid(command).ok(), getpgid(command).ok()), (leader, leader));
}

#[test]
fn input_is_read_to_its_end() {
    let mut peer = supervise();
    let mut request = peer.request(Program::Argv(vec!["cat".to_owned()]));
    request.has_input = true;
    peer.start_command(0, request);
    let input: Vec<u8> = (0..1_000_000_u32).map(|number| number.to_be_bytes()[3]).collect();
    for chunk in input.chunks(100_000) {
        peer.send(0, ToSupervisor::Input(chunk.to_vec()));
    }
    peer.send(0, ToSupervisor::Input(Vec::new()));
    assert!(peer.outcome(0).stdout == input);

    // One that does not read it.
    let mut peer = supervise();
    let mut request = peer.script("exec <&-; echo done");
    request.has_input = true;
    peer.start_command(0, request);
    let _may_be_gone = peer.try_send(0, ToSupervisor::Input(input));
    assert_eq!(peer.outcome(0).text(), "done\n");
}

#[test]
fn all_of_large_output_arrives() {
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
fn refusals_say_why() {
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
        let mut peer = supervise();
        let request = peer.request(program);
        peer.start_command(0, request);
        assert_eq!(peer.outcome(0).result.unwrap_err().kind, expected);
        assert!(peer.wait().success());
    }
    let mut peer = supervise();
    let mut request = peer.script(":");
    request.cwd = Some("/no/directory".to_owned());
    peer.start_command(0, request);
    assert_eq!(peer.outcome(0).result.unwrap_err().kind, RefusalKind::DirectoryNotFound);
}

#[test]
fn limits_hold() {
    let directory = tempfile::tempdir().unwrap();
    let mut peer = supervise();
    let mut request = peer.script(
        "ulimit -n; head -c 3000 /dev/zero > small; head -c 5000 /dev/zero > large; stat -c %s large",
    );
    request.cwd = Some(directory.path().to_str().unwrap().to_owned());
    request.limits = Limits { file_bytes: Some(4096), open_files: Some(50), ..Limits::default() };
    peer.start_command(0, request);
    assert_eq!(peer.outcome(0).text(), "50\n4096\n");

    let mut peer = supervise();
    let mut request = peer.script("x=a; while :; do x=$x$x; done");
    request.limits.memory_bytes = Some(64 << 20);
    peer.start_command(0, request);
    let end = peer.outcome(0).end();
    assert_ne!(end.status, ExitStatus::Exited(0));
    assert!(end.max_rss_kib < 64 << 10, "{end:?}");
}

/// Forked twice and in a session of its own: neither the group nor the parent leads to it.
#[test]
fn a_daemon_is_killed_and_counted() {
    let mut peer = supervise();
    let script =
        "(setsid sh -c 'echo > daemon; exec sleep 1000' &); sleep 1000 & while ! [ -e daemon ]; do :; done";
    let directory = tempfile::tempdir().unwrap();
    let mut request = peer.script(script);
    request.cwd = Some(directory.path().to_str().unwrap().to_owned());
    peer.start_command(0, request);
    let outcome = peer.outcome(0);
    assert_eq!(outcome.status(), ExitStatus::Exited(0));
    peer.assert_nothing_runs();
    assert_eq!(outcome.end().left_behind, 2);
}

/// Each hop is a new process in a new session whose parent is gone.
#[test]
fn what_hops_from_process_to_process_is_caught() {
    let directory = tempfile::tempdir().unwrap();
    let hop = directory.path().join("hop");
    std::fs::write(&hop, "#!/bin/sh\nsetsid \"$0\" &\n").unwrap();
    std::fs::set_permissions(&hop, PermissionsExt::from_mode(0o755)).unwrap();
    let mut peer = supervise();
    let outcome = peer.shell(&format!("{}; echo done", hop.display()));
    assert_eq!(outcome.text(), "done\n");
    peer.wait();
    peer.assert_nothing_runs();
}

/// Every process starts two, until there are a few hundred that wait for nothing.
#[test]
fn a_small_fork_bomb_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let bomb = directory.path().join("bomb");
    let script = "#!/bin/sh\n[ $1 = 0 ] && exec sleep 1000\n\"$0\" $(($1-1)) & \"$0\" $(($1-1)) & wait\n";
    std::fs::write(&bomb, script).unwrap();
    std::fs::set_permissions(&bomb, PermissionsExt::from_mode(0o755)).unwrap();
    let mut peer = supervise();
    let request = peer.script(&format!("{} 6 & echo begun; sleep 1000", bomb.display()));
    peer.start_command(0, request);
    peer.expect_output(0, "begun\n");
    wait_until(|| peer.alive().len() > 10);
    peer.send(0, ToSupervisor::Kill);
    assert_eq!(peer.outcome(0).status(), KILLED);
    peer.assert_nothing_runs();
    assert!(peer.wait().success());
}

#[test]
fn stop_asks_and_then_kills() {
    let mut peer = supervise();
    let request = peer.script("trap 'echo asked; exit 3' TERM; echo begun; sleep 1000 & wait");
    peer.start_command(0, request);
    peer.expect_output(0, "begun\n");
    peer.send(0, ToSupervisor::Stop);
    let outcome = peer.outcome(0);
    assert_eq!((outcome.status(), outcome.text()), (ExitStatus::Exited(3), "asked\n"));
    peer.assert_nothing_runs();

    let mut peer = supervise();
    let request = peer.script("trap '' TERM; echo begun; while :; do sleep 0.05; done");
    peer.start_command(0, request);
    peer.expect_output(0, "begun\n");
    peer.send(0, ToSupervisor::Stop);
    peer.send(0, ToSupervisor::Stop);
    assert_eq!(peer.outcome(0).status(), KILLED);
    peer.assert_nothing_runs();
}

/// What is sent to the whole group does not end its supervisor.
#[test]
fn signals_for_the_group_pass_by() {
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1", "TSTP", "ALRM"] {
        let outcome =
            supervise().shell(&format!("trap 'echo heard' {signal}; kill -{signal} 0; sleep 0; exit 4"));
        assert_eq!((outcome.status(), outcome.text()), (ExitStatus::Exited(4), "heard\n"), "{signal}");
    }
}

#[test]
fn the_end_of_the_worker_kills() {
    let busy = "trap '' TERM; (setsid sleep 1000 &); echo begun; sleep 1000 & wait";
    type End = fn(&mut Peer);
    let ends: [(&str, End); 4] = [
        ("its input ends", Peer::hang_up),
        ("a promise is not kept", |peer| peer.send(0, ToSupervisor::Feed(Duration::from_millis(10)))),
        ("a guard says so", |peer| kill(Pid::from_raw(peer.id()), Signal::SIGUSR2).unwrap()),
        ("nonsense", |peer| peer.send(0, ToSupervisor::Start(Box::new(peer.script(":"))))),
    ];
    for (why, end) in ends {
        let mut peer = supervise();
        let request = peer.script(busy);
        peer.start_command(0, request);
        peer.expect_output(0, "begun\n");
        wait_until(|| peer.alive().len() >= 3);
        end(&mut peer);
        assert!(!peer.wait().success(), "{why}");
        peer.assert_nothing_runs();
    }
}

#[test]
fn a_kept_promise_kills_nothing() {
    let mut peer = supervise();
    let request = peer.script("sleep 0.3; echo done");
    peer.start_command(0, request);
    peer.send(0, ToSupervisor::Feed(Duration::from_millis(50)));
    peer.send(0, ToSupervisor::Feed(Duration::from_secs(60)));
    assert_eq!(peer.outcome(0).text(), "done\n");
}

#[test]
fn without_a_command_it_ends_with_its_worker() {
    let mut peer = supervise();
    peer.hang_up();
    assert!(!peer.wait().success());
    let mut peer = supervise();
    peer.send(0, ToSupervisor::Feed(Duration::from_millis(1)));
    assert!(!peer.wait().success());
    for arguments in [&[][..], &["what"], &["supervise", "what"]] {
        let program = env!("CARGO_BIN_EXE_remuda-supervisor");
        assert_eq!(std::process::Command::new(program).args(arguments).status().unwrap().code(), Some(2));
    }
}

/// A worker that reads nothing can still kill, and its command is held up and not forgotten.
#[test]
fn an_unread_command_waits_and_can_be_killed() {
    use std::process::{Command, Stdio};
    let peer = supervise();
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
    // More than both pipes hold.
    let mut request = peer.script("head -c 200000 /dev/zero; echo > full; exec yes");
    request.cwd = Some(directory.path().to_str().unwrap().to_owned());
    send(ToSupervisor::Start(Box::new(request)));
    wait_until(|| directory.path().join("full").is_file());
    let held = || memory_kib(child.id()) < 10_000;
    assert!(held());
    send(ToSupervisor::Kill);
    wait_until(|| peer.alive().is_empty());
    assert!(held());
    drop(unread);
    assert!(!child.wait().unwrap().success());
}

fn memory_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn output_comes_before_the_end() {
    let mut peer = supervise();
    let request = peer.script("echo early; sleep 1000");
    peer.start_command(0, request);
    assert_eq!(peer.next().message, FromSupervisor::Stdout(b"early\n".to_vec()));
    peer.send(0, ToSupervisor::Kill);
    let outcome = peer.outcome(0);
    assert_eq!((outcome.status(), outcome.stdout.len()), (KILLED, 0));
}
