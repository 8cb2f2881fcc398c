//! A sandbox registry in the store.

use std::sync::Arc;

use async_trait::async_trait;
use remuda_domain::{SandboxId, error::Result, execution::SandboxRecord};
use remuda_sandbox::SandboxRegistry;
use remuda_store::Store;

pub(crate) struct StoreSandboxRegistry(Arc<dyn Store>);

impl StoreSandboxRegistry {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

impl std::fmt::Debug for StoreSandboxRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreSandboxRegistry")
    }
}

#[async_trait]
impl SandboxRegistry for StoreSandboxRegistry {
    async fn save(&self, record: &SandboxRecord) -> Result<()> {
        self.0.save_sandbox(record).await
    }

    async fn forget(&self, sandbox: SandboxId) -> Result<()> {
        self.0.forget_sandbox(sandbox).await
    }
}
