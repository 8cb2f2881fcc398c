//! What exists outside of the worker processes.

use async_trait::async_trait;
use remuda_domain::{
    SandboxId,
    error::Result,
    execution::{BackendKind, SandboxRecord, SandboxState},
};

/// What exists, or should, outside of the worker processes. These calls act for the system, not for a tenant.
#[async_trait]
pub trait Sandboxes {
    /// Writes what is known of a sandbox, new or changed.
    async fn save_sandbox(&self, record: &SandboxRecord) -> Result<()>;
    /// It is gone. Forgetting twice is fine.
    async fn forget_sandbox(&self, id: SandboxId) -> Result<()>;
    /// Newest first.
    async fn list_sandboxes(&self, limit: u32) -> Result<Vec<SandboxRecord>>;
    /// How many there are on record. Kinds and states that none has are left out.
    async fn count_sandboxes(&self) -> Result<Vec<(BackendKind, SandboxState, u64)>>;
    /// What tells this installation from others on the same engine, for good.
    async fn installation(&self) -> Result<String>;
}
