//! Artifacts: tool output that exceeds the result limit, stored as files in the workspace.

use remuda_domain::{ToolCallId, error::Result};
use remuda_sandbox::{Sandbox, WriteMode};

use crate::state::exclude_from_git;

/// Base directory; each call has its own subdirectory.
pub(crate) const DIRECTORY: &str = ".openharness/state/artifacts";

/// Stores the complete text of a result and returns its path.
pub async fn save(sandbox: &dyn Sandbox, call: ToolCallId, text: &str) -> Result<String> {
    let path = format!("{DIRECTORY}/{call}/output");
    sandbox.write_file(&path, text.as_bytes().to_vec(), WriteMode::Overwrite).await?;
    if let Err(error) = exclude_from_git(sandbox).await {
        tracing::debug!(error = error.chain(), "cannot exclude artifacts from git");
    }
    Ok(path)
}
