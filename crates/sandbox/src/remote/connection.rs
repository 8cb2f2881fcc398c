//! Connection to a container's PID 1: many commands over one attached stream.
//!
//! Two tasks own the halves of the stream. When the connection is dropped they end, the engine closes the
//! container's stdin, and everything in the container ends. So a worker that dies takes its containers along.

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

use crate::docker::create::SUPERVISOR;
use crate::{path::display_safe, supervised_command::SupervisorConnection};

/// Concurrent commands in one container; its PID 1 allows a few more.
const MAX_CHANNELS: usize = 60;
/// How long a command waits for a free channel.
const CHANNEL_TIMEOUT: Duration = Duration::from_secs(10);
const ROUND_TRIP_TIMEOUT: Duration = Duration::from_secs(10);
/// Queued messages per direction of a channel. Output comes in chunks of at most 64 KiB.
const QUEUE: usize = 8;
/// The channel of PID 1 itself.
const CONTROL: u32 = 0;

#[derive(Debug)]
pub(crate) struct ContainerConnection {
    shared: Arc<Shared>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct Shared {
    channels: Mutex<Channels>,
    outgoing: mpsc::Sender<Frame<ToSupervisor>>,
    priority: Mutex<PriorityMessages>,
    wake: Notify,
    channel_permits: Arc<Semaphore>,
    ready: CancellationToken,
    /// The connection is closed.
    closed: CancellationToken,
    close_reason: OnceLock<String>,
}

#[derive(Debug, Default)]
struct Channels {
    last: u32,
    open: HashMap<u32, OpenChannel>,
}

/// A command that has not ended, whether or not its messages are still read.
#[derive(Debug)]
struct OpenChannel {
    messages: mpsc::Sender<FromSupervisor>,
    progress: Progress,
    _permit: OwnedSemaphorePermit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Nothing was written yet.
    Queued,
    Started,
    Killed,
}

/// Messages that overtake the queue. Bounded by the number of channels.
#[derive(Debug, Default)]
struct PriorityMessages {
    kills: Vec<u32>,
    watchdog_deadline: Option<Instant>,
}

impl ContainerConnection {
    /// Takes ownership of an attached stream.
    pub(crate) fn new(attached: AttachContainerResults, tasks: &TaskTracker) -> Self {
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared {
            channels: Mutex::default(),
            outgoing,
            priority: Mutex::default(),
            wake: Notify::new(),
            channel_permits: Arc::new(Semaphore::new(MAX_CHANNELS)),
            ready: CancellationToken::new(),
            closed: CancellationToken::new(),
            close_reason: OnceLock::new(),
        });
        let stop = shared.closed.clone();
        tasks.spawn(read(Arc::clone(&shared), attached.output));
        tasks.spawn(write(Arc::clone(&shared), attached.input, queue));
        Self { shared, _stop: stop.drop_guard() }
    }

    /// Waits until PID 1 reports that it is ready.
    pub(crate) async fn ready(&self, time_limit: Duration) -> Result<()> {
        let ready = async {
            tokio::select! {
                () = self.shared.ready.cancelled() => Ok(()),
                () = self.shared.closed.cancelled() => Err(self.shared.error()),
            }
        };
        let late = || Err(Error::unavailable("the container's first process does not answer"));
        timeout(time_limit, ready).await.unwrap_or_else(|_| late())
    }

    pub(crate) fn alive(&self) -> bool {
        !self.shared.closed.is_cancelled()
    }

    pub(crate) fn close(&self, close_reason: &str) {
        self.shared.shut_down(close_reason.to_owned());
    }

    /// Feeds the watchdog until that time, without waiting.
    pub(crate) fn feed_watchdog(&self, until: Instant) {
        self.shared.priority().watchdog_deadline = Some(until);
        self.shared.wake.notify_one();
    }

    /// Waits until all messages sent so far were handled, which happens in order.
    pub(crate) async fn round_trip(&self) -> Result<()> {
        let mut channel = self.open().await?;
        // The supervisor program without arguments does nothing.
        let request = Request {
            program: Program::Argv(vec![SUPERVISOR.to_owned()]),
            cwd: None,
            env: Vec::new(),
            has_input: false,
            limits: Limits::default(),
            confinement: None,
            grace_ms: 0,
        };
        let handled = async {
            channel.send(ToSupervisor::Start(Box::new(request))).await?;
            while !is_last(&channel.receive().await?) {}
            Ok(())
        };
        let late = || Err(Error::unavailable("the container's first process does not answer"));
        timeout(ROUND_TRIP_TIMEOUT, handled).await.unwrap_or_else(|_| late())
    }

