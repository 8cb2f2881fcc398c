//! The sessions a worker holds, and how to stop what they execute.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use remuda_domain::{Epoch, Fence, RunId, SessionId};
use remuda_store::GRANT_AGE;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// Sessions in this process's hands. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    sessions: Arc<Mutex<HashMap<SessionId, InHand>>>,
    claimed: Arc<Mutex<Claimed>>,
}

/// Which sessions were claimed lately, under which epochs.
///
/// The store grants a session again to the worker that owns it. So a worker that claims a session, because of a token or because it was told that
/// it is its own, may overtake a grant of that session that is still on its way to it, or waits for the session to be let go of. Executed after
/// all, such a grant would do again what is done.
#[derive(Debug, Default)]
struct Claimed {
    epochs: HashMap<SessionId, Epoch>,
    /// In the order of time. A grant that may be older is not executed as it is.
    recent: VecDeque<(Instant, SessionId, Epoch)>,
}

impl Claimed {
    fn note(&mut self, session: SessionId, epoch: Epoch, now: Instant) {
        while let Some((at, session, epoch)) = self.recent.front()
            && now.duration_since(*at) > GRANT_AGE
        {
            if self.epochs.get(session) == Some(epoch) {
                self.epochs.remove(session);
            }
            self.recent.pop_front();
        }
        self.epochs.insert(session, epoch);
        self.recent.push_back((now, session, epoch));
    }
}

#[derive(Debug, Default)]
struct InHand {
    current: Option<Current>,
    /// Who takes the session over when it is let go of.
    next: Option<oneshot::Sender<Hold>>,
}

#[derive(Debug)]
struct Current {
    run: RunId,
    cancel: CancellationToken,
    tell_again: Arc<Notify>,
}

