//! What a running call prints, told to whoever listens.
//!
//! It is a courtesy to people who watch: the result holds the output anyway. So what is told is bounded in pace and size, what
//! nobody can keep up with is left out, and the command is never kept waiting.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use remuda_domain::{
    Fence, RunId, ToolCallId,
    event::{Delta, DeltaKind, DeltaOf},
};
use remuda_sandbox::{OutputSink, OutputStream};
use remuda_transport::Transport;
use tokio::{sync::Notify, time::sleep};

use self::strand::Strand;

mod strand;

/// Between pieces. Also how long the first one waits: a command that is over by then needs none.
const PACE: Duration = Duration::from_millis(100);
/// The most that is told of a stream at once.
const PIECE_BYTES: usize = 16 * 1024;
/// The most that is told of a call in all.
const CALL_BYTES: usize = 1024 * 1024;
const NOTICE: &str = "there is more output than is shown live: the rest is in the result only";

/// Whom to tell, and of which run.
#[derive(Clone)]
pub(crate) struct Audience {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) fence: Fence,
    pub(crate) run: RunId,
}

impl fmt::Debug for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audience").field("run", &self.run).finish_non_exhaustive()
    }
}

/// The output of one call on its way to the audience.
#[derive(Debug)]
pub(crate) struct LiveOutput {
    call: ToolCallId,
    printed: Mutex<Printed>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Printed {
    stdout: Strand,
    stderr: Strand,
    /// Bytes that were told, of both.
    told: usize,
    /// No more is told.
    closed: bool,
}

impl OutputSink for LiveOutput {
    fn write(&self, stream: OutputStream, chunk: &[u8]) {
        let mut printed = self.lock();
        if printed.closed {
            return;
        }
        let strand = match stream {
            OutputStream::Stdout => &mut printed.stdout,
            OutputStream::Stderr => &mut printed.stderr,
        };
        strand.push(chunk);
        drop(printed);
        self.news.notify_one();
    }
}

impl LiveOutput {
    pub(crate) fn new(call: ToolCallId) -> Self {
        Self { call, printed: Mutex::default(), news: Notify::new() }
    }

    /// Waits for the call and tells of its output meanwhile. Both go on side by side: an audience that takes its time does not
    /// keep the call from reading what its command prints.
    pub(crate) async fn tell_while<T>(&self, call: impl Future<Output = T>, audience: &Audience) -> T {
        // In no fixed order: a command that floods has always something to do, and would never let the other one begin.
        let result = tokio::select! {
            result = call => result,
            never = self.tell(audience) => match never {},
        };
        self.tell_rest(audience).await;
        result
    }

    async fn tell(&self, audience: &Audience) -> std::convert::Infallible {
        loop {
            self.news.notified().await;
            // What comes meanwhile is told together.
            sleep(PACE).await;
            while let Some(news) = self.take_news(audience.run) {
                audience.hear(&news).await;
                sleep(PACE).await;
            }
        }
    }

    /// Of a call that has ended: what was not told of an output whose beginning was.
    async fn tell_rest(&self, audience: &Audience) {
        if self.lock().told == 0 {
            return;
        }
        self.end();
        let mut rest = Vec::new();
        while let Some(news) = self.take_news(audience.run) {
            rest.extend(news);
        }
        if !rest.is_empty() {
            audience.hear(&rest).await;
        }
    }

    /// Nothing more is printed.
    fn end(&self) {
        let mut printed = self.lock();
        printed.stdout.end();
        printed.stderr.end();
    }

    /// The next piece of each stream; nothing if all was told.
    fn take_news(&self, run: RunId) -> Option<Vec<Delta>> {
        let mut printed = self.lock();
        if printed.closed {
            return None;
        }
        let of = DeltaOf::Call(self.call);
        let Printed { stdout, stderr, told, closed } = &mut *printed;
        let mut news = Vec::new();
        for (kind, strand) in [(DeltaKind::Stdout, &mut *stdout), (DeltaKind::Stderr, &mut *stderr)] {
            if let Some((offset, text)) = strand.take(PIECE_BYTES.min(CALL_BYTES - *told)) {
                *told += text.len();
                news.push(Delta { run, of, kind, offset, text });
            }
        }
        // Less room than a character takes is none.
        if CALL_BYTES - *told < 4 {
            (*closed, *stdout, *stderr) = (true, Strand::default(), Strand::default());
            news.push(Delta { run, of, kind: DeltaKind::Notice, offset: 0, text: NOTICE.to_owned() });
        }
        (!news.is_empty()).then_some(news)
    }

    fn lock(&self) -> MutexGuard<'_, Printed> {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Audience {
    async fn hear(&self, news: &[Delta]) {
        self.transport.publish_deltas(self.fence.tenant, self.fence.session, news).await;
    }
}

#[cfg(test)]
mod tests;
