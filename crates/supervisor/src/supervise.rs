//! Running one command, to the end of everything it started.
//!
//! One thread, one `poll`: whatever happens (a worker that does not read, a command that does not write), the next message,
//! deadline or ended process is seen. When the command ends, or must, what follows is short and bounded: kill, drain, say so.

mod command;
mod confine;
mod memory;

pub(crate) use self::confine::check as check_confinement;

use std::{
    collections::BTreeSet,
    io::{self, stdin, stdout},
    os::fd::AsFd,
    process::{ChildStderr, ChildStdin, ChildStdout},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::PollFlags,
    sys::{
        prctl,
        signal::{Signal, kill},
        signalfd::SignalFd,
    },
    unistd::{Pid, read, setsid},
};
use remuda_supervisor::{Decoder, End, ExitStatus, Frame, FromSupervisor, Request, ToSupervisor};

use crate::{
    kernel::{self, Collected, Gone},
    outbox::{Outbox, set_nonblocking},
    processes::{self, Swept},
};

/// The argument that says that the cgroup is a container's, whose memory this command shares with few.
pub(crate) const CONTAINED: &str = "contained";
/// Sent by a guard whose worker is gone: as [`ToSupervisor::Kill`], and nobody waits for an answer.
const ABANDON: Signal = Signal::SIGUSR2;

/// How long to wait for the command, and for a worker that takes nothing of what is left to say.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// How long to read on after the end, should a process that is not ours hold the pipe.
const DRAIN_AFTER_EXIT: Duration = Duration::from_secs(2);
const DRAIN_AFTER_KILL: Duration = Duration::from_millis(100);
/// Beyond this much unread output the command has to wait.
const MAX_UNREAD: usize = 256 * 1024;
/// A pipe holds no more unless root has made it larger.
const MAX_DRAINED: usize = 1024 * 1024;
/// A worker that sends more input than it may is not ours.
const MAX_INPUT: usize = 16 * 1024 * 1024;
const CHUNK: usize = 32 * 1024;

