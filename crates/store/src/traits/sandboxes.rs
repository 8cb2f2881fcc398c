//! Records of sandboxes outside the worker processes.

use async_trait::async_trait;
use remuda_domain::{
    SandboxId,
    error::Result,
    execution::{BackendKind, SandboxRecord, SandboxState},
};

/// Records of sandboxes that exist, or should exist, outside the worker processes. These calls act for the system, not
/// for a tenant.
#[async_trait]
pub trait Sandboxes {
    /// Inserts or updates a record.
    async fn save_sandbox(&self, record: &SandboxRecord) -> Result<()>;
    /// Deletes the record of a sandbox that is gone; idempotent.
    async fn forget_sandbox(&self, id: SandboxId) -> Result<()>;
    /// Lists records, newest first.
    async fn list_sandboxes(&self, limit: u32) -> Result<Vec<SandboxRecord>>;
    /// Counts records by backend and state. Combinations without records are left out.
    async fn count_sandboxes(&self) -> Result<Vec<(BackendKind, SandboxState, u64)>>;
    /// The permanent id of this installation. It labels sandboxes, so that installations on the same engine do not mix
    /// them up.
    async fn installation(&self) -> Result<String>;
}
