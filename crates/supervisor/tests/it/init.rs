//! Many commands: the first process of a container.

use std::time::Duration;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use remuda_supervisor::{ExitStatus, Frame, FromSupervisor, RefusalKind, ToSupervisor};

use crate::peer::{Peer, wait_until};

fn init() -> Peer {
    Peer::start("init")
}

#[test]
fn commands_run_side_by_side() {
    let mut peer = init();
    let mut waiting = peer.script("echo one; cat; exit 1");
    waiting.has_input = true;
    peer.start_command(7, waiting);
    peer.expect_output(7, "one\n");
    // A second one begins and ends while the first waits.
    let request = peer.script("echo two; exit 2");
    peer.start_command(8, request);
    let second = peer.outcome(8);
    assert_eq!((second.status(), second.text()), (ExitStatus::Exited(2), "two\n"));
    peer.send(7, ToSupervisor::Input(b"more\n".to_vec()));
    peer.send(7, ToSupervisor::Input(Vec::new()));
    let first = peer.outcome(7);
    assert_eq!((first.status(), first.text()), (ExitStatus::Exited(1), "more\n"));
    // A number can be used again, and what comes too late harms nobody.
    peer.send(7, ToSupervisor::Stop);
    let request = peer.script("echo three");
    peer.start_command(7, request);
    assert_eq!(peer.outcome(7).text(), "three\n");
}

#[test]
fn each_is_stopped_by_itself() {
    let mut peer = init();
    for channel in [1, 2] {
        let request = peer.script("echo begun; exec sleep 1000");
        peer.start_command(channel, request);
        peer.expect_output(channel, "begun\n");
    }
    peer.send(2, ToSupervisor::Stop);
    assert_eq!(peer.outcome(2).status(), ExitStatus::Signalled(15));
    assert_eq!(peer.alive().len(), 1);
    peer.send(1, ToSupervisor::Kill);
    assert_eq!(peer.outcome(1).status(), ExitStatus::Signalled(9));
    peer.assert_nothing_runs();
}

#[test]
fn there_is_a_bound() {
    let mut peer = init();
    for channel in 1..=65 {
        let request = peer.script("exec sleep 1000");
        peer.start_command(channel, request);
    }
    let Frame { channel: 65, message: FromSupervisor::Refused(refusal) } = peer.next() else {
        panic!("the last one is one too many")
    };
    assert_eq!(refusal.kind, RefusalKind::OutOfResources);
    peer.send(1, ToSupervisor::Kill);
    peer.outcome(1);
    let request = peer.script("echo room");
    peer.start_command(66, request);
    assert_eq!(peer.outcome(66).text(), "room\n");
}

#[test]
fn the_end_of_the_worker_ends_everything() {
    let ends: [fn(&mut Peer); 3] = [
        Peer::hang_up,
        |peer| peer.send(0, ToSupervisor::Feed(Duration::from_millis(10))),
        |peer| peer.send(5, ToSupervisor::Feed(Duration::from_millis(10))),
    ];
    for end in ends {
        let mut peer = init();
        for channel in [1, 2] {
            let request = peer.script("(setsid sleep 1000 &); echo begun; sleep 1000");
            peer.start_command(channel, request);
            peer.expect_output(channel, "begun\n");
        }
        end(&mut peer);
        assert!(!peer.wait().success());
        // Here it is not the first process of a namespace, so that its children take a moment of their own.
        wait_until(|| peer.alive().is_empty());
    }
}

/// A command kills its supervisor; what it has put out of reach before is found nevertheless.
#[test]
fn a_killed_supervisor_leaves_nothing() {
    let mut peer = init();
    let request = peer.script("echo begun; exec sleep 1000");
    peer.start_command(1, request);
    peer.expect_output(1, "begun\n");
    let request = peer.script("(setsid sleep 1000 &); sleep 1000 & kill -9 $PPID; sleep 1000");
    peer.start_command(2, request);
    assert_eq!(peer.outcome(2).status(), ExitStatus::Signalled(9));
    assert_eq!(peer.alive().len(), 1);
    peer.send(1, ToSupervisor::Stop);
    peer.outcome(1);
    peer.assert_nothing_runs();
}

#[test]
fn signals_do_not_end_it() {
    let mut peer = init();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR2] {
        kill(Pid::from_raw(peer.id()), signal).unwrap();
    }
    let request = peer.script("echo still");
    peer.start_command(1, request);
    assert_eq!(peer.outcome(1).text(), "still\n");
    peer.hang_up();
    assert!(!peer.wait().success());
}