pub(crate) fn run(contained: bool) -> io::Result<()> {
    // Its environment and memory are nobody's business.
    prctl::set_dumpable(false)?;
    let signals = kernel::take_signals(&[Signal::SIGCHLD, ABANDON])?;
    match setsid() {
        // The first process of a PID namespace may lead its session already.
        Ok(_) | Err(Errno::EPERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    prctl::set_child_subreaper(true)?;
    set_nonblocking(stdout())?;
    let mut supervisor = Supervisor {
        contained,
        signals,
        decoder: Decoder::default(),
        unread: Outbox::default(),
        fed_until: None,
        state: State::Waiting { until: Instant::now() + IDLE_TIME },
        buffer: vec![0; CHUNK],
    };
    supervisor.say(FromSupervisor::Ready);
    let outcome = supervisor.follow();
    // Whichever way it ended: nobody is left. It is the first question of a sweep, so asking twice costs nothing.
    supervisor.kill_all();
    outcome
}

struct Supervisor {
    contained: bool,
    signals: SignalFd,
    decoder: Decoder,
    /// For the worker.
    unread: Outbox,
    fed_until: Option<Instant>,
    state: State,
    buffer: Vec<u8>,
}

enum State {
    /// For the command to run.
    Waiting {
        until: Instant,
    },
    Running(Box<Running>),
    /// For the worker to read the rest.
    Over {
        until: Instant,
    },
}

struct Running {
    process: i32,
    input: Option<ChildStdin>,
    unwritten: Outbox,
    /// Closes the input once it is written.
    input_ends: bool,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    grace: Duration,
    kill_at: Option<Instant>,
    kills_before: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Worker,
    Unread,
    Signals,
    Input,
    Stdout,
    Stderr,
}

impl Supervisor {
    /// Follows the worker and the command until there is nothing more to say, or nobody to say it to.
    fn follow(&mut self) -> io::Result<()> {
        loop {
            let now = Instant::now();
            if self.fed_until.is_some_and(|until| until <= now) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match &self.state {
                State::Waiting { until } | State::Over { until } if *until <= now => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                State::Over { .. } if self.unread.is_empty() => return Ok(()),
                State::Running(running) if running.kill_at.is_some_and(|at| at <= now) => self.end(None),
                _ => {}
            }
            for source in self.wait()? {
                self.serve(source)?;
            }
        }
    }

    fn wait(&self) -> nix::Result<Vec<Source>> {
        let (stdin, stdout) = (stdin(), stdout());
        let mut sources = vec![(Source::Worker, stdin.as_fd(), PollFlags::POLLIN)];
        if !self.unread.is_empty() {
            sources.push((Source::Unread, stdout.as_fd(), PollFlags::POLLOUT));
        }
        sources.push((Source::Signals, self.signals.as_fd(), PollFlags::POLLIN));
        let mut until = self.fed_until;
        let mut earlier = |other: Instant| until = Some(until.map_or(other, |until| until.min(other)));
        match &self.state {
            State::Waiting { until } | State::Over { until } => earlier(*until),
            State::Running(running) => {
                running.kill_at.into_iter().for_each(earlier);
                if let Some(input) = &running.input
                    && !running.unwritten.is_empty()
                {
                    sources.push((Source::Input, input.as_fd(), PollFlags::POLLOUT));
                }
                if self.unread.len() < MAX_UNREAD {
                    let stdout = running.stdout.iter().map(|pipe| (Source::Stdout, pipe.as_fd()));
                    let stderr = running.stderr.iter().map(|pipe| (Source::Stderr, pipe.as_fd()));
                    sources.extend(stdout.chain(stderr).map(|(source, fd)| (source, fd, PollFlags::POLLIN)));
                }
            }
        }
        kernel::wait(&sources, until)
    }

    fn serve(&mut self, source: Source) -> io::Result<()> {
        match source {
            Source::Worker => self.hear(),
            Source::Unread => {
                let before = self.unread.len();
                self.unread.flush(stdout())?;
                if let State::Over { until } = &mut self.state
                    && self.unread.len() < before
                {
                    *until = Instant::now() + IDLE_TIME;
                }
                Ok(())
            }
            Source::Signals => self.heed_signals(),
            Source::Input => {
                self.write_input();
                Ok(())
            }
            Source::Stdout | Source::Stderr => {
                self.pass_on(source);
                Ok(())
            }
        }
    }

    /// Takes what the worker says. An error means that there is no worker any more, or none of ours.
    fn hear(&mut self) -> io::Result<()> {
        match read(stdin(), &mut self.buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.decoder.push(&self.buffer[..count]),
            Err(Errno::EINTR | Errno::EAGAIN) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        while let Some(Frame { message, .. }) = self.decoder.next().map_err(io::Error::other)? {
            match (message, &mut self.state) {
                (ToSupervisor::Feed(time), _) => self.fed_until = Instant::now().checked_add(time),
                (ToSupervisor::Start(request), State::Waiting { .. }) => self.start(&request),
                (ToSupervisor::Input(bytes), State::Running(running)) => {
                    running.input_ends |= bytes.is_empty();
                    running.unwritten.tail().extend_from_slice(&bytes);
                    if running.unwritten.len() > MAX_INPUT {
                        return Err(io::ErrorKind::FileTooLarge.into());
                    }
                    self.write_input();
                }
                (ToSupervisor::Stop, State::Running(running)) => {
                    if running.kill_at.is_none() {
                        running.kill_at = Some(Instant::now() + running.grace);
                        signal_group(Signal::SIGTERM);
                    }
                }
                (ToSupervisor::Kill, State::Running(_)) => self.end(None),
                // They crossed the end of the command.
                (_, State::Over { .. }) => {}
                (ToSupervisor::Stop | ToSupervisor::Kill, State::Waiting { .. }) => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                (_, State::Waiting { .. } | State::Running(_)) => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, request: &Request) {
        let kills_before = if self.contained { memory::kills() } else { None };
        let mut child = match command::spawn(request) {
            Ok(child) => child,
            Err(refusal) => {
                self.say(FromSupervisor::Refused(refusal));
                self.state = State::Over { until: Instant::now() + IDLE_TIME };
                return;
            }
        };
        let input = child.stdin.take().filter(|input| set_nonblocking(input).is_ok());
        self.state = State::Running(Box::new(Running {
            process: i32::try_from(child.id()).unwrap_or_default(),
            input,
            unwritten: Outbox::default(),
            input_ends: false,
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            grace: Duration::from_millis(request.grace_ms),
            kill_at: None,
            kills_before,
        }));
    }

    fn write_input(&mut self) {
        let State::Running(running) = &mut self.state else { return };
        let Some(input) = &running.input else {
            running.unwritten = Outbox::default();
            return;
        };
        // A command need not read what it is given.
        let failed = running.unwritten.flush(input).is_err();
        if failed || (running.input_ends && running.unwritten.is_empty()) {
            running.input = None;
            running.unwritten = Outbox::default();
        }
    }

    /// Passes one piece of output on.
    fn pass_on(&mut self, source: Source) {
        let State::Running(running) = &mut self.state else { return };
        let count = match source {
            Source::Stderr => kernel::read_or_close(&mut running.stderr, &mut self.buffer),
            _ => kernel::read_or_close(&mut running.stdout, &mut self.buffer),
        };
        if count > 0 {
            let bytes = self.buffer[..count].to_vec();
            let message = match source {
                Source::Stderr => FromSupervisor::Stderr(bytes),
                _ => FromSupervisor::Stdout(bytes),
            };
            self.say(message);
        }
    }

    fn heed_signals(&mut self) -> io::Result<()> {
        while let Some(signal) = self.signals.read_signal()? {
            if i32::try_from(signal.ssi_signo) == Ok(ABANDON as i32) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        while let Collected::Gone(gone) = kernel::collect() {
            if matches!(&self.state, State::Running(running) if running.process == gone.process) {
                self.end(Some(gone));
            }
        }
        Ok(())
    }

    /// Ends everything and reports it: the command has ended (`how`), or is to be killed.
    fn end(&mut self, how: Option<Gone>) {
        let swept = processes::sweep(&self.signals, &BTreeSet::new());
        let State::Running(running) = &self.state else { return };
        let (process, kills_before) = (running.process, running.kills_before);
        let patience = if how.is_some() { DRAIN_AFTER_EXIT } else { DRAIN_AFTER_KILL };
        self.drain(Instant::now() + patience);
        let Swept { killed, gone, clean } = swept;
        let how = how.or_else(|| gone.into_iter().find(|gone| gone.process == process));
        let left_behind = killed.len() - usize::from(killed.contains(&process));
        self.say(FromSupervisor::Ended(End {
            status: how.map_or(ExitStatus::Signalled(Signal::SIGKILL as i32), |gone| gone.status),
            cpu_ms: how.map_or(0, |gone| u64::try_from(gone.cpu.as_millis()).unwrap_or(u64::MAX)),
            max_rss_kib: how.map_or(0, |gone| gone.max_rss_kib),
            left_behind: u32::try_from(left_behind).unwrap_or(u32::MAX),
            out_of_memory: kills_before.is_some_and(|before| memory::kills().is_some_and(|now| now > before)),
        }));
        self.state = State::Over { until: Instant::now() + IDLE_TIME };
        if !clean {
            self.flush_for(DRAIN_AFTER_EXIT);
            self.kill_all();
        }
    }

    /// Reads what the dead have left in the pipes.
    fn drain(&mut self, until: Instant) {
        let mut left = MAX_DRAINED;
        while left > 0 && Instant::now() < until {
            let State::Running(running) = &self.state else { return };
            let stdout = running.stdout.iter().map(|pipe| (Source::Stdout, pipe.as_fd(), PollFlags::POLLIN));
            let stderr = running.stderr.iter().map(|pipe| (Source::Stderr, pipe.as_fd(), PollFlags::POLLIN));
            let sources: Vec<_> = stdout.chain(stderr).collect();
            if sources.is_empty() {
                return;
            }
            let Ok(ready) = kernel::wait(&sources, Some(until)) else { return };
            for source in ready {
                let before = self.unread.len();
                self.pass_on(source);
                left = left.saturating_sub(self.unread.len().saturating_sub(before));
            }
        }
    }

    /// Kills everything that was started. What cannot be caught one by one is in our group, and dies with us.
    fn kill_all(&mut self) {
        if !processes::sweep(&self.signals, &BTreeSet::new()).clean {
            signal_group(Signal::SIGKILL);
        }
    }

    fn say(&mut self, message: FromSupervisor) {
        Frame { channel: 0, message }.encode(self.unread.tail());
        // A worker that is gone is seen by the end of its stream.
        let _unheard = self.unread.flush(stdout());
    }

    /// Writes the rest, if the worker takes it in time.
    fn flush_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let stdout = stdout();
        while !self.unread.is_empty() && Instant::now() < until {
            let waited = kernel::wait(&[((), stdout.as_fd(), PollFlags::POLLOUT)], Some(until));
            if waited.is_err() || self.unread.flush(&stdout).is_err() {
                return;
            }
        }
    }
}

/// We lead the group, and block whatever can be blocked.
fn signal_group(signal: Signal) {
    // Not by its id: as the first process of a namespace that would be 1, which means something else here.
    let _gone = kill(Pid::from_raw(0), signal);
}
