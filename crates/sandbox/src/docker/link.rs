//! The connection to a container's first process: many commands over one attached stream.
//!
//! Two tasks hold the stream's halves. When the link is dropped they end, the engine closes the container's input, and
//! with it everything in there ends: a worker that dies takes its containers along.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use bollard::container::{AttachContainerResults, LogOutput};
use futures::{Stream, StreamExt};
use remuda_domain::error::{Code, Error, Result};
use remuda_supervisor::{Decoder, Frame, FromSupervisor, Limits, Program, Request, ToSupervisor};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::create::SUPERVISOR;
use crate::{path::shown, supervised::Wire};

/// Commands at once in one container; its first process allows a few more.
const MAX_CHANNELS: usize = 60;
/// How long a command waits for others to end.
const CHANNEL_PATIENCE: Duration = Duration::from_secs(10);
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Messages that wait on either way of a channel. Output comes in pieces of at most 64 KiB.
const QUEUE: usize = 8;
/// The channel of the container itself.
const CONTROL: u32 = 0;

#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct Shared {
    channels: Mutex<Channels>,
    outgoing: mpsc::Sender<Frame<ToSupervisor>>,
    urgent: Mutex<Urgent>,
    wake: Notify,
    free: Arc<Semaphore>,
    ready: CancellationToken,
    /// Nothing more comes or goes.
    gone: CancellationToken,
    why: OnceLock<String>,
}

#[derive(Debug, Default)]
struct Channels {
    last: u32,
    open: HashMap<u32, Open>,
}

/// A command that has not ended, whether somebody still listens or not.
#[derive(Debug)]
struct Open {
    messages: mpsc::Sender<FromSupervisor>,
    progress: Progress,
    _place: OwnedSemaphorePermit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Its first message may still wait to be written.
    Waiting,
    Started,
    Killed,
}

/// What may not wait behind other messages. Bounded by the number of channels.
#[derive(Debug, Default)]
struct Urgent {
    kills: Vec<u32>,
    fed_until: Option<Instant>,
}

impl Link {
    /// Takes over an attached stream.
    pub(super) fn new(attached: AttachContainerResults, tasks: &TaskTracker) -> Self {
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared {
            channels: Mutex::default(),
            outgoing,
            urgent: Mutex::default(),
            wake: Notify::new(),
            free: Arc::new(Semaphore::new(MAX_CHANNELS)),
            ready: CancellationToken::new(),
            gone: CancellationToken::new(),
            why: OnceLock::new(),
        });
        let stop = shared.gone.clone();
        tasks.spawn(read(Arc::clone(&shared), attached.output));
        tasks.spawn(write(Arc::clone(&shared), attached.input, queue));
        Self { shared, _stop: stop.drop_guard() }
    }

    /// Waits until the first process says that it is there.
    pub(super) async fn ready(&self, patience: Duration) -> Result<()> {
        let said = async {
            tokio::select! {
                () = self.shared.ready.cancelled() => Ok(()),
                () = self.shared.gone.cancelled() => Err(self.shared.error()),
            }
        };
        let late = || Err(Error::unavailable("the container's first process does not answer"));
        timeout(patience, said).await.unwrap_or_else(|_| late())
    }

    pub(super) fn alive(&self) -> bool {
        !self.shared.gone.is_cancelled()
    }

    pub(super) fn close(&self, why: &str) {
        self.shared.end(why.to_owned());
    }

    /// Promises, without waiting, another such call before that time.
    pub(super) fn feed(&self, until: Instant) {
        self.shared.urgent().fed_until = Some(until);
        self.shared.wake.notify_one();
    }

    /// Waits until everything said so far was heard: messages are answered in order.
    pub(super) async fn answer(&self) -> Result<()> {
        let mut channel = self.open().await?;
        // Our own program without arguments does nothing.
        let request = Request {
            program: Program::Argv(vec![SUPERVISOR.to_owned()]),
            cwd: None,
            env: Vec::new(),
            has_input: false,
            limits: Limits::default(),
            confinement: None,
            grace_ms: 0,
        };
        let answered = async {
            channel.send(ToSupervisor::Start(Box::new(request))).await?;
            while !is_last(&channel.receive().await?) {}
            Ok(())
        };
        let late = || Err(Error::unavailable("the container's first process does not answer"));
        timeout(ANSWER_PATIENCE, answered).await.unwrap_or_else(|_| late())
    }

    /// A channel for one command. Dropping it kills the command.
    pub(super) async fn open(&self) -> Result<Channel> {
        if !self.alive() {
            return Err(self.shared.error());
        }
        let place = timeout(CHANNEL_PATIENCE, Arc::clone(&self.shared.free).acquire_owned())
            .await
            .ok()
            .and_then(Result::ok)
            .ok_or_else(|| {
                let message = format!("{MAX_CHANNELS} commands of this sandbox run already");
                Error::new(Code::Overloaded, message)
            })?;
        let (sender, messages) = mpsc::channel(QUEUE);
        let mut channels = self.shared.channels();
        // After this look under the lock no channel is left out by the end.
        if !self.alive() {
            return Err(self.shared.error());
        }
        channels.last = channels.last.wrapping_add(1).max(CONTROL + 1);
        while channels.open.contains_key(&channels.last) {
            channels.last = channels.last.wrapping_add(1).max(CONTROL + 1);
        }
        let id = channels.last;
        channels.open.insert(id, Open { messages: sender, progress: Progress::Waiting, _place: place });
        Ok(Channel { id, messages, shared: Arc::clone(&self.shared), ended: false })
    }
}

