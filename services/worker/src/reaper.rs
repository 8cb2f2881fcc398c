//! Removes sandboxes that no live worker holds.
//!
//! The second line: a container ends by itself when its worker dies. What is found here was half-made, frozen or on an
//! engine that was down at that moment. Only what carries this installation's label and the id of a worker without a
//! lease is touched; what a live worker made is its own affair, and what is not ours does not exist.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use remuda_domain::{WorkerId, error::Result};
use remuda_sandbox::{Backend, Backends, Existing, ExistingKind};
use remuda_store::Store;
use remuda_telemetry::metrics::{self, Counter, registry::SANDBOX_LEAKS};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// After a round that failed: an engine that is not there needs no frequent question.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// Records looked at in one round.
const MAX_RECORDS: u32 = 1000;

/// Looks for what is left behind. One per process that can reach the engine.
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

/// What a round removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    pub removed: Vec<Existing>,
    /// Records of sandboxes that are gone with their worker.
    pub forgotten: usize,
}

impl Reaper {
    #[must_use]
    pub fn new(store: Arc<dyn Store>, backends: Backends) -> Self {
        let leaks = metrics::counter(&SANDBOX_LEAKS);
        leaks.add(0, &[]);
        Self { store, backends, leaks }
    }

    /// Looks every so often until `stop`.
    pub async fn run(self, every: Duration, stop: CancellationToken) {
        let mut failed = false;
        loop {
            match self.round().await {
                Ok(_) => failed = false,
                Err(error) => {
                    // Once, not every round: most workers never meet an engine.
                    if !failed {
                        tracing::debug!(
                            error = error.chain(),
                            "sandboxes cannot be looked for at the moment"
                        );
                    }
                    failed = true;
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(if failed { AFTER_FAILURE } else { every }) => {}
            }
        }
    }

    /// Looks once. What cannot be removed is found again by the next round.
    pub async fn round(&self) -> Result<Reaped> {
        let mut reaped = Reaped::default();
        for backend in self.backends.iter() {
            let mut found = backend.list().await?;
            // A volume goes after the containers that use it.
            found.sort_by_key(|existing| existing.what == ExistingKind::Volume);
            if found.iter().all(|existing| existing.ours) {
                continue;
            }
            let alive = self.alive().await?;
            for existing in found.into_iter().filter(|existing| is_left_behind(existing, &alive)) {
                self.remove(backend.as_ref(), existing, &mut reaped).await;
            }
        }
        self.forget(&mut reaped).await?;
        Ok(reaped)
    }

    async fn remove(&self, backend: &dyn Backend, existing: Existing, reaped: &mut Reaped) {
        match backend.remove(&existing).await {
            Ok(()) => {
                tracing::warn!(sandbox = %existing.sandbox, worker = %existing.worker, handle = existing.handle,
                    "removed what a lost worker left behind");
                if existing.what == ExistingKind::Container {
                    self.leaks.add(1, &[]);
                }
                reaped.removed.push(existing);
            }
            Err(error) => {
                tracing::warn!(sandbox = %existing.sandbox, error = error.chain(), "a sandbox cannot be removed");
            }
        }
    }

    /// Deletes the records of lost workers whose sandboxes are seen to be gone.
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
            engines.insert(backend.engine().await?);
        }
        for record in records {
            let lost = !alive.contains(&record.worker) && !there.contains(&record.id);
            // Of another engine nothing is known here.
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

fn is_left_behind(existing: &Existing, alive: &HashSet<WorkerId>) -> bool {
    !existing.ours && !alive.contains(&existing.worker)
}
