//! PID 1 of a container: starts one supervisor per command and forwards messages between them and the worker.
//!
//! The container lives as long as this process: as long as the worker holds the other end of its stdin open
//! and keeps feeding the watchdog.

mod channel;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, stdin, stdout},
    os::fd::AsFd,
    time::Instant,
};

use nix::{
    errno::Errno,
    poll::PollFlags,
    sys::{
        prctl,
        signal::{Signal, killpg},
        signalfd::SignalFd,
    },
    unistd::{Pid, read},
};
use remuda_supervisor::{
    Decoder, End, ExitStatus, Frame, FromSupervisor, Refusal, RefusalKind, Request, ToSupervisor,
};

use self::channel::Channel;
use crate::{
    kernel::{self, Reaped},
    processes,
    write_buffer::{WriteBuffer, set_nonblocking},
};

const MAX_CHANNELS: usize = 64;
/// Above this much buffered output, no more is read from the commands (backpressure).
const MAX_BUFFERED_OUTPUT: usize = 1024 * 1024;
const CHUNK: usize = 64 * 1024;

pub(crate) fn run() -> io::Result<()> {
    prctl::set_dumpable(false)?;
    let signals = kernel::block_signals(&[Signal::SIGCHLD])?;
    // PID 1 of a namespace adopts orphans by itself; elsewhere (in tests) the process must become a
    // subreaper.
    prctl::set_child_subreaper(true)?;
    set_nonblocking(stdout())?;
    let mut init = Init {
        signals,
        decoder: Decoder::default(),
        to_worker: WriteBuffer::default(),
        watchdog_deadline: None,
        channels: BTreeMap::new(),
        supervisors: BTreeSet::new(),
        buffer: vec![0; CHUNK],
    };
    init.send(0, FromSupervisor::Ready);
    // Returning ends this process and thereby the container. Where it is not PID 1, the supervisors see their
    // stdin end.
    init.event_loop()
}

struct Init {
    signals: SignalFd,
    decoder: Decoder,
    /// Frames waiting to be written to the worker.
    to_worker: WriteBuffer,
    watchdog_deadline: Option<Instant>,
    /// Commands whose end was not has_ended yet.
    channels: BTreeMap<u32, Channel>,
    /// Supervisors that were not reaped yet. All other children are adopted orphans.
    supervisors: BTreeSet<i32>,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Worker,
    WorkerWritable,
    Signals,
    /// The stdin of a supervisor accepts more bytes.
    SupervisorWritable(u32),
    /// A supervisor wrote something.
    SupervisorOutput(u32),
}

impl Init {
    /// Event loop; runs until the worker is gone.
    fn event_loop(&mut self) -> io::Result<()> {
        loop {
            if self.watchdog_deadline.is_some_and(|until| until <= Instant::now()) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            for source in self.wait()? {
                match source {
                    Source::Worker => self.read_worker()?,
                    Source::WorkerWritable => self.to_worker.flush(stdout())?,
                    Source::Signals => self.reap_supervisors()?,
                    Source::SupervisorWritable(number) => {
                        if let Some(channel) = self.channels.get_mut(&number) {
                            channel.flush();
                        }
                    }
                    Source::SupervisorOutput(number) => self.forward(number),
                }
            }
        }
    }

    fn wait(&self) -> nix::Result<Vec<Source>> {
        let (stdin, stdout) = (stdin(), stdout());
        let mut sources = vec![
            (Source::Worker, stdin.as_fd(), PollFlags::POLLIN),
            (Source::Signals, self.signals.as_fd(), PollFlags::POLLIN),
        ];
        if !self.to_worker.is_empty() {
            sources.push((Source::WorkerWritable, stdout.as_fd(), PollFlags::POLLOUT));
        }
        for (number, channel) in &self.channels {
            if let Some(pipe) = channel.pending_write() {
                sources.push((Source::SupervisorWritable(*number), pipe, PollFlags::POLLOUT));
            }
            if self.to_worker.len() < MAX_BUFFERED_OUTPUT {
                sources.push((Source::SupervisorOutput(*number), channel.output(), PollFlags::POLLIN));
            }
        }
        kernel::wait(&sources, self.watchdog_deadline)
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
        while let Some(Frame { channel, message }) = self.decoder.next().map_err(io::Error::other)? {
            match message {
                // When it expires, this process ends and with it every supervisor, so the supervisors need no
                // watchdog.
                ToSupervisor::FeedWatchdog(time) => self.watchdog_deadline = Instant::now().checked_add(time),
                ToSupervisor::Start(request) => self.start(channel, request)?,
                message => {
                    // A missing channel has ended in the meantime.
                    if let Some(channel) = self.channels.get_mut(&channel) {
                        channel.send(message)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, number: u32, request: Box<Request>) -> io::Result<()> {
        if self.channels.contains_key(&number) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let spawned = if self.channels.len() < MAX_CHANNELS {
            Channel::open()
        } else {
            Err(io::Error::other(format!("{MAX_CHANNELS} commands are running")))
        };
        match spawned {
            Ok(mut channel) => {
                self.supervisors.insert(channel.supervisor());
                channel.send(ToSupervisor::Start(request))?;
                self.channels.insert(number, channel);
            }
            Err(error) => {
                let detail = format!("no supervisor can be started: {error}");
                let refusal = Refusal { kind: RefusalKind::OutOfResources, detail };
                self.send(number, FromSupervisor::Refused(refusal));
            }
        }
        Ok(())
    }

    /// Forwards messages of a supervisor to the worker.
    fn forward(&mut self, number: u32) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let (messages, over) = channel.receive(&mut self.buffer);
        let mut has_ended = false;
        for message in messages {
            has_ended |= matches!(message, FromSupervisor::Ended(_) | FromSupervisor::Refused(_));
            if message != FromSupervisor::Ready {
                self.send(number, message);
            }
        }
        if has_ended {
            self.channels.remove(&number);
        } else if over {
            self.handle_lost_supervisor(number);
        }
    }

    /// Handles a supervisor that was killed: its processes must be killed here.
    fn handle_lost_supervisor(&mut self, number: u32) {
        let Some(channel) = self.channels.remove(&number) else { return };
        let supervisor = Pid::from_raw(channel.supervisor());
        let _gone = killpg(supervisor, Signal::SIGKILL);
        self.supervisors.remove(&supervisor.as_raw());
        // Processes of the remaining supervisors are spared.
        let swept = processes::sweep(&self.signals, &self.supervisors);
        for child in swept.reaped {
            self.supervisors.remove(&child.process);
        }
        self.send(
            number,
            FromSupervisor::Ended(End {
                status: ExitStatus::Signalled(Signal::SIGKILL as i32),
                cpu_ms: 0,
                max_rss_kib: 0,
                left_behind: u32::try_from(swept.killed.len()).unwrap_or(u32::MAX),
                out_of_memory: false,
            }),
        );
    }

    fn reap_supervisors(&mut self) -> io::Result<()> {
        while self.signals.read_signal()?.is_some() {}
        while let Reaped::Child(child) = kernel::reap_child() {
            // The exit status does not matter: the supervisor's output reports how the command ended.
            self.supervisors.remove(&child.process);
        }
        Ok(())
    }

    fn send(&mut self, channel: u32, message: FromSupervisor) {
        Frame { channel, message }.encode(self.to_worker.tail());
        // A closed stdout is not handled here: the end of stdin reports that the worker is gone.
        let _ignored = self.to_worker.flush(stdout());
    }
}
