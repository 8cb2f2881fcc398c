//! The sessions a worker holds, and how to stop what they execute.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use remuda_domain::{RunId, SessionId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Sessions in this process's hands. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Arc<Mutex<HashMap<SessionId, Option<Current>>>>);

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
        let mut sessions = self.lock();
        if sessions.contains_key(&session) {
            return None;
        }
        sessions.insert(session, None);
        Some(Hold { held: self.clone(), session })
    }

    /// Cancels a run if it executes here.
    pub(crate) fn cancel(&self, run: RunId) {
        let sessions = self.lock();
        let current = sessions.values().flatten().find(|current| current.run == run);
        if let Some(current) = current {
            current.cancel.cancel();
        }
    }

    /// Lets what is being said in a session be told again, if it executes here.
    pub(crate) fn tell_again(&self, session: SessionId) {
        if let Some(Some(current)) = self.lock().get(&session) {
            current.tell_again.notify_one();
        }
    }

    /// The runs that execute now.
    pub(crate) fn running(&self) -> Vec<RunId> {
        self.lock().values().flatten().map(|current| current.run).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Option<Current>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One session in hand, until dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    held: Held,
    session: SessionId,
}

impl Hold {
    /// Says which run executes now. Returns what cancels it, and what asks it to tell again what it says.
    pub(crate) fn begin(&self, run: RunId) -> (CancellationToken, Arc<Notify>) {
        let (cancel, tell_again) = (CancellationToken::new(), Arc::new(Notify::new()));
        let current = Current { run, cancel: cancel.clone(), tell_again: Arc::clone(&tell_again) };
        self.held.lock().insert(self.session, Some(current));
        (cancel, tell_again)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.held.lock().remove(&self.session);
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