    /// Opens a channel for one command. Dropping it kills the command.
    pub(crate) async fn open(&self) -> Result<Channel> {
        if !self.alive() {
            return Err(self.shared.error());
        }
        let permit = timeout(CHANNEL_TIMEOUT, Arc::clone(&self.shared.channel_permits).acquire_owned())
            .await
            .ok()
            .and_then(Result::ok)
            .ok_or_else(|| {
                let message = format!("{MAX_CHANNELS} commands of this sandbox are already running");
                Error::new(Code::Overloaded, message)
            })?;
        let (sender, messages) = mpsc::channel(QUEUE);
        let mut channels = self.shared.channels();
        // Checked again under the lock: a channel added after `end` cleared the map would never be closed.
        if !self.alive() {
            return Err(self.shared.error());
        }
        channels.last = channels.last.wrapping_add(1).max(CONTROL + 1);
        while channels.open.contains_key(&channels.last) {
            channels.last = channels.last.wrapping_add(1).max(CONTROL + 1);
        }
        let id = channels.last;
        channels
            .open
            .insert(id, OpenChannel { messages: sender, progress: Progress::Queued, _permit: permit });
        Ok(Channel { id, messages, shared: Arc::clone(&self.shared), ended: false })
    }
}

/// The channel of one command.
#[derive(Debug)]
pub(crate) struct Channel {
    id: u32,
    messages: mpsc::Receiver<FromSupervisor>,
    shared: Arc<Shared>,
    ended: bool,
}

impl Channel {
    /// Whether the end of the command was received.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether no message is waiting and the channel is open.
    pub(crate) fn is_quiet(&self) -> bool {
        self.messages.is_empty() && !self.messages.is_closed()
    }
}

impl SupervisorConnection for Channel {
    async fn send(&mut self, message: ToSupervisor) -> Result<()> {
        if matches!(message, ToSupervisor::Kill) {
            self.shared.kill(self.id);
            return Ok(());
        }
        let frame = Frame { channel: self.id, message };
        tokio::select! {
            sent = self.shared.outgoing.send(frame) => sent.map_err(|_| self.shared.error()),
            () = self.shared.closed.cancelled() => Err(self.shared.error()),
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

    fn priority(&self) -> MutexGuard<'_, PriorityMessages> {
        self.priority.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill(&self, channel: u32) {
        let mut priority = self.priority();
        if !priority.kills.contains(&channel) {
            priority.kills.push(channel);
        }
        drop(priority);
        self.wake.notify_one();
    }

    fn shut_down(&self, close_reason: String) {
        // The first reason is the cause.
        let _later = self.close_reason.set(close_reason);
        self.closed.cancel();
        self.channels().open.clear();
    }

    fn error(&self) -> Error {
        let close_reason = self.close_reason.get().map_or("its connection ended", String::as_str);
        Error::unavailable(format!("the sandbox is gone: {close_reason}"))
    }

    /// Encodes the pending priority messages, if there are any.
    fn take_priority(&self) -> Option<Vec<u8>> {
        let priority = std::mem::take(&mut *self.priority());
        let mut bytes = Vec::new();
        for channel in priority.kills {
            let mut channels = self.channels();
            // An ended command needs no kill, and PID 1 no longer knows its channel.
            let Some(open) = channels.open.get_mut(&channel) else { continue };
            if open.progress == Progress::Queued {
                // Its queued messages are then skipped.
                channels.open.remove(&channel);
            } else {
                open.progress = Progress::Killed;
                Frame { channel, message: ToSupervisor::Kill }.encode(&mut bytes);
            }
        }
        if let Some(until) = priority.watchdog_deadline {
            let time = until.saturating_duration_since(Instant::now());
            Frame { channel: CONTROL, message: ToSupervisor::FeedWatchdog(time) }.encode(&mut bytes);
        }
        (!bytes.is_empty()).then_some(bytes)
    }

    /// Whether a queued message must still be sent: a kill may have overtaken it.
    fn should_send(&self, channel: u32) -> bool {
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
    let close_reason = loop {
        let chunk = tokio::select! {
            () = shared.closed.cancelled() => return,
            chunk = output.next() => chunk,
        };
        match chunk {
            Some(Ok(LogOutput::StdOut { message })) => {
                if let Err(close_reason) = dispatch(&shared, &mut decoder, &message).await {
                    break close_reason;
                }
            }
            // Not written by the supervisor.
            Some(Ok(_)) => {}
            Some(Err(error)) => break format!("its connection broke: {}", display_safe(&error.to_string())),
            None => break "its container ended".to_owned(),
        }
    };
    shared.shut_down(close_reason);
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
        let receiver = if is_last(&message) {
            shared.channels().open.remove(&channel).map(|open| open.messages)
        } else {
            shared.channels().open.get(&channel).map(|open| open.messages.clone())
        };
        if let Some(receiver) = receiver {
            tokio::select! {
                // A dropped receiver needs no message.
                _ = receiver.send(message) => {}
                () = shared.closed.cancelled() => return Ok(()),
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
        let bytes = match shared.take_priority() {
            Some(bytes) => bytes,
            None => tokio::select! {
                () = shared.closed.cancelled() => return,
                () = shared.wake.notified() => continue,
                frame = queue.recv() => match frame {
                    Some(frame) if shared.should_send(frame.channel) => frame.to_bytes(),
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
            () = shared.closed.cancelled() => return,
            written = written => if let Err(error) = written {
                return shared.shut_down(format!("its connection broke: {error}"));
            },
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
