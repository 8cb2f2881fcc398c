//! What is too long to be answered, as files in the workspace.

use remuda_domain::{ToolCallId, error::Result};
use remuda_sandbox::{Sandbox, WriteMode};

use crate::state::keep_out_of_git;

/// Where they are, one directory for each call.
pub(crate) const DIRECTORY: &str = ".openharness/state/artifacts";

/// Keeps the whole text of a result, and says where.
pub async fn keep(sandbox: &dyn Sandbox, call: ToolCallId, text: &str) -> Result<String> {
    let path = format!("{DIRECTORY}/{call}/output");
    sandbox.write_file(&path, text.as_bytes().to_vec(), WriteMode::Overwrite).await?;
    if let Err(error) = keep_out_of_git(sandbox).await {
        tracing::debug!(error = error.chain(), "artifacts are visible to git");
    }
    Ok(path)
}
