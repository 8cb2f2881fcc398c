//! Publishes the output of running commands as live deltas.
//!
//! Live output is best effort, because the result holds the output anyway. Its rate and size are bounded, output
//! beyond that is dropped, and a slow transport never delays the command.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{
    Fence, RunId, ToolCallId,
    event::{Delta, DeltaKind, DeltaOf},
};
use remuda_sandbox::{OutputSink, OutputStream};
use remuda_transport::Transport;
use tokio::{sync::Notify, time::sleep};

use self::stream_buffer::StreamBuffer;

mod stream_buffer;

/// Time between publications. The first one waits as long: a command that ends before needs none.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum size of one delta.
const MAX_DELTA_BYTES: usize = 16 * 1024;
/// Maximum live output of one call, over both streams.
const MAX_CALL_BYTES: usize = 1024 * 1024;
const NOTICE: &str = "there is more output than is shown live: the rest is in the result only";

/// Publishes deltas of one run.
#[derive(Clone)]
pub(crate) struct OutputPublisher {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) fence: Fence,
    pub(crate) run: RunId,
}

impl fmt::Debug for OutputPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audience").field("run", &self.run).finish_non_exhaustive()
    }
}

/// The output of one call that is being published.
#[derive(Debug)]
pub(crate) struct LiveOutput {
    call: ToolCallId,
    buffers: Mutex<OutputBuffers>,
    written: Notify,
}

#[derive(Debug, Default)]
struct OutputBuffers {
    stdout: StreamBuffer,
    stderr: StreamBuffer,
    /// Bytes published, of both streams.
    published: usize,
    /// The limit was reached: nothing more is published.
    closed: bool,
}

impl OutputSink for LiveOutput {
    fn write(&self, stream: OutputStream, chunk: &[u8]) {
        let mut buffers = self.lock();
        if buffers.closed {
            return;
        }
        let buffer = match stream {
            OutputStream::Stdout => &mut buffers.stdout,
            OutputStream::Stderr => &mut buffers.stderr,
        };
        buffer.push(chunk);
        drop(buffers);
        self.written.notify_one();
    }
}

impl LiveOutput {
    pub(crate) fn new(call: ToolCallId) -> Self {
        Self { call, buffers: Mutex::default(), written: Notify::new() }
    }

    /// Waits for the call and publishes its output meanwhile. Both run concurrently: a slow transport does not keep
    /// the call from reading what its command prints.
    pub(crate) async fn publish_while<T>(
        &self,
        call: impl Future<Output = T>,
        publisher: &OutputPublisher,
    ) -> T {
        // Unbiased: a command that floods its output is always ready, and would starve the other branch.
        let result = tokio::select! {
            result = call => result,
            never = self.publish_loop(publisher) => match never {},
        };
        self.publish_rest(publisher).await;
        result
    }

    async fn publish_loop(&self, publisher: &OutputPublisher) -> std::convert::Infallible {
        loop {
            self.written.notified().await;
            // Batches the output that arrives meanwhile.
            sleep(PUBLISH_INTERVAL).await;
            while let Some(deltas) = self.take_deltas(publisher.run) {
                publisher.publish(&deltas).await;
                sleep(PUBLISH_INTERVAL).await;
            }
        }
    }

    /// After the call has ended: publishes the rest of an output that was published in part.
    async fn publish_rest(&self, publisher: &OutputPublisher) {
        if self.lock().published == 0 {
            return;
        }
        self.end();
        let mut rest = Vec::new();
        while let Some(deltas) = self.take_deltas(publisher.run) {
            rest.extend(deltas);
        }
        if !rest.is_empty() {
            publisher.publish(&rest).await;
        }
    }

    /// Marks the end of the output.
    fn end(&self) {
        let mut buffers = self.lock();
        buffers.stdout.end();
        buffers.stderr.end();
    }

    /// The next delta of each stream; none if everything was published.
    fn take_deltas(&self, run: RunId) -> Option<Vec<Delta>> {
        let mut buffers = self.lock();
        if buffers.closed {
            return None;
        }
        let of = DeltaOf::Call(self.call);
        let OutputBuffers { stdout, stderr, published, closed } = &mut *buffers;
        let mut deltas = Vec::new();
        for (kind, buffer) in [(DeltaKind::Stdout, &mut *stdout), (DeltaKind::Stderr, &mut *stderr)] {
            if let Some((offset, text)) = buffer.take(MAX_DELTA_BYTES.min(MAX_CALL_BYTES - *published)) {
                *published += text.len();
                deltas.push(Delta { run, of, kind, offset, text });
            }
        }
        // A character can take four bytes.
        if MAX_CALL_BYTES - *published < 4 {
            (*closed, *stdout, *stderr) = (true, StreamBuffer::default(), StreamBuffer::default());
            deltas.push(Delta { run, of, kind: DeltaKind::Notice, offset: 0, text: NOTICE.to_owned() });
        }
        (!deltas.is_empty()).then_some(deltas)
    }

    fn lock(&self) -> MutexGuard<'_, OutputBuffers> {
        self.buffers.lock()
    }
}

impl OutputPublisher {
    async fn publish(&self, deltas: &[Delta]) {
        self.transport.publish_deltas(self.fence.tenant, self.fence.session, deltas).await;
    }
}

#[cfg(test)]
mod tests;
