//! Main loop of the guard process.

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
    process::READY,
    watch_state::{RegistrationReply, WatchState},
};
use crate::process_groups::kill_groups;

/// Runs the guard until the worker is gone, then kills its remaining process groups.
///
/// Must run on the main thread of a single-threaded process: start no async runtime before it.
pub fn run() -> ExitCode {
    match watch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn watch() -> io::Result<()> {
    // A command that could trace it could act as the worker's user outside of its confinement.
    nix::sys::prctl::set_dumpable(false)?;
    // The guard outlives the worker's shutdown: signals to the terminal's or the worker's group must not end
    // it.
    let polite: SigSet =
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT].into_iter().collect();
    polite.thread_block()?;
    match setsid() {
        // Already the leader of its own process group, which suffices.
        Ok(_) | Err(Errno::EPERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    io::stdout().write_all(READY)?;
    io::stdout().flush()?;
    // Killing must not wait for a worker that does not read.
    fcntl(io::stdout(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;

    let mut watch_state = WatchState::default();
    let result = event_loop(&mut watch_state);
    kill_groups(watch_state.take_all());
    result
}

/// Handles the worker's messages until the pipe ends.
fn event_loop(watch_state: &mut WatchState) -> io::Result<()> {
    let pipe = io::stdin();
    let mut buffer = [0; 4096];
    loop {
        let timeout = match watch_state.poll_timeout(Instant::now()) {
            // Rounded up, or the loop would spin during the last millisecond.
            Some(time) => PollTimeout::try_from(time.as_millis() + 1).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => match read(pipe.as_fd(), &mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => watch_state.read(&buffer[..count], Instant::now()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            },
            Err(errno) => return Err(errno.into()),
        }
        kill_groups(watch_state.take_overdue(Instant::now()));
        send_replies(watch_state);
    }
}

/// Replies to registrations: a command starts only after its group is confirmed as watched.
fn send_replies(watch_state: &mut WatchState) {
    let replies: String = watch_state.take_replies().into_iter().map(RegistrationReply::to_line).collect();
    // A worker that is gone, or stopped so long that the pipe is full, needs no reply.
    let _ignored = io::stdout().write_all(replies.as_bytes()).and_then(|()| io::stdout().flush());
}
