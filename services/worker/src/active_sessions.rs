//! The sessions that are active on this worker, and how to stop their current runs.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use remuda_dispatch::MAX_GRANT_AGE;
use remuda_domain::{Epoch, Fence, RunId, SessionId};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// Sessions that this process is working on. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveSessions {
    sessions: Arc<Mutex<HashMap<SessionId, ActiveSession>>>,
    recent_claims: Arc<Mutex<RecentClaims>>,
}

/// Sessions that this worker claimed recently, with their epochs.
///
/// The store grants a session again to the worker that already owns it. So a claim, made because of a token or of
/// [`Signal::ReclaimSession`], may overtake an earlier grant of that session that is still in transit or waits for
/// the session's guard. Executing the earlier grant afterwards would repeat work.
///
/// [`Signal::ReclaimSession`]: remuda_domain::worker::Signal::ReclaimSession
#[derive(Debug, Default)]
struct RecentClaims {
    epochs: HashMap<SessionId, Epoch>,
    /// Oldest first. Claims are kept for the longest time a grant may be in transit.
    by_time: VecDeque<(Instant, SessionId, Epoch)>,
}

impl RecentClaims {
    fn record(&mut self, session: SessionId, epoch: Epoch, now: Instant) {
        while let Some((at, session, epoch)) = self.by_time.front()
            && now.duration_since(*at) > MAX_GRANT_AGE
        {
            if self.epochs.get(session) == Some(epoch) {
                self.epochs.remove(session);
            }
            self.by_time.pop_front();
        }
        self.epochs.insert(session, epoch);
        self.by_time.push_back((now, session, epoch));
    }
}

#[derive(Debug, Default)]
struct ActiveSession {
    current: Option<CurrentRun>,
    /// Receives the guard when the current one is dropped.
    next: Option<oneshot::Sender<SessionGuard>>,
}

#[derive(Debug)]
struct CurrentRun {
    run: RunId,
    /// When it began, and how long earlier attempts took.
    began: Instant,
    worked_before: Duration,
    cancel: CancellationToken,
    resend_deltas: Arc<Notify>,
}

