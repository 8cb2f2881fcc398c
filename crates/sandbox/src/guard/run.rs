//! The guard's own life.

use std::{
    io::{self, Write},
    os::fd::AsFd,
    process::ExitCode,
    time::Instant,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{SigSet, Signal},
    unistd::{read, setsid},
};

use super::{
    ledger::{Answer, Ledger},
    process::READY,
};
use crate::groups::kill_groups;

/// Keeps watch until the worker is gone, then kills what it left.
///
/// For the main thread of a process that has no other: start no runtime before it.
pub fn run() -> ExitCode {
    match watch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn watch() -> io::Result<()> {
    // The worker's shutdown is not the guard's: what is sent to the terminal's or the worker's group must not end it.
    let polite: SigSet =
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT].into_iter().collect();
    polite.thread_block()?;
    match setsid() {
        // Started as the leader of a group of its own: good enough.
        Ok(_) | Err(Errno::EPERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    io::stdout().write_all(READY)?;
    io::stdout().flush()?;
    // Killing must not wait for a worker that does not listen.
    fcntl(io::stdout(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;

    let mut ledger = Ledger::default();
    let result = follow(&mut ledger);
    kill_groups(ledger.all());
    result
}

/// Follows the worker's messages to their end.
fn follow(ledger: &mut Ledger) -> io::Result<()> {
    let pipe = io::stdin();
    let mut buffer = [0; 4096];
    loop {
        let timeout = match ledger.patience(Instant::now()) {
            // Rounded up, or the last millisecond would be a busy one.
            Some(time) => PollTimeout::try_from(time.as_millis() + 1).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => match read(pipe.as_fd(), &mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => ledger.read(&buffer[..count], Instant::now()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            },
            Err(errno) => return Err(errno.into()),
        }
        kill_groups(ledger.overdue(Instant::now()));
        answer(ledger);
    }
}

/// Answers registrations: only what is known to be watched may begin.
fn answer(ledger: &mut Ledger) {
    let answers: String = ledger.answers().into_iter().map(Answer::line).collect();
    // A worker that is gone, or stopped for so long that the pipe is full, needs no answer.
    let _unheard = io::stdout().write_all(answers.as_bytes()).and_then(|()| io::stdout().flush());
}
