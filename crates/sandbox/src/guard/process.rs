//! The guard as a child process.

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

/// What a guard says once it is on watch.
pub(super) const READY: &[u8] = b"ready\n";
const START_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct GuardProcess {
    child: Child,
    pipe: ChildStdin,
}

impl GuardProcess {
    /// Starts a guard and waits until it is on watch. Blocks. Also gives where its answers come from.
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
        match ready.and_then(|answers| Ok((answers, pipe.ok_or_else(|| io::Error::other("no pipe"))?))) {
            Ok((answers, pipe)) => {
                // A stuck guard must not block the worker; it shows as an error of `send`.
                fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
                Ok((Self { child, pipe }, answers))
            }
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }

    /// Messages up to 4 KiB arrive whole or not at all, as pipes promise.
    pub(super) fn send(&mut self, messages: &str) -> io::Result<()> {
        self.pipe.write_all(messages.as_bytes())
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the guard before it can act.
    pub(super) fn kill(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    if let Err(error) = child.kill().and_then(|()| child.wait()) {
        tracing::warn!(%error, "cannot end a guard process");
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
            // Some other child ended, which the runtime wants to know.
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut answer = [0; READY.len()];
    stdout.read_exact(&mut answer)?;
    if answer != *READY {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the program is not a guard"));
    }
    Ok(stdout)
}
