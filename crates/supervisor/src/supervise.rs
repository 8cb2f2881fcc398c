//! Runs one command until every process it started has ended.
//!
//! One thread and one `poll` loop: a worker that does not read, or a command that does not write, never
//! delays the next message, deadline or exited process. When the command ends or must end, the remaining work
//! is short and bounded: kill, drain the pipes, report.

mod capabilities;
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
    kernel::{self, ExitedChild, Reaped},
    processes::{self, SweepResult},
    write_buffer::{WriteBuffer, set_nonblocking},
};

/// Argument that says that the cgroup is a container's, so its OOM counter belongs to this command and few
/// others.
pub(crate) const CONTAINED: &str = "contained";
/// Signal of a guard whose worker is gone. Like [`ToSupervisor::Kill`], but nothing is reported.
const ABANDON: Signal = Signal::SIGUSR2;

/// How long to wait for the command to be sent, and for a worker that stopped reading the remaining output.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// How long to keep reading after the end, in case a foreign process holds the pipe open.
const DRAIN_AFTER_EXIT: Duration = Duration::from_secs(2);
const DRAIN_AFTER_KILL: Duration = Duration::from_millis(100);
/// Above this much buffered output, no more is read from the command (backpressure).
const MAX_BUFFERED_OUTPUT: usize = 256 * 1024;
/// The capacity of a pipe, unless root has raised it.
const MAX_DRAINED: usize = 1024 * 1024;
/// A worker that sends more unread input violates the protocol.
const MAX_PENDING_INPUT: usize = 16 * 1024 * 1024;
const CHUNK: usize = 32 * 1024;

