//! The store as the book in which backends write what they make.

use std::sync::Arc;

use async_trait::async_trait;
use remuda_domain::{SandboxId, error::Result, execution::SandboxRecord};
use remuda_sandbox::SandboxBook;
use remuda_store::Store;

pub(crate) struct StoreBook(Arc<dyn Store>);

impl StoreBook {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

impl std::fmt::Debug for StoreBook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreBook")
    }
}

#[async_trait]
impl SandboxBook for StoreBook {
    async fn save(&self, record: &SandboxRecord) -> Result<()> {
        self.0.save_sandbox(record).await
    }

    async fn forget(&self, sandbox: SandboxId) -> Result<()> {
        self.0.forget_sandbox(sandbox).await
    }
}
