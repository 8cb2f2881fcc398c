//! Limit on the number of instances, and the set of known sandboxes.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::SandboxId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits for instances.
#[derive(Debug)]
pub(super) struct InstanceLimit {
    free: Arc<Semaphore>,
    sandboxes: Arc<Mutex<HashSet<SandboxId>>>,
    removing: Arc<AtomicUsize>,
}

/// Permit for one instance, held from before its creation until after its removal.
#[derive(Debug)]
pub(super) struct InstancePermit {
    sandbox: SandboxId,
    sandboxes: Arc<Mutex<HashSet<SandboxId>>>,
    /// Set once the instance is being removed.
    removing: Option<Arc<AtomicUsize>>,
    removing_count: Arc<AtomicUsize>,
    _permit: OwnedSemaphorePermit,
}

impl InstanceLimit {
    pub(super) fn new(count: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))),
            sandboxes: Arc::default(),
            removing: Arc::default(),
        }
    }

    /// Returns a permit if one is free.
    pub(super) fn try_take(&self, sandbox: SandboxId) -> Option<InstancePermit> {
        let semaphore_permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(self.new_permit(sandbox, semaphore_permit))
    }

    /// Waits for a free permit.
    pub(super) async fn take(&self, sandbox: SandboxId) -> Option<InstancePermit> {
        let semaphore_permit = Arc::clone(&self.free).acquire_owned().await.ok()?;
        Some(self.new_permit(sandbox, semaphore_permit))
    }

    /// Whether the sandbox is known: created or being created.
    pub(super) fn contains(&self, sandbox: SandboxId) -> bool {
        lock(&self.sandboxes).contains(&sandbox)
    }

    fn new_permit(&self, sandbox: SandboxId, semaphore_permit: OwnedSemaphorePermit) -> InstancePermit {
        lock(&self.sandboxes).insert(sandbox);
        let (sandboxes, removing_count) = (Arc::clone(&self.sandboxes), Arc::clone(&self.removing));
        InstancePermit { sandbox, sandboxes, removing: None, removing_count, _permit: semaphore_permit }
    }

    /// Whether a removal in progress will free a permit soon.
    pub(super) fn is_removing(&self) -> bool {
        self.removing.load(Ordering::Acquire) > 0
    }
}

impl InstancePermit {
    /// Marks the instance as being removed; dropping this value frees the permit.
    pub(super) fn mark_removing(mut self) -> Self {
        self.removing.get_or_insert_with(|| {
            self.removing_count.fetch_add(1, Ordering::AcqRel);
            Arc::clone(&self.removing_count)
        });
        self
    }
}

impl Drop for InstancePermit {
    fn drop(&mut self) {
        if let Some(removing) = &self.removing {
            removing.fetch_sub(1, Ordering::AcqRel);
        }
        lock(&self.sandboxes).remove(&self.sandbox);
    }
}

fn lock(sandboxes: &Mutex<HashSet<SandboxId>>) -> MutexGuard<'_, HashSet<SandboxId>> {
    sandboxes.lock()
}