impl ActiveSessions {
    /// Acquires a session, unless it is active already: the store would grant it again to the same worker, and one
    /// session would have two executions.
    pub(crate) fn acquire(&self, session: SessionId) -> Option<SessionGuard> {
        match self.lock().entry(session) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => {
                vacant.insert(ActiveSession::default());
                Some(SessionGuard { active_sessions: self.clone(), session })
            }
        }
    }

    /// Acquires a session now, or as soon as its guard is dropped. At most one caller may wait.
    pub(crate) fn acquire_or_wait(&self, session: SessionId) -> Option<PendingGuard> {
        if let Some(session_guard) = self.acquire(session) {
            return Some(PendingGuard::Ready(session_guard));
        }
        let mut sessions = self.lock();
        let active = sessions.get_mut(&session)?;
        if active.next.as_ref().is_some_and(|next| !next.is_closed()) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        active.next = Some(sender);
        Some(PendingGuard::Waiting(receiver))
    }

    /// Records the claim of an active session. A grant that waits for the session is older than the claim, so its
    /// wait ends.
    pub(crate) fn record_claim(&self, fence: &Fence) {
        self.recent_claims.lock().record(fence.session, fence.epoch, Instant::now());
        if let Some(active) = self.lock().get_mut(&fence.session) {
            active.next = None;
        }
    }

    /// Whether this worker claimed the session after the grant was made.
    pub(crate) fn is_superseded(&self, fence: &Fence) -> bool {
        self.recent_claims.lock().epochs.get(&fence.session).is_some_and(|claimed| *claimed > fence.epoch)
    }

    /// Cancels a run if it executes here.
    pub(crate) fn cancel(&self, run: RunId) {
        let sessions = self.lock();
        let current =
            sessions.values().filter_map(|it| it.current.as_ref()).find(|current| current.run == run);
        if let Some(current) = current {
            current.cancel.cancel();
        }
    }

    /// Asks the session's current run, if any, to publish again the deltas of the message under way.
    pub(crate) fn resend_deltas(&self, session: SessionId) {
        if let Some(current) = self.lock().get(&session).and_then(|it| it.current.as_ref()) {
            current.resend_deltas.notify_one();
        }
    }

    /// The runs that execute now, and how long each was executed so far.
    pub(crate) fn running(&self) -> Vec<(RunId, Duration)> {
        let sessions = self.lock();
        let current = sessions.values().filter_map(|it| it.current.as_ref());
        current.map(|it| (it.run, it.worked_before + it.began.elapsed())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, ActiveSession>> {
        self.sessions.lock()
    }
}

/// Marks one session as active until dropped.
#[derive(Debug)]
pub(crate) struct SessionGuard {
    active_sessions: ActiveSessions,
    session: SessionId,
}

/// A guard that is there already, or will be once the current one is dropped.
#[derive(Debug)]
pub(crate) enum PendingGuard {
    Ready(SessionGuard),
    Waiting(oneshot::Receiver<SessionGuard>),
}

impl PendingGuard {
    /// Waits for the guard. `None` if a newer claim has superseded the wait.
    pub(crate) async fn acquired(self) -> Option<SessionGuard> {
        match self {
            Self::Ready(session_guard) => Some(session_guard),
            // The current guard passes the session on when dropped.
            Self::Waiting(receiver) => receiver.await.ok(),
        }
    }
}

impl SessionGuard {
    /// Sets the run that executes now, and how long earlier attempts executed it. Returns the token that cancels it,
    /// and the notification that makes it resend
    /// its deltas.
    pub(crate) fn set_current_run(
        &self,
        run: RunId,
        worked_before: Duration,
    ) -> (CancellationToken, Arc<Notify>) {
        let (cancel, resend_deltas) = (CancellationToken::new(), Arc::new(Notify::new()));
        let current = CurrentRun {
            run,
            began: Instant::now(),
            worked_before,
            cancel: cancel.clone(),
            resend_deltas: Arc::clone(&resend_deltas),
        };
        if let Some(active) = self.active_sessions.lock().get_mut(&self.session) {
            active.current = Some(current);
        }
        (cancel, resend_deltas)
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        let mut sessions = self.active_sessions.lock();
        let Some(active) = sessions.get_mut(&self.session) else { return };
        active.current = None;
        let next = active.next.take().filter(|next| !next.is_closed());
        let Some(next) = next else {
            sessions.remove(&self.session);
            return;
        };
        // Send without the lock: if the receiver is gone by now, the guard in the message is dropped here and locks
        // again.
        drop(sessions);
        drop(next.send(Self { active_sessions: self.active_sessions.clone(), session: self.session }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_acquired_once_until_its_guard_is_dropped() {
        let active_sessions = ActiveSessions::default();
        let session = SessionId::new();
        let session_guard = active_sessions.acquire(session).unwrap();
        assert!(active_sessions.acquire(session).is_none());
        drop(session_guard);
        assert!(active_sessions.acquire(session).is_some());
    }

    #[tokio::test]
    async fn dropped_guard_passes_the_session_to_the_waiter() {
        let active_sessions = ActiveSessions::default();
        let session = SessionId::new();
        let first = active_sessions.acquire_or_wait(session).unwrap().acquired().await.unwrap();
        let second = active_sessions.acquire_or_wait(session).unwrap();
        assert!(active_sessions.acquire_or_wait(session).is_none(), "there is a waiter already");
        assert!(matches!(second, PendingGuard::Waiting(_)));
        drop(first);
        assert!(active_sessions.acquire(session).is_none(), "the waiter has it");
        let second = second.acquired().await.unwrap();
        drop(active_sessions.acquire_or_wait(session).unwrap());
        drop(second);
        assert!(active_sessions.acquire(session).is_some(), "a waiter that left is skipped");
        let (first, waiting) =
            (active_sessions.acquire(session).unwrap(), active_sessions.acquire_or_wait(session).unwrap());
        drop(first);
        drop(waiting);
        assert!(active_sessions.acquire(session).is_some(), "a guard sent to a waiter that left is released");
        assert!(active_sessions.lock().is_empty());
    }

    fn fence(session: SessionId, epoch: Epoch) -> Fence {
        Fence {
            tenant: remuda_domain::TenantId::new(),
            session,
            worker: remuda_domain::WorkerId::new(),
            epoch,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn claim_supersedes_earlier_grants() {
        let active_sessions = ActiveSessions::default();
        let session = SessionId::new();
        let session_guard = active_sessions.acquire(session).unwrap();
        let waiting = active_sessions.acquire_or_wait(session).unwrap();
        assert!(!active_sessions.is_superseded(&fence(session, 1)));
        active_sessions.record_claim(&fence(session, 2));
        assert!(waiting.acquired().await.is_none(), "it was granted before the claim");
        assert!(active_sessions.is_superseded(&fence(session, 1)));
        assert!(
            !active_sessions.is_superseded(&fence(session, 2))
                && !active_sessions.is_superseded(&fence(session, 3))
        );
        assert!(!active_sessions.is_superseded(&fence(SessionId::new(), 1)));
        drop(session_guard);
        assert!(active_sessions.is_superseded(&fence(session, 1)), "also after the session is released");
        tokio::time::advance(MAX_GRANT_AGE / 2).await;
        active_sessions.record_claim(&fence(session, 5));
        tokio::time::advance(MAX_GRANT_AGE * 2 / 3).await;
        active_sessions.record_claim(&fence(SessionId::new(), 1));
        assert!(active_sessions.is_superseded(&fence(session, 4)), "the later claim is remembered");
        tokio::time::advance(MAX_GRANT_AGE).await;
        active_sessions.record_claim(&fence(SessionId::new(), 1));
        assert!(!active_sessions.is_superseded(&fence(session, 4)));
        assert_eq!(active_sessions.recent_claims.lock().epochs.len(), 2, "old claims are dropped");
    }

    #[test]
    fn cancel_reaches_only_the_named_run() {
        let active_sessions = ActiveSessions::default();
        let (first, second) = (
            active_sessions.acquire(SessionId::new()).unwrap(),
            active_sessions.acquire(SessionId::new()).unwrap(),
        );
        let (a, b) = (RunId::new(), RunId::new());
        let before = Duration::from_secs(60);
        let ((cancel_a, _), (cancel_b, _)) =
            (first.set_current_run(a, before), second.set_current_run(b, Duration::ZERO));
        active_sessions.cancel(a);
        active_sessions.cancel(RunId::new());
        assert!(cancel_a.is_cancelled() && !cancel_b.is_cancelled());
        let running: HashMap<RunId, Duration> = active_sessions.running().into_iter().collect();
        assert!(running[&a] >= before && running[&b] < before, "{running:?}");
    }
}
