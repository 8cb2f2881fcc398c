//! Waiters for runs of a session: one event subscription per session, however many callers wait there.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{Event, EventBody, RunId, SessionId, TenantId, run::RunEndNotice};
use remuda_transport::Transport;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};
use tokio_util::task::TaskTracker;

/// A listener closes this long after the last event of its session if it has no waiters: a caller that waited for one run
/// often waits for the next. Short, because callers that wait in ever new sessions need the slots.
const LINGER: Duration = Duration::from_secs(1);
/// Sessions with a listener at once. Waiters in other sessions poll the store.
const MAX_SESSIONS: usize = 10_000;

type SessionKey = (TenantId, SessionId);
type Waiters = HashMap<RunId, RunWaiters>;

/// The waiters for one run.
#[derive(Default)]
struct RunWaiters {
    senders: Vec<oneshot::Sender<RunEndNotice>>,
    /// The run had other events than its submission and its last commit, which the end notice does not carry. The waiters
    /// must read the run.
    needs_read: bool,
}

/// Notifies waiters of the ends of runs that appear in their sessions' events.
///
/// Events are best effort: waiters also read the store now and then.
pub(in crate::app) struct SessionWaiters {
    transport: Arc<dyn Transport>,
    sessions: Mutex<HashMap<SessionKey, Waiters>>,
    tasks: TaskTracker,
}

impl SessionWaiters {
    pub(in crate::app) fn new(transport: Arc<dyn Transport>, tasks: TaskTracker) -> Self {
        Self { transport, sessions: Mutex::default(), tasks }
    }

    /// Returns a receiver that resolves when the run has ended. It fails where there is no listener, or no longer.
    pub(super) fn register(
        self: &Arc<Self>,
        session: SessionKey,
        run: RunId,
    ) -> oneshot::Receiver<RunEndNotice> {
        let (sender, receiver) = oneshot::channel();
        let mut sessions = self.sessions();
        let count = sessions.len();
        match sessions.get_mut(&session) {
            Some(waiters) => waiters.entry(run).or_default().senders.push(sender),
            None if count >= MAX_SESSIONS => {}
            None => {
                let waiters = RunWaiters { senders: vec![sender], needs_read: false };
                sessions.insert(session, HashMap::from([(run, waiters)]));
                self.tasks.spawn(Arc::clone(self).listen(session));
            }
        }
        receiver
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionKey, Waiters>> {
        self.sessions.lock()
    }

    /// Listens to a session until it has no waiters, or until events may have been missed.
    async fn listen(self: Arc<Self>, session: SessionKey) {
        // Also when this task is aborted: its waiters must not wait for it.
        let mut guard = RemoveOnDrop { waiters: &self, session: Some(session) };
        let mut live = match self.transport.subscribe_events_unconfirmed(session.0, session.1).await {
            Ok(live) => live,
            Err(error) => {
                tracing::debug!(
                    error = error.chain(),
                    "listening to a session failed; waiters poll the store"
                );
                return;
            }
        };
        loop {
            match timeout_at(Instant::now() + LINGER, live.next()).await {
                Ok(Some(events)) => self.notify(session, &events),
                Ok(None) => return,
                // The next waiter finds no entry and starts a new listener.
                Err(_) if self.remove_if_idle(session) => {
                    guard.session = None;
                    return;
                }
                Err(_) => {}
            }
        }
    }

    fn notify(&self, session: SessionKey, events: &[Event]) {
        let mut sessions = self.sessions();
        let Some(waiters) = sessions.get_mut(&session) else { return };
        if events.is_empty() {
            // Not proven: any of the runs may have ended, so each waiter reads its own.
            for (run, RunWaiters { senders, .. }) in waiters.drain() {
                senders.into_iter().for_each(|it| drop(it.send(RunEndNotice { run, completed: None })));
            }
            return;
        }
        // Events of one run are adjacent within one commit.
        for of_one in events.chunk_by(|event, next| event.run == next.run) {
            let Some(run) = of_one.first().and_then(|event| event.run) else { continue };
            let Some(waiting) = waiters.get_mut(&run) else { continue };
            let Some(mut notice) = RunEndNotice::from_events(run, of_one) else {
                let is_relevant = |event: &Event| !matches!(event.body, EventBody::RunQueued { .. });
                waiting.needs_read |= of_one.iter().any(is_relevant);
                continue;
            };
            let RunWaiters { senders, needs_read } = waiters.remove(&run).unwrap_or_default();
            if needs_read {
                notice.completed = None;
            }
            // Waiters may be gone.
            for sender in senders {
                sender.send(notice.clone()).ok();
            }
        }
    }

    /// Drops waiters that went away. Removes the session and returns true if none is left.
    fn remove_if_idle(&self, session: SessionKey) -> bool {
        let mut sessions = self.sessions();
        let Some(waiters) = sessions.get_mut(&session) else { return true };
        waiters.retain(|_, waiting| {
            waiting.senders.retain(|sender| !sender.is_closed());
            !waiting.senders.is_empty()
        });
        let idle = waiters.is_empty();
        if idle {
            sessions.remove(&session);
        }
        idle
    }
}

struct RemoveOnDrop<'a> {
    waiters: &'a SessionWaiters,
    session: Option<SessionKey>,
}

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session {
            self.waiters.sessions().remove(&session);
        }
    }
}
