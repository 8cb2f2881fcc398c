//! How many containers there may be, and which of them we know.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use remuda_domain::SandboxId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for containers.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    known: Arc<Mutex<HashSet<SandboxId>>>,
    leaving: Arc<AtomicUsize>,
}

/// One place, taken from before the container is made until it is removed.
#[derive(Debug)]
pub(super) struct Ticket {
    sandbox: SandboxId,
    known: Arc<Mutex<HashSet<SandboxId>>>,
    /// Set once its container is being removed.
    leaving: Option<Arc<AtomicUsize>>,
    all_leaving: Arc<AtomicUsize>,
    _place: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(count: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))),
            known: Arc::default(),
            leaving: Arc::default(),
        }
    }

    /// A place, if there is one.
    pub(super) fn try_take(&self, sandbox: SandboxId) -> Option<Ticket> {
        let place = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(self.ticket(sandbox, place))
    }

    /// The next place that becomes free.
    pub(super) async fn take(&self, sandbox: SandboxId) -> Option<Ticket> {
        let place = Arc::clone(&self.free).acquire_owned().await.ok()?;
        Some(self.ticket(sandbox, place))
    }

    /// Whether it is one of ours, made or being made.
    pub(super) fn knows(&self, sandbox: SandboxId) -> bool {
        lock(&self.known).contains(&sandbox)
    }

    fn ticket(&self, sandbox: SandboxId, place: OwnedSemaphorePermit) -> Ticket {
        lock(&self.known).insert(sandbox);
        let (known, all_leaving) = (Arc::clone(&self.known), Arc::clone(&self.leaving));
        Ticket { sandbox, known, leaving: None, all_leaving, _place: place }
    }

    /// Whether a place becomes free soon.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire) > 0
    }
}

impl Ticket {
    /// Says that the place will be free when this is dropped, and that this is under way.
    pub(super) fn leave(mut self) -> Self {
        self.leaving.get_or_insert_with(|| {
            self.all_leaving.fetch_add(1, Ordering::AcqRel);
            Arc::clone(&self.all_leaving)
        });
        self
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(leaving) = &self.leaving {
            leaving.fetch_sub(1, Ordering::AcqRel);
        }
        lock(&self.known).remove(&self.sandbox);
    }
}

fn lock(known: &Mutex<HashSet<SandboxId>>) -> MutexGuard<'_, HashSet<SandboxId>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}