pub(crate) fn run(contained: bool) -> io::Result<()> {
    // Hides the environment and the memory of this process from other processes of the user.
    prctl::set_dumpable(false)?;
    let signals = kernel::block_signals(&[Signal::SIGCHLD, ABANDON])?;
    match setsid() {
        // PID 1 of a namespace may already lead its session.
        Ok(_) | Err(Errno::EPERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    prctl::set_child_subreaper(true)?;
    set_nonblocking(stdout())?;
    let mut supervisor = Supervisor {
        contained,
        signals,
        decoder: Decoder::default(),
        to_worker: WriteBuffer::default(),
        watchdog_deadline: None,
        state: State::AwaitingCommand { until: Instant::now() + IDLE_TIME },
        buffer: vec![0; CHUNK],
    };
    supervisor.send(FromSupervisor::Ready);
    let outcome = supervisor.event_loop();
    // No process may be left, however the loop ended. A sweep first checks for children, so a second one
    // costs nothing.
    supervisor.kill_all();
    outcome
}

struct Supervisor {
    contained: bool,
    signals: SignalFd,
    decoder: Decoder,
    /// Frames waiting to be written to the worker.
    to_worker: WriteBuffer,
    watchdog_deadline: Option<Instant>,
    state: State,
    buffer: Vec<u8>,
}

enum State {
    /// Waiting for the command to run.
    AwaitingCommand {
        until: Instant,
    },
    Running(Box<Running>),
    /// The command has ended; waiting for the worker to read the rest.
    Flushing {
        until: Instant,
    },
}

struct Running {
    process: i32,
    input: Option<ChildStdin>,
    pending_input: WriteBuffer,
    /// Close stdin once everything is written.
    input_ends: bool,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    grace: Duration,
    kill_at: Option<Instant>,
    oom_kills_before: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Worker,
    WorkerWritable,
    Signals,
    Input,
    Stdout,
    Stderr,
}

impl Supervisor {
    /// Event loop; runs until everything is reported or the worker is gone.
    fn event_loop(&mut self) -> io::Result<()> {
        loop {
            let now = Instant::now();
            if self.watchdog_deadline.is_some_and(|until| until <= now) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match &self.state {
                State::AwaitingCommand { until } | State::Flushing { until } if *until <= now => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                State::Flushing { .. } if self.to_worker.is_empty() => return Ok(()),
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
        if !self.to_worker.is_empty() {
            sources.push((Source::WorkerWritable, stdout.as_fd(), PollFlags::POLLOUT));
        }
        sources.push((Source::Signals, self.signals.as_fd(), PollFlags::POLLIN));
        let mut until = self.watchdog_deadline;
        let mut earlier = |other: Instant| until = Some(until.map_or(other, |until| until.min(other)));
        match &self.state {
            State::AwaitingCommand { until } | State::Flushing { until } => earlier(*until),
            State::Running(running) => {
                running.kill_at.into_iter().for_each(earlier);
                if let Some(input) = &running.input
                    && !running.pending_input.is_empty()
                {
                    sources.push((Source::Input, input.as_fd(), PollFlags::POLLOUT));
                }
                if self.to_worker.len() < MAX_BUFFERED_OUTPUT {
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
            Source::Worker => self.read_worker(),
            Source::WorkerWritable => {
                let before = self.to_worker.len();
                self.to_worker.flush(stdout())?;
                if let State::Flushing { until } = &mut self.state
                    && self.to_worker.len() < before
                {
                    *until = Instant::now() + IDLE_TIME;
                }
                Ok(())
            }
            Source::Signals => self.handle_signals(),
            Source::Input => {
                self.write_input();
                Ok(())
            }
            Source::Stdout | Source::Stderr => {
                self.forward_output(source);
                Ok(())
            }
        }
    }

    /// Reads and handles messages of the worker. An error means that the worker is gone or violates the
    /// protocol.
    fn read_worker(&mut self) -> io::Result<()> {
        match read(stdin(), &mut self.buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.decoder.push(&self.buffer[..count]),
            Err(Errno::EINTR | Errno::EAGAIN) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        while let Some(Frame { message, .. }) = self.decoder.next().map_err(io::Error::other)? {
            match (message, &mut self.state) {
                (ToSupervisor::FeedWatchdog(time), _) => {
                    self.watchdog_deadline = Instant::now().checked_add(time)
                }
                (ToSupervisor::Start(request), State::AwaitingCommand { .. }) => self.start(&request),
                (ToSupervisor::Input(bytes), State::Running(running)) => {
                    running.input_ends |= bytes.is_empty();
                    running.pending_input.tail().extend_from_slice(&bytes);
                    if running.pending_input.len() > MAX_PENDING_INPUT {
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
                // Sent before the worker saw the end of the command.
                (_, State::Flushing { .. }) => {}
                (ToSupervisor::Stop | ToSupervisor::Kill, State::AwaitingCommand { .. }) => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                (_, State::AwaitingCommand { .. } | State::Running(_)) => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, request: &Request) {
        let oom_kills_before = if self.contained { memory::oom_kills() } else { None };
        let mut child = match command::spawn(request) {
            Ok(child) => child,
            Err(refusal) => {
                self.send(FromSupervisor::Refused(refusal));
                self.state = State::Flushing { until: Instant::now() + IDLE_TIME };
                return;
            }
        };
        let input = child.stdin.take().filter(|input| set_nonblocking(input).is_ok());
        self.state = State::Running(Box::new(Running {
            process: i32::try_from(child.id()).unwrap_or_default(),
            input,
            pending_input: WriteBuffer::default(),
            input_ends: false,
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            grace: Duration::from_millis(request.grace_ms),
            kill_at: None,
            oom_kills_before,
        }));
    }

    fn write_input(&mut self) {
        let State::Running(running) = &mut self.state else { return };
        let Some(input) = &running.input else {
            running.pending_input = WriteBuffer::default();
            return;
        };
        // A command need not read its stdin.
        let failed = running.pending_input.flush(input).is_err();
        if failed || (running.input_ends && running.pending_input.is_empty()) {
            running.input = None;
            running.pending_input = WriteBuffer::default();
        }
    }

    /// Forwards one chunk of output.
    fn forward_output(&mut self, source: Source) {
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
            self.send(message);
        }
    }

    fn handle_signals(&mut self) -> io::Result<()> {
        while let Some(signal) = self.signals.read_signal()? {
            if i32::try_from(signal.ssi_signo) == Ok(ABANDON as i32) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        while let Reaped::Child(child) = kernel::reap_child() {
            if matches!(&self.state, State::Running(running) if running.process == child.process) {
                self.end(Some(child));
            }
        }
        Ok(())
    }

    /// Kills every process and reports the end. `exited` is the command if it exited by itself; otherwise it
    /// is killed.
    fn end(&mut self, exited: Option<ExitedChild>) {
        let swept = processes::sweep(&self.signals, &BTreeSet::new());
        let State::Running(running) = &self.state else { return };
        let (process, oom_kills_before) = (running.process, running.oom_kills_before);
        let drain_time = if exited.is_some() { DRAIN_AFTER_EXIT } else { DRAIN_AFTER_KILL };
        self.drain(Instant::now() + drain_time);
        let SweepResult { killed, reaped, clean } = swept;
        let exited = exited.or_else(|| reaped.into_iter().find(|child| child.process == process));
        let left_behind = killed.len() - usize::from(killed.contains(&process));
        self.send(FromSupervisor::Ended(End {
            status: exited.map_or(ExitStatus::Signalled(Signal::SIGKILL as i32), |child| child.status),
            cpu_ms: exited.map_or(0, |child| u64::try_from(child.cpu.as_millis()).unwrap_or(u64::MAX)),
            max_rss_kib: exited.map_or(0, |child| child.max_rss_kib),
            left_behind: u32::try_from(left_behind).unwrap_or(u32::MAX),
            out_of_memory: oom_kills_before
                .is_some_and(|before| memory::oom_kills().is_some_and(|now| now > before)),
        }));
        self.state = State::Flushing { until: Instant::now() + IDLE_TIME };
        if !clean {
            self.flush_for(DRAIN_AFTER_EXIT);
            self.kill_all();
        }
    }

    /// Reads what the killed processes left in the pipes.
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
                let before = self.to_worker.len();
                self.forward_output(source);
                left = left.saturating_sub(self.to_worker.len().saturating_sub(before));
            }
        }
    }

    /// Kills every descendant. Processes that fork too fast to be killed one by one are in this process group
    /// and die with it.
    fn kill_all(&mut self) {
        if !processes::sweep(&self.signals, &BTreeSet::new()).clean {
            signal_group(Signal::SIGKILL);
        }
    }

    fn send(&mut self, message: FromSupervisor) {
        Frame { channel: 0, message }.encode(self.to_worker.tail());
        // A closed stdout is not handled here: the end of stdin reports that the worker is gone.
        let _ignored = self.to_worker.flush(stdout());
    }

    /// Writes the remaining frames, if the worker reads them in time.
    fn flush_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let stdout = stdout();
        while !self.to_worker.is_empty() && Instant::now() < until {
            let waited = kernel::wait(&[((), stdout.as_fd(), PollFlags::POLLOUT)], Some(until));
            if waited.is_err() || self.to_worker.flush(&stdout).is_err() {
                return;
            }
        }
    }
}

/// Signals this process's own group, which it leads. The process itself blocks every signal that can be
/// blocked.
fn signal_group(signal: Signal) {
    // 0 instead of the group's id: for PID 1 of a namespace the id would be 1, which has another meaning for
    // `kill`.
    let _gone = kill(Pid::from_raw(0), signal);
}