/// The two ways of one command.
#[derive(Debug)]
pub(super) struct Channel {
    id: u32,
    messages: mpsc::Receiver<FromSupervisor>,
    shared: Arc<Shared>,
    ended: bool,
}

impl Channel {
    /// Whether the command is over, by the other side's word.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether nothing waits to be received.
    pub(super) fn is_quiet(&self) -> bool {
        self.messages.is_empty() && !self.messages.is_closed()
    }
}

impl Wire for Channel {
    async fn send(&mut self, message: ToSupervisor) -> Result<()> {
        if matches!(message, ToSupervisor::Kill) {
            self.shared.kill(self.id);
            return Ok(());
        }
        let frame = Frame { channel: self.id, message };
        tokio::select! {
            sent = self.shared.outgoing.send(frame) => sent.map_err(|_| self.shared.error()),
            () = self.shared.gone.cancelled() => Err(self.shared.error()),
        }
    }

    async fn receive(&mut self) -> Result<FromSupervisor> {
        let message = self.messages.recv().await.ok_or_else(|| self.shared.error())?;
        self.ended |= is_last(&message);
        Ok(message)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.ended {
            self.shared.kill(self.id);
        }
    }
}

fn is_last(message: &FromSupervisor) -> bool {
    matches!(message, FromSupervisor::Ended(_) | FromSupervisor::Refused(_))
}

impl Shared {
    fn channels(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn urgent(&self) -> MutexGuard<'_, Urgent> {
        self.urgent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill(&self, channel: u32) {
        let mut urgent = self.urgent();
        if !urgent.kills.contains(&channel) {
            urgent.kills.push(channel);
        }
        drop(urgent);
        self.wake.notify_one();
    }

    fn end(&self, why: String) {
        // The first reason is the true one.
        let _later = self.why.set(why);
        self.gone.cancel();
        self.channels().open.clear();
    }

    fn error(&self) -> Error {
        let why = self.why.get().map_or("its connection ended", String::as_str);
        Error::unavailable(format!("the sandbox is gone: {why}"))
    }

    /// The bytes of what may not wait, if there is something.
    fn take_urgent(&self) -> Option<Vec<u8>> {
        let urgent = std::mem::take(&mut *self.urgent());
        let mut bytes = Vec::new();
        for channel in urgent.kills {
            let mut channels = self.channels();
            // One that has ended meanwhile needs no killing, and its number is unknown over there.
            let Some(open) = channels.open.get_mut(&channel) else { continue };
            if open.progress == Progress::Waiting {
                // What it has in the queue is then left out.
                channels.open.remove(&channel);
            } else {
                open.progress = Progress::Killed;
                Frame { channel, message: ToSupervisor::Kill }.encode(&mut bytes);
            }
        }
        if let Some(until) = urgent.fed_until {
            let time = until.saturating_duration_since(Instant::now());
            Frame { channel: CONTROL, message: ToSupervisor::Feed(time) }.encode(&mut bytes);
        }
        (!bytes.is_empty()).then_some(bytes)
    }

    /// Whether a message from the queue still counts: a kill may have overtaken it.
    fn counts(&self, channel: u32) -> bool {
        match self.channels().open.get_mut(&channel) {
            Some(open) if open.progress != Progress::Killed => {
                open.progress = Progress::Started;
                true
            }
            _ => false,
        }
    }
}

async fn read(
    shared: Arc<Shared>,
    output: impl Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send,
) {
    let mut output = std::pin::pin!(output);
    let mut decoder = Decoder::default();
    let why = loop {
        let piece = tokio::select! {
            () = shared.gone.cancelled() => return,
            piece = output.next() => piece,
        };
        match piece {
            Some(Ok(LogOutput::StdOut { message })) => {
                if let Err(why) = dispatch(&shared, &mut decoder, &message).await {
                    break why;
                }
            }
            // Nothing of ours.
            Some(Ok(_)) => {}
            Some(Err(error)) => break format!("its connection broke: {}", shown(&error.to_string())),
            None => break "its container ended".to_owned(),
        }
    };
    shared.end(why);
}

async fn dispatch(shared: &Shared, decoder: &mut Decoder, bytes: &[u8]) -> Result<(), String> {
    decoder.push(bytes);
    while let Some(Frame { channel, message }) = decoder.next().map_err(|error| error.to_string())? {
        if channel == CONTROL {
            if message == FromSupervisor::Ready {
                shared.ready.cancel();
            }
            continue;
        }
        let listener = if is_last(&message) {
            shared.channels().open.remove(&channel).map(|open| open.messages)
        } else {
            shared.channels().open.get(&channel).map(|open| open.messages.clone())
        };
        if let Some(listener) = listener {
            tokio::select! {
                // One who no longer listens needs no message.
                _ = listener.send(message) => {}
                () = shared.gone.cancelled() => return Ok(()),
            }
        }
    }
    Ok(())
}

async fn write(
    shared: Arc<Shared>,
    mut input: impl AsyncWrite + Send + Unpin,
    mut queue: mpsc::Receiver<Frame<ToSupervisor>>,
) {
    loop {
        let bytes = match shared.take_urgent() {
            Some(bytes) => bytes,
            None => tokio::select! {
                () = shared.gone.cancelled() => return,
                () = shared.wake.notified() => continue,
                frame = queue.recv() => match frame {
                    Some(frame) if shared.counts(frame.channel) => frame.to_bytes(),
                    Some(_) => continue,
                    None => return,
                },
            },
        };
        let written = async {
            input.write_all(&bytes).await?;
            input.flush().await
        };
        tokio::select! {
            () = shared.gone.cancelled() => return,
            written = written => if let Err(error) = written {
                return shared.end(format!("its connection broke: {error}"));
            },
        }
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
