//! Who waits for the end of which run of a session: one listener per session, however many wait there.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use remuda_domain::{Event, EventBody, RunId, SessionId, TenantId, run::LastWords};
use remuda_transport::Transport;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};
use tokio_util::task::TaskTracker;

/// How long a session is listened to after the last event: who waits for one run often waits for the next one. Not for long, as those who
/// wait in ever other sessions need room.
const LINGER: Duration = Duration::from_secs(1);
/// Sessions that are listened to at once. Who waits for a run of another one looks for himself.
const MAX_SESSIONS: usize = 10_000;

type Line = (TenantId, SessionId);
type Waiters = HashMap<RunId, Waiting>;

/// Those who wait for one run.
#[derive(Default)]
struct Waiting {
    told: Vec<oneshot::Sender<LastWords>>,
    /// More happened to the run than its last commit tells, beside that it was queued.
    has_a_past: bool,
}

/// Tells those who wait for runs of their ends. What it does not hear of it does not tell: whoever waits looks into the store now
/// and then.
pub(in crate::app) struct Ends {
    transport: Arc<dyn Transport>,
    lines: Mutex<HashMap<Line, Waiters>>,
    tasks: TaskTracker,
}

impl Ends {
    pub(in crate::app) fn new(transport: Arc<dyn Transport>, tasks: TaskTracker) -> Self {
        Self { transport, lines: Mutex::default(), tasks }
    }

    /// What resolves when the run has ended. It fails where nobody listens, or no longer.
    pub(super) fn expect(self: &Arc<Self>, line: Line, run: RunId) -> oneshot::Receiver<LastWords> {
        let (sender, receiver) = oneshot::channel();
        let mut lines = self.lines();
        let count = lines.len();
        match lines.get_mut(&line) {
            Some(waiters) => waiters.entry(run).or_default().told.push(sender),
            None if count >= MAX_SESSIONS => {}
            None => {
                let waiting = Waiting { told: vec![sender], has_a_past: false };
                lines.insert(line, HashMap::from([(run, waiting)]));
                self.tasks.spawn(Arc::clone(self).listen(line));
            }
        }
        receiver
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Line, Waiters>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to a session until nobody waits there, or until something may have been missed.
    async fn listen(self: Arc<Self>, line: Line) {
        // Also when this task is cut short: those who wait must not be left to wait for it.
        let mut forgotten = Forgotten { ends: &self, line: Some(line) };
        let mut live = match self.transport.listen_events(line.0, line.1).await {
            Ok(live) => live,
            Err(error) => {
                tracing::debug!(error = error.chain(), "ends of runs cannot be heard at the moment");
                return;
            }
        };
        loop {
            match timeout_at(Instant::now() + LINGER, live.next()).await {
                Ok(Some(events)) => self.tell(line, &events),
                Ok(None) => return,
                // Whoever comes from here on finds no line, and begins a new one.
                Err(_) if self.is_left(line) => {
                    forgotten.line = None;
                    return;
                }
                Err(_) => {}
            }
        }
    }

    fn tell(&self, line: Line, events: &[Event]) {
        let mut lines = self.lines();
        let Some(waiters) = lines.get_mut(&line) else { return };
        // Events of one run stand together in what is told at once.
        for of_one in events.chunk_by(|event, next| event.run == next.run) {
            let Some(run) = of_one.first().and_then(|event| event.run) else { continue };
            let Some(waiting) = waiters.get_mut(&run) else { continue };
            let Some(mut words) = LastWords::of(run, of_one) else {
                let is_news = |event: &Event| !matches!(event.body, EventBody::RunQueued { .. });
                waiting.has_a_past |= of_one.iter().any(is_news);
                continue;
            };
            let Waiting { told, has_a_past } = waiters.remove(&run).unwrap_or_default();
            if has_a_past {
                words.completed = None;
            }
            // One that went away needs no answer.
            for waiter in told {
                waiter.send(words.clone()).ok();
            }
        }
    }

    /// Whether nobody waits there any more. Then the line is gone, too.
    fn is_left(&self, line: Line) -> bool {
        let mut lines = self.lines();
        let Some(waiters) = lines.get_mut(&line) else { return true };
        waiters.retain(|_, waiting| {
            waiting.told.retain(|waiter| !waiter.is_closed());
            !waiting.told.is_empty()
        });
        let left = waiters.is_empty();
        if left {
            lines.remove(&line);
        }
        left
    }
}

struct Forgotten<'a> {
    ends: &'a Ends,
    line: Option<Line>,
}

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        if let Some(line) = self.line {
            self.ends.lines().remove(&line);
        }
    }
}
