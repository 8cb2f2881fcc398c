//! The book of what exists.

use std::fmt;

use async_trait::async_trait;
use remuda_domain::{SandboxId, error::Result, execution::SandboxRecord};

/// Where backends write what they make: before they make it, so that a crash in between leaves a trace.
#[async_trait]
pub trait SandboxBook: fmt::Debug + Send + Sync + 'static {
    /// Writes what is known of a sandbox, new or changed.
    async fn save(&self, record: &SandboxRecord) -> Result<()>;
    /// It is gone.
    async fn forget(&self, sandbox: SandboxId) -> Result<()>;
}
