//! Removes sandboxes that no live worker owns.
//!
//! This is the second line of defence: a container ends by itself when its worker dies. The reaper finds sandboxes
//! that were half-made, frozen, or on a container engine that was down at that moment. It only touches what carries
//! this installation's label and the id of a worker without a lease. It never touches the sandboxes of a live worker,
//! nor anything without the label.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use remuda_domain::{WorkerId, error::Result};
use remuda_sandbox::{Backend, Backends, EngineResource, EngineResourceKind};
use remuda_store::Store;
use remuda_telemetry::metrics::{self, Counter, registry::SANDBOX_LEAKS};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Pause after a failed round: an engine that is down need not be polled often.
const FAILURE_PAUSE: Duration = Duration::from_secs(30);
/// Sandbox records read per round.
const MAX_RECORDS: u32 = 1000;

/// Finds and removes orphaned sandboxes. One per process that can reach the container engine.
pub struct Reaper {
    store: Arc<dyn Store>,
    backends: Backends,
    leaks: Counter<u64>,
}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").field("backends", &self.backends).finish_non_exhaustive()
    }
}

/// What one round removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    pub removed: Vec<EngineResource>,
    /// Number of deleted records of sandboxes that are gone along with their worker.
    pub forgotten: usize,
}

impl Reaper {
    #[must_use]
    pub fn new(store: Arc<dyn Store>, backends: Backends) -> Self {
        let leaks = metrics::counter(&SANDBOX_LEAKS);
        leaks.add(0, &[]);
        Self { store, backends, leaks }
    }

    /// Runs a round every `every` until `stop`.
    pub async fn run(self, every: Duration, stop: CancellationToken) {
        let mut failed = false;
        loop {
            match self.round().await {
                Ok(_) => failed = false,
                Err(error) => {
                    // Log the first failure only: most workers never use a container engine.
                    if !failed {
                        tracing::debug!(error = error.chain(), "cannot list sandboxes; retrying");
                    }
                    failed = true;
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(if failed { FAILURE_PAUSE } else { every }) => {}
            }
        }
    }

    /// Runs one round. The next round finds again what could not be removed.
    pub async fn round(&self) -> Result<Reaped> {
        let mut reaped = Reaped::default();
        for backend in self.backends.iter() {
            let mut found = backend.list().await?;
            // Remove volumes after the containers that use them.
            found.sort_by_key(|existing| existing.kind == EngineResourceKind::Volume);
            if found.iter().all(|existing| existing.ours) {
                continue;
            }
            let alive = self.alive().await?;
            for existing in found.into_iter().filter(|existing| is_orphaned(existing, &alive)) {
                self.remove(backend.as_ref(), existing, &mut reaped).await;
            }
        }
        self.forget(&mut reaped).await?;
        Ok(reaped)
    }

    async fn remove(&self, backend: &dyn Backend, existing: EngineResource, reaped: &mut Reaped) {
        match backend.remove(&existing).await {
            Ok(()) => {
                tracing::warn!(sandbox = %existing.sandbox, worker = %existing.worker, handle = existing.handle,
                    "removed a sandbox left behind by a lost worker");
                if existing.kind == EngineResourceKind::Container {
                    self.leaks.add(1, &[]);
                }
                reaped.removed.push(existing);
            }
            Err(error) => {
                tracing::warn!(sandbox = %existing.sandbox, error = error.chain(), "cannot remove a sandbox");
            }
        }
    }

    /// Deletes the sandbox records of lost workers whose sandboxes are confirmed to be gone.
    async fn forget(&self, reaped: &mut Reaped) -> Result<()> {
        let records = self.store.list_sandboxes(MAX_RECORDS).await?;
        if records.is_empty() {
            return Ok(());
        }
        let alive = self.alive().await?;
        let mut there = HashSet::new();
        let mut engines = HashSet::new();
        for backend in self.backends.iter() {
            there.extend(backend.list().await?.into_iter().map(|existing| existing.sandbox));
            engines.insert(backend.engine_id().await?);
        }
        for record in records {
            let lost = !alive.contains(&record.worker) && !there.contains(&record.id);
            // Nothing is known here about sandboxes on other engines.
            if lost && engines.contains(&record.engine) {
                self.store.forget_sandbox(record.id).await?;
                reaped.forgotten += 1;
            }
        }
        Ok(())
    }

    async fn alive(&self) -> Result<HashSet<WorkerId>> {
        let workers = self.store.list_workers(false).await?;
        Ok(workers.into_iter().map(|worker| worker.registration.id).collect())
    }
}

fn is_orphaned(existing: &EngineResource, alive: &HashSet<WorkerId>) -> bool {
    !existing.ours && !alive.contains(&existing.worker)
}
