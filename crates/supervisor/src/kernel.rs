//! Signals, polling and child reaping, shared by the `supervise` and `init` modes.

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::read,
};
use remuda_supervisor::ExitStatus;

/// Blocks every signal, so that signals sent to the command's group have no effect here, and returns a
/// descriptor for the signals in `interest`.
pub(crate) fn block_signals(interest: &[Signal]) -> nix::Result<SignalFd> {
    SigSet::all().thread_block()?;
    reset_dispositions()?;
    let interest: SigSet = interest.iter().copied().collect();
    SignalFd::with_flags(&interest, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// Resets ignored signals, which commands would inherit: `nohup` and a shell's `&` start servers with some of them.
#[expect(unsafe_code, reason = "sets handlers")]
fn reset_dispositions() -> nix::Result<()> {
    for signal in Signal::iterator().filter(|signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP)) {
        // SAFETY: the default disposition runs no code of this process, and no handler is replaced: none was set.
        unsafe { sigaction(signal, &SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty()))? };
    }
    Ok(())
}

/// Closes inherited descriptors. Must run before any other descriptor is opened.
#[expect(unsafe_code, reason = "nix has no close_range")]
pub(crate) fn close_inherited() {
    // SAFETY: no code here owns a descriptor above the three standard streams yet. Kernels before 5.9 reject
    // the call and close nothing.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
    }
}

/// Polls the sources until one is ready or `until` has passed, and returns the ready ones.
pub(crate) fn wait<'a, S: Copy>(
    sources: &[(S, BorrowedFd<'a>, PollFlags)],
    until: Option<Instant>,
) -> nix::Result<Vec<S>> {
    let timeout = match until.map(|until| until.saturating_duration_since(Instant::now())) {
        Some(Duration::ZERO) => PollTimeout::ZERO,
        // Rounded up, or the loop would spin during the last millisecond.
        Some(time) => PollTimeout::try_from(time.as_millis() + 1).unwrap_or(PollTimeout::MAX),
        None => PollTimeout::NONE,
    };
    let mut polled: Vec<PollFd<'a>> = sources.iter().map(|(_, fd, flags)| PollFd::new(*fd, *flags)).collect();
    match poll(&mut polled, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(errno),
    }
    let ready = polled.iter().zip(sources);
    Ok(ready.filter(|(fd, _)| fd.any() == Some(true)).map(|(_, (source, ..))| *source).collect())
}

/// Reads once from a ready pipe. Closes the pipe at its end.
pub(crate) fn read_or_close(pipe: &mut Option<impl AsFd>, buffer: &mut [u8]) -> usize {
    let count = match pipe {
        Some(open) => match read(open.as_fd(), buffer) {
            Err(Errno::EINTR | Errno::EAGAIN) => return 0,
            result => result.unwrap_or(0),
        },
        None => 0,
    };
    if count == 0 {
        *pipe = None;
    }
    count
}

/// An exited child and its resource usage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExitedChild {
    pub(crate) process: i32,
    pub(crate) status: ExitStatus,
    pub(crate) cpu: Duration,
    pub(crate) max_rss_kib: u64,
}

/// Result of one attempt to reap a child.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reaped {
    Child(ExitedChild),
    /// There are children, and none has exited.
    NoneExited,
    /// There are no children at all.
    NoChildren,
}

/// Reaps one exited child, if there is one. This process is init or a subreaper and adopts all orphans, so
/// [`Reaped::NoChildren`] means that no process it ever started is left.
#[expect(
    unsafe_code,
    reason = "nix has neither wait4 nor the status of a process killed by a real-time signal"
)]
pub(crate) fn reap_child() -> Reaped {
    let mut status = 0;
    // SAFETY: all zeroes is a valid `rusage`, and both pointers are to locals that outlive the call.
    let (process, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage), usage)
    };
    match process {
        0 => Reaped::NoneExited,
        1.. => Reaped::Child(ExitedChild {
            process,
            status: if libc::WIFSIGNALED(status) {
                ExitStatus::Signalled(libc::WTERMSIG(status))
            } else {
                ExitStatus::Exited(libc::WEXITSTATUS(status))
            },
            cpu: duration(usage.ru_utime) + duration(usage.ru_stime),
            max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or_default(),
        }),
        // With WNOHANG the call is never interrupted, so the only possible error is ECHILD.
        _ => Reaped::NoChildren,
    }
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or_default());
    seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or_default())
}
