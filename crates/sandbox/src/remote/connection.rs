//! Connection to the first process of an instance: many commands over one byte stream.
//!
//! Two tasks own the halves of the stream. When the connection is dropped they end, the stream is closed, and
//! everything in the instance ends. So a worker that dies takes its instances along.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::error::{Code, Error, Result};
use remuda_supervisor::{Decoder, Frame, FromSupervisor, Limits, Program, Request, ToSupervisor};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt},
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::byte_stream::ByteStream;
use crate::{path::display_safe, supervised_command::SupervisorConnection};

/// Concurrent commands in one instance; its first process allows a few more.
const MAX_CHANNELS: usize = 60;
/// How long a command waits for a free channel.
const CHANNEL_TIMEOUT: Duration = Duration::from_secs(10);
const ROUND_TRIP_TIMEOUT: Duration = Duration::from_secs(10);
/// Queued messages per direction of a channel. Output comes in chunks of at most 64 KiB.
const QUEUE: usize = 8;
/// The channel of the first process itself.
const CONTROL: u32 = 0;

#[derive(Debug)]
pub(super) struct InstanceConnection {
    shared: Arc<Shared>,
    /// Path of the supervisor program in the instance.
    supervisor: String,
    _stop: DropGuard,
}

#[derive(Debug)]
struct Shared {
    /// What users call an instance.
    noun: &'static str,
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

impl InstanceConnection {
    pub(super) fn new(
        stream: ByteStream,
        supervisor: String,
        noun: &'static str,
        tasks: &TaskTracker,
    ) -> Self {
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared {
            noun,
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
        tasks.spawn(read(Arc::clone(&shared), stream.output));
        tasks.spawn(write(Arc::clone(&shared), stream.input, queue));
        Self { shared, supervisor, _stop: stop.drop_guard() }
    }

    /// What users call an instance.
    pub(super) fn noun(&self) -> &'static str {
        self.shared.noun
    }

    pub(super) fn supervisor(&self) -> &str {
        &self.supervisor
    }

    /// Waits until the first process reports that it is ready.
    pub(super) async fn ready(&self, time_limit: Duration) -> Result<()> {
        let ready = async {
            tokio::select! {
                () = self.shared.ready.cancelled() => Ok(()),
                () = self.shared.closed.cancelled() => Err(self.shared.error()),
            }
        };
        timeout(time_limit, ready).await.unwrap_or_else(|_| Err(self.no_answer()))
    }

    pub(super) fn alive(&self) -> bool {
        !self.shared.closed.is_cancelled()
    }

    pub(super) fn close(&self, close_reason: &str) {
        self.shared.shut_down(close_reason.to_owned());
    }

    /// Feeds the watchdog until that time, without waiting.
    pub(super) fn feed_watchdog(&self, until: Instant) {
        self.shared.priority().watchdog_deadline = Some(until);
        self.shared.wake.notify_one();
    }

    /// Waits until all messages sent so far were handled, which happens in order.
    pub(super) async fn round_trip(&self) -> Result<()> {
        let mut channel = self.open().await?;
        // The supervisor program without arguments does nothing.
        let request = Request {
            program: Program::Argv(vec![self.supervisor.clone()]),
            cwd: None,
            env: Vec::new(),
            has_input: false,
            limits: Limits::default(),
            user: None,
            file_capabilities: false,
            confinement: None,
            grace_ms: 0,
        };
        let handled = async {
            channel.send(ToSupervisor::Start(Box::new(request))).await?;
            while !is_last(&channel.receive().await?) {}
            Ok(())
        };
        timeout(ROUND_TRIP_TIMEOUT, handled).await.unwrap_or_else(|_| Err(self.no_answer()))
    }

    fn no_answer(&self) -> Error {
        Error::unavailable(format!("the {}'s first process does not answer", self.noun()))
    }

    /// Opens a channel for one command. Dropping it kills the command.
    pub(super) async fn open(&self) -> Result<Channel> {
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
pub(super) struct Channel {
    id: u32,
    messages: mpsc::Receiver<FromSupervisor>,
    shared: Arc<Shared>,
    ended: bool,
}

impl Channel {
    /// Whether the end of the command was received.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether no message is waiting and the channel is open.
    pub(super) fn is_quiet(&self) -> bool {
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
        self.channels.lock()
    }

    fn priority(&self) -> MutexGuard<'_, PriorityMessages> {
        self.priority.lock()
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
            // An ended command needs no kill, and the first process no longer knows its channel.
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

async fn read(shared: Arc<Shared>, mut output: impl AsyncBufRead + Send + Unpin) {
    let mut decoder = Decoder::default();
    let close_reason = loop {
        let received = tokio::select! {
            () = shared.closed.cancelled() => return,
            chunk = output.fill_buf() => chunk.map(|chunk| {
                decoder.push(chunk);
                chunk.len()
            }),
        };
        match received {
            Ok(0) => break format!("its {} ended", shared.noun),
            Ok(count) => output.consume(count),
            Err(error) => break format!("its connection broke: {}", display_safe(&error.to_string())),
        }
        if let Err(close_reason) = dispatch(&shared, &mut decoder).await {
            break close_reason;
        }
    };
    shared.shut_down(close_reason);
}

/// Passes decoded messages to their channels.
async fn dispatch(shared: &Shared, decoder: &mut Decoder) -> Result<(), String> {
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
