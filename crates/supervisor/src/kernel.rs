//! What both modes ask of the kernel.

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::read,
};
use remuda_supervisor::ExitStatus;

/// Blocks every signal, so that what is sent to the command's group passes by, and gives those of interest to read.
pub(crate) fn take_signals(interest: &[Signal]) -> nix::Result<SignalFd> {
    SigSet::all().thread_block()?;
    let interest: SigSet = interest.iter().copied().collect();
    SignalFd::with_flags(&interest, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// Closes what a careless parent left open. To be called before anything else is opened.
#[expect(unsafe_code, reason = "nix does not know close_range")]
pub(crate) fn close_inherited() {
    // SAFETY: nobody here owns a descriptor beyond the three streams yet. Kernels before 5.9 refuse, and close nothing.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
    }
}

/// Waits until one of the pipes can be used or the time has come, and says which can.
pub(crate) fn wait<'a, S: Copy>(
    sources: &[(S, BorrowedFd<'a>, PollFlags)],
    until: Option<Instant>,
) -> nix::Result<Vec<S>> {
    let timeout = match until.map(|until| until.saturating_duration_since(Instant::now())) {
        Some(Duration::ZERO) => PollTimeout::ZERO,
        // Rounded up, or the last millisecond would be a busy one.
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

/// Reads once from a pipe that has something; one that has ended is closed.
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

/// A child that is no more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    pub(crate) process: i32,
    pub(crate) status: ExitStatus,
    pub(crate) cpu: Duration,
    pub(crate) max_rss_kib: u64,
}

/// What there is to collect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Collected {
    Gone(Gone),
    /// Children live, and none has ended.
    Nobody,
    /// There are no children at all.
    Childless,
}

/// Collects one child that has ended, any of them. Orphans of children come to us, who are init or a subreaper: being
/// childless means that nothing we ever started is left.
#[expect(
    unsafe_code,
    reason = "nix knows neither wait4 nor the status of a process killed by a real-time signal"
)]
pub(crate) fn collect() -> Collected {
    let mut status = 0;
    // SAFETY: all zeroes is a valid `rusage`, and both pointers are to locals that outlive the call.
    let (process, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage), usage)
    };
    match process {
        0 => Collected::Nobody,
        1.. => Collected::Gone(Gone {
            process,
            status: if libc::WIFSIGNALED(status) {
                ExitStatus::Signalled(libc::WTERMSIG(status))
            } else {
                ExitStatus::Exited(libc::WEXITSTATUS(status))
            },
            cpu: duration(usage.ru_utime) + duration(usage.ru_stime),
            max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or_default(),
        }),
        // With WNOHANG nothing interrupts it, so the only error is that there is nobody to wait for.
        _ => Collected::Childless,
    }
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or_default());
    seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or_default())
}