impl Held {
    /// Takes a session into hand, unless it already is: the store would grant it again to the same worker, and one
    /// session would have two executions.
    pub(crate) fn take(&self, session: SessionId) -> Option<Hold> {
        match self.lock().entry(session) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => {
                vacant.insert(InHand::default());
                Some(Hold { held: self.clone(), session })
            }
        }
    }

    /// Takes a session into hand now, or as soon as it is let go of. One at most may wait for that.
    pub(crate) fn take_next(&self, session: SessionId) -> Option<NextHold> {
        if let Some(hold) = self.take(session) {
            return Some(NextHold::Now(hold));
        }
        let mut sessions = self.lock();
        let in_hand = sessions.get_mut(&session)?;
        if in_hand.next.as_ref().is_some_and(|next| !next.is_closed()) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        in_hand.next = Some(sender);
        Some(NextHold::Later(receiver))
    }

    /// Notes that a session in hand was claimed. Whoever waits for it was granted it before that, and waits no more.
    pub(crate) fn claimed(&self, fence: &Fence) {
        lock(&self.claimed).note(fence.session, fence.epoch, Instant::now());
        if let Some(in_hand) = self.lock().get_mut(&fence.session) {
            in_hand.next = None;
        }
    }

    /// Whether a grant was overtaken by a claim of this worker.
    pub(crate) fn is_overtaken(&self, fence: &Fence) -> bool {
        lock(&self.claimed).epochs.get(&fence.session).is_some_and(|claimed| *claimed > fence.epoch)
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

    /// Lets what is being said in a session be told again, if it executes here.
    pub(crate) fn tell_again(&self, session: SessionId) {
        if let Some(current) = self.lock().get(&session).and_then(|it| it.current.as_ref()) {
            current.tell_again.notify_one();
        }
    }

    /// The runs that execute now.
    pub(crate) fn running(&self) -> Vec<RunId> {
        self.lock().values().filter_map(|it| it.current.as_ref()).map(|current| current.run).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, InHand>> {
        lock(&self.sessions)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One session in hand, until dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    held: Held,
    session: SessionId,
}

/// A session that is in hand, or will be.
#[derive(Debug)]
pub(crate) enum NextHold {
    Now(Hold),
    Later(oneshot::Receiver<Hold>),
}

impl NextHold {
    /// Waits until the session is in hand.
    pub(crate) async fn taken(self) -> Option<Hold> {
        match self {
            Self::Now(hold) => Some(hold),
            // Whoever lets go hands it on.
            Self::Later(later) => later.await.ok(),
        }
    }
}

impl Hold {
    /// Says which run executes now. Returns what cancels it, and what asks it to tell again what it says.
    pub(crate) fn begin(&self, run: RunId) -> (CancellationToken, Arc<Notify>) {
        let (cancel, tell_again) = (CancellationToken::new(), Arc::new(Notify::new()));
        let current = Current { run, cancel: cancel.clone(), tell_again: Arc::clone(&tell_again) };
        if let Some(in_hand) = self.held.lock().get_mut(&self.session) {
            in_hand.current = Some(current);
        }
        (cancel, tell_again)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut sessions = self.held.lock();
        let Some(in_hand) = sessions.get_mut(&self.session) else { return };
        in_hand.current = None;
        let next = in_hand.next.take().filter(|next| !next.is_closed());
        let Some(next) = next else {
            sessions.remove(&self.session);
            return;
        };
        // Without the lock: one that went away at this moment drops it in turn.
        drop(sessions);
        drop(next.send(Self { held: self.held.clone(), session: self.session }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_held_once_until_dropped() {
        let held = Held::default();
        let session = SessionId::new();
        let hold = held.take(session).unwrap();
        assert!(held.take(session).is_none());
        drop(hold);
        assert!(held.take(session).is_some());
    }

    #[tokio::test]
    async fn a_session_is_handed_on_to_one_who_waits() {
        let held = Held::default();
        let session = SessionId::new();
        let first = held.take_next(session).unwrap().taken().await.unwrap();
        let second = held.take_next(session).unwrap();
        assert!(held.take_next(session).is_none(), "somebody waits already");
        assert!(matches!(second, NextHold::Later(_)));
        drop(first);
        assert!(held.take(session).is_none(), "it was handed on");
        let second = second.taken().await.unwrap();
        drop(held.take_next(session).unwrap());
        drop(second);
        assert!(held.take(session).is_some(), "who went away is not waited for");
        let (held_by, waiting) = (held.take(session).unwrap(), held.take_next(session).unwrap());
        drop(held_by);
        drop(waiting);
        assert!(held.take(session).is_some(), "what was handed on to nobody is free");
        assert!(held.lock().is_empty());
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
    async fn a_claim_overtakes_what_was_granted_before() {
        let held = Held::default();
        let session = SessionId::new();
        let hold = held.take(session).unwrap();
        let waiting = held.take_next(session).unwrap();
        assert!(!held.is_overtaken(&fence(session, 1)));
        held.claimed(&fence(session, 2));
        assert!(waiting.taken().await.is_none(), "it was granted before the claim");
        assert!(held.is_overtaken(&fence(session, 1)));
        assert!(!held.is_overtaken(&fence(session, 2)) && !held.is_overtaken(&fence(session, 3)));
        assert!(!held.is_overtaken(&fence(SessionId::new(), 1)));
        drop(hold);
        assert!(held.is_overtaken(&fence(session, 1)), "also when the claim is done with");
        tokio::time::advance(GRANT_AGE / 2).await;
        held.claimed(&fence(session, 5));
        tokio::time::advance(GRANT_AGE * 2 / 3).await;
        held.claimed(&fence(SessionId::new(), 1));
        assert!(held.is_overtaken(&fence(session, 4)), "the later claim is remembered");
        tokio::time::advance(GRANT_AGE).await;
        held.claimed(&fence(SessionId::new(), 1));
        assert!(!held.is_overtaken(&fence(session, 4)));
        assert_eq!(lock(&held.claimed).epochs.len(), 2, "nothing is kept for long");
    }

    #[test]
    fn cancel_reaches_only_the_named_run() {
        let held = Held::default();
        let (first, second) = (held.take(SessionId::new()).unwrap(), held.take(SessionId::new()).unwrap());
        let (a, b) = (RunId::new(), RunId::new());
        let ((cancel_a, _), (cancel_b, _)) = (first.begin(a), second.begin(b));
        held.cancel(a);
        held.cancel(RunId::new());
        assert!(cancel_a.is_cancelled() && !cancel_b.is_cancelled());
        assert_eq!(held.running().len(), 2);
    }
}
