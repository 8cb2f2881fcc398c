//! The guard's child process, seen from the worker.

use std::{
    io::{self, Read, Write},
    os::fd::AsFd,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

/// First output of a guard that is ready.
pub(super) const READY: &[u8] = b"ready\n";
const START_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct GuardProcess {
    child: Child,
    pipe: ChildStdin,
}

impl GuardProcess {
    /// Starts a guard and waits until it is ready. Blocks. Also returns the stream of its replies.
    pub(super) fn launch(program: &Path, args: &[String]) -> io::Result<(Self, ChildStdout)> {
        let mut child = Command::new(program)
            .args(args)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pipe = child.stdin.take();
        let ready = await_ready(&mut child);
        match ready.and_then(|replies| Ok((replies, pipe.ok_or_else(|| io::Error::other("no pipe"))?))) {
            Ok((replies, pipe)) => {
                // A stuck guard must not block the worker: `send` then fails instead.
                fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
                Ok((Self { child, pipe }, replies))
            }
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }

    /// Sends messages. Pipe writes of up to 4 KiB are atomic.
    pub(super) fn send(&mut self, messages: &str) -> io::Result<()> {
        self.pipe.write_all(messages.as_bytes())
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the guard before it can act.
    pub(super) fn kill(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    if let Err(error) = child.kill().and_then(|()| child.wait()) {
        tracing::warn!(%error, "cannot kill a guard process");
    }
}

fn await_ready(child: &mut Child) -> io::Result<ChildStdout> {
    let Some(mut stdout) = child.stdout.take() else {
        return Err(io::Error::other("no output"));
    };
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the program did not become a guard"));
            }
            Ok(_) => break,
            // Another child ended: SIGCHLD for the async runtime.
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut greeting = [0; READY.len()];
    stdout.read_exact(&mut greeting)?;
    if greeting != *READY {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the program is not a guard"));
    }
    Ok(stdout)
}
