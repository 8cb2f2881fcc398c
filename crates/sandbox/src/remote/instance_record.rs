//! Registry record of an instance.

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{
    error::{Error, Result},
    execution::{BackendKind, SandboxRecord, SandboxState},
};
use tokio::time::timeout;

use super::provisioner::InstancePlan;
use crate::registry::SandboxRegistry;

/// Timeout of a registry write.
const SAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The registry record of one instance.
#[derive(Debug)]
pub(super) struct InstanceRecord {
    registry: Option<Arc<dyn SandboxRegistry>>,
    record: Mutex<SandboxRecord>,
}

impl InstanceRecord {
    pub(super) fn new(
        registry: Option<Arc<dyn SandboxRegistry>>,
        backend: BackendKind,
        engine: String,
        plan: &InstancePlan,
    ) -> Self {
        let now = chrono::Utc::now();
        let record = SandboxRecord {
            id: plan.sandbox,
            holder: plan.holder,
            worker: plan.creator.worker,
            backend,
            engine,
            handle: None,
            image: plan.image.name.clone(),
            digest: plan.image.digest.clone(),
            state: SandboxState::Creating,
            created_at: now,
            used_at: now,
        };
        Self { registry, record: Mutex::new(record) }
    }

    /// Saves the current state.
    pub(super) async fn save(&self) -> Result<()> {
        let record = self.lock().clone();
        self.with_timeout(|registry| async move { registry.save(&record).await }).await
    }

    /// Changes and saves the record. If saving fails, the registry is outdated, but still lists the
    /// instance.
    pub(super) async fn update(&self, change: impl FnOnce(&mut SandboxRecord)) {
        {
            let mut record = self.lock();
            change(&mut record);
            record.used_at = chrono::Utc::now();
        }
        if let Err(error) = self.save().await {
            tracing::warn!(error = error.chain(), "cannot update an instance's registry record");
        }
    }

    /// Deletes the record of a removed instance.
    pub(super) async fn forget(&self) {
        let sandbox = self.lock().id;
        if let Err(error) = self.with_timeout(|registry| async move { registry.forget(sandbox).await }).await
        {
            tracing::warn!(error = error.chain(), %sandbox, "cannot delete an instance's registry record");
        }
    }

    async fn with_timeout<F: Future<Output = Result<()>>>(
        &self,
        write: impl FnOnce(Arc<dyn SandboxRegistry>) -> F,
    ) -> Result<()> {
        let Some(registry) = &self.registry else { return Ok(()) };
        let timed_out = || Err(Error::unavailable("the sandbox registry does not answer"));
        timeout(SAVE_TIMEOUT, write(Arc::clone(registry))).await.unwrap_or_else(|_| timed_out())
    }

    fn lock(&self) -> MutexGuard<'_, SandboxRecord> {
        self.record.lock()
    }
}
