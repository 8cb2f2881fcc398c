//! The first process of a container: it starts a supervisor per command and passes their messages on.
//!
//! The container lives as long as this process does, which is as long as its worker holds the other end of its input and
//! keeps its promises.

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
    kernel::{self, Collected},
    outbox::{Outbox, set_nonblocking},
    processes,
};

const MAX_CHANNELS: usize = 64;
/// Beyond this much unread output the commands have to wait.
const MAX_UNREAD: usize = 1024 * 1024;
const CHUNK: usize = 64 * 1024;

pub(crate) fn run() -> io::Result<()> {
    prctl::set_dumpable(false)?;
    let signals = kernel::take_signals(&[Signal::SIGCHLD])?;
    // The first process of a namespace adopts orphans anyway; elsewhere, in tests, it has to ask for them.
    prctl::set_child_subreaper(true)?;
    set_nonblocking(stdout())?;
    let mut init = Init {
        signals,
        decoder: Decoder::default(),
        unread: Outbox::default(),
        fed_until: None,
        channels: BTreeMap::new(),
        supervisors: BTreeSet::new(),
        buffer: vec![0; CHUNK],
    };
    init.say(0, FromSupervisor::Ready);
    // Returning ends this process, and with it the container. Where it is not the first process, the supervisors see
    // their input end.
    init.follow()
}

struct Init {
    signals: SignalFd,
    decoder: Decoder,
    /// For the worker.
    unread: Outbox,
    fed_until: Option<Instant>,
    /// Commands that were not reported to have ended.
    channels: BTreeMap<u32, Channel>,
    /// Every supervisor that was not collected. Other children are orphans.
    supervisors: BTreeSet<i32>,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Worker,
    Unread,
    Signals,
    /// To a supervisor.
    Unwritten(u32),
    /// From a supervisor.
    Output(u32),
}

impl Init {
    /// Follows everyone until the worker is gone.
    fn follow(&mut self) -> io::Result<()> {
        loop {
            if self.fed_until.is_some_and(|until| until <= Instant::now()) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            for source in self.wait()? {
                match source {
                    Source::Worker => self.hear()?,
                    Source::Unread => self.unread.flush(stdout())?,
                    Source::Signals => self.collect()?,
                    Source::Unwritten(number) => {
                        if let Some(channel) = self.channels.get_mut(&number) {
                            channel.flush();
                        }
                    }
                    Source::Output(number) => self.pass_on(number),
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
        if !self.unread.is_empty() {
            sources.push((Source::Unread, stdout.as_fd(), PollFlags::POLLOUT));
        }
        for (number, channel) in &self.channels {
            if let Some(pipe) = channel.wants_to_write() {
                sources.push((Source::Unwritten(*number), pipe, PollFlags::POLLOUT));
            }
            if self.unread.len() < MAX_UNREAD {
                sources.push((Source::Output(*number), channel.output(), PollFlags::POLLIN));
            }
        }
        kernel::wait(&sources, self.fed_until)
    }

    /// Takes what the worker says. An error means that there is no worker any more, or none of ours.
    fn hear(&mut self) -> io::Result<()> {
        match read(stdin(), &mut self.buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.decoder.push(&self.buffer[..count]),
            Err(Errno::EINTR | Errno::EAGAIN) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        while let Some(Frame { channel, message }) = self.decoder.next().map_err(io::Error::other)? {
            match message {
                // If it is not kept, everything here ends at once; the supervisors need not count, too.
                ToSupervisor::Feed(time) => self.fed_until = Instant::now().checked_add(time),
                ToSupervisor::Start(request) => self.start(channel, request)?,
                message => {
                    // One that is not there has ended meanwhile.
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
                self.say(number, FromSupervisor::Refused(refusal));
            }
        }
        Ok(())
    }

    /// Passes a piece of what a supervisor says on to the worker.
    fn pass_on(&mut self, number: u32) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let (messages, over) = channel.receive(&mut self.buffer);
        let mut reported = false;
        for message in messages {
            reported |= matches!(message, FromSupervisor::Ended(_) | FromSupervisor::Refused(_));
            if message != FromSupervisor::Ready {
                self.say(number, message);
            }
        }
        if reported {
            self.channels.remove(&number);
        } else if over {
            self.lose(number);
        }
    }

    /// A supervisor was killed: what it held is ours to kill.
    fn lose(&mut self, number: u32) {
        let Some(channel) = self.channels.remove(&number) else { return };
        let supervisor = Pid::from_raw(channel.supervisor());
        let _gone = killpg(supervisor, Signal::SIGKILL);
        self.supervisors.remove(&supervisor.as_raw());
        // The orphans of a living supervisor are not ours.
        let swept = processes::sweep(&self.signals, &self.supervisors);
        for gone in swept.gone {
            self.supervisors.remove(&gone.process);
        }
        self.say(
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

    fn collect(&mut self) -> io::Result<()> {
        while self.signals.read_signal()?.is_some() {}
        while let Collected::Gone(gone) = kernel::collect() {
            // How it ended does not matter: its output says what became of the command.
            self.supervisors.remove(&gone.process);
        }
        Ok(())
    }

    fn say(&mut self, channel: u32, message: FromSupervisor) {
        Frame { channel, message }.encode(self.unread.tail());
        // A worker that is gone is seen by the end of its stream.
        let _unheard = self.unread.flush(stdout());
    }
}
