//! Registry of existing sandboxes.

use std::fmt;

use async_trait::async_trait;
use remuda_domain::{SandboxId, error::Result, execution::SandboxRecord};

/// Persistent record of sandboxes. Backends save a record before they create the sandbox, so that a crash in
/// between leaves a trace.
#[async_trait]
pub trait SandboxRegistry: fmt::Debug + Send + Sync + 'static {
    /// Inserts or updates the record of a sandbox.
    async fn save(&self, record: &SandboxRecord) -> Result<()>;
    /// Deletes the record: the sandbox was removed.
    async fn forget(&self, sandbox: SandboxId) -> Result<()>;
}
