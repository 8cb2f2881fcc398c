//! The `init` mode: many commands over one stream.

use std::time::Duration;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use remuda_supervisor::{ExitStatus, Frame, FromSupervisor, RefusalKind, ToSupervisor};

use crate::supervisor_process::{SupervisorProcess, wait_until};

fn init() -> SupervisorProcess {
    SupervisorProcess::start("init")
}

#[test]
fn commands_run_concurrently_and_channel_ids_can_be_reused() {
    let mut supervisor = init();
    let mut waiting = supervisor.script("echo one; cat; exit 1");
    waiting.has_input = true;
    supervisor.start_command(7, waiting);
    supervisor.expect_output(7, "one\n");
    // A second command starts and ends while the first waits for input.
    let request = supervisor.script("echo two; exit 2");
    supervisor.start_command(8, request);
    let second = supervisor.outcome(8);
    assert_eq!((second.status(), second.text()), (ExitStatus::Exited(2), "two\n"));
    supervisor.send(7, ToSupervisor::Input(b"more\n".to_vec()));
    supervisor.send(7, ToSupervisor::Input(Vec::new()));
    let first = supervisor.outcome(7);
    assert_eq!((first.status(), first.text()), (ExitStatus::Exited(1), "more\n"));
    // A channel id can be reused, and a message for an ended command is ignored.
    supervisor.send(7, ToSupervisor::Stop);
    let request = supervisor.script("echo three");
    supervisor.start_command(7, request);
    assert_eq!(supervisor.outcome(7).text(), "three\n");
}

#[test]
fn stop_and_kill_affect_only_their_channel() {
    let mut supervisor = init();
    for channel in [1, 2] {
        let request = supervisor.script("echo begun; exec sleep 1000");
        supervisor.start_command(channel, request);
        supervisor.expect_output(channel, "begun\n");
    }
    supervisor.send(2, ToSupervisor::Stop);
    assert_eq!(supervisor.outcome(2).status(), ExitStatus::Signalled(15));
    assert_eq!(supervisor.alive().len(), 1);
    supervisor.send(1, ToSupervisor::Kill);
    assert_eq!(supervisor.outcome(1).status(), ExitStatus::Signalled(9));
    supervisor.assert_nothing_runs();
}

#[test]
fn command_beyond_the_channel_limit_is_refused() {
    let mut supervisor = init();
    for channel in 1..=65 {
        let request = supervisor.script("exec sleep 1000");
        supervisor.start_command(channel, request);
    }
    let Frame { channel: 65, message: FromSupervisor::Refused(refusal) } = supervisor.next() else {
        panic!("expected a refusal on the last channel")
    };
    assert_eq!(refusal.kind, RefusalKind::OutOfResources);
    supervisor.send(1, ToSupervisor::Kill);
    supervisor.outcome(1);
    let request = supervisor.script("echo room");
    supervisor.start_command(66, request);
    assert_eq!(supervisor.outcome(66).text(), "room\n");
}

#[test]
fn closed_input_or_expired_watchdog_kills_all_commands() {
    let ends: [fn(&mut SupervisorProcess); 3] = [
        SupervisorProcess::close_input,
        |supervisor| supervisor.send(0, ToSupervisor::FeedWatchdog(Duration::from_millis(10))),
        |supervisor| supervisor.send(5, ToSupervisor::FeedWatchdog(Duration::from_millis(10))),
    ];
    for end in ends {
        let mut supervisor = init();
        for channel in [1, 2] {
            let request = supervisor.script("(setsid sleep 1000 &); echo begun; sleep 1000");
            supervisor.start_command(channel, request);
            supervisor.expect_output(channel, "begun\n");
        }
        end(&mut supervisor);
        assert!(!supervisor.wait().success());
        // In this test init is not PID 1 of a namespace, so its children outlive it for a moment.
        wait_until(|| supervisor.alive().is_empty());
    }
}

/// A command kills its supervisor; daemons that it detached before are found nevertheless.
#[test]
fn processes_of_a_killed_supervisor_are_killed() {
    let mut supervisor = init();
    let request = supervisor.script("echo begun; exec sleep 1000");
    supervisor.start_command(1, request);
    supervisor.expect_output(1, "begun\n");
    let request = supervisor.script("(setsid sleep 1000 &); sleep 1000 & kill -9 $PPID; sleep 1000");
    supervisor.start_command(2, request);
    assert_eq!(supervisor.outcome(2).status(), ExitStatus::Signalled(9));
    assert_eq!(supervisor.alive().len(), 1);
    supervisor.send(1, ToSupervisor::Stop);
    supervisor.outcome(1);
    supervisor.assert_nothing_runs();
}

#[test]
fn termination_signals_are_ignored() {
    let mut supervisor = init();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR2] {
        kill(Pid::from_raw(supervisor.id()), signal).unwrap();
    }
    let request = supervisor.script("echo still");
    supervisor.start_command(1, request);
    assert_eq!(supervisor.outcome(1).text(), "still\n");
    supervisor.close_input();
    assert!(!supervisor.wait().success());
}
