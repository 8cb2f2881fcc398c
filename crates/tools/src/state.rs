//! What tools remember about a session, as files in its workspace.
//!
//! So it outlives workers, and anyone can look. It is an aid, not a boundary: commands of the session can change it, and
//! whatever cannot be read counts as nothing remembered.

use remuda_domain::{
    SessionId,
    error::{Code, Error, Result},
};
use remuda_sandbox::{ByteRange, Sandbox, WriteMode};
use serde::{Serialize, de::DeserializeOwned};

const DIRECTORY: &str = ".openharness/state";
/// Larger than anything that is saved.
const MAX_BYTES: u64 = 8 * 1024 * 1024;

/// Where something about a session is kept.
pub(crate) fn path(what: &str, session: SessionId) -> String {
    format!("{DIRECTORY}/{what}/{session}.json")
}

pub(crate) async fn load<T: DeserializeOwned>(sandbox: &dyn Sandbox, path: &str) -> Option<T> {
    let contents = sandbox.read_file(path, ByteRange::first(MAX_BYTES)).await.ok()?;
    serde_json::from_slice(&contents.bytes).ok()
}

pub(crate) async fn save<T: Serialize + Sync>(sandbox: &dyn Sandbox, path: &str, value: &T) -> Result<()> {
    let json = serde_json::to_vec(value)
        .map_err(|error| Error::internal("state cannot be written as JSON").with_source(error))?;
    if sandbox.write_file(path, json, WriteMode::Overwrite).await?.created {
        keep_out_of_git(sandbox).await?;
    }
    Ok(())
}

/// Forgets what was saved, if anything was.
pub(crate) async fn forget(sandbox: &dyn Sandbox, path: &str) -> Result<()> {
    match sandbox.remove_file(path).await {
        Err(error) if error.code() == Code::FileNotFound => Ok(()),
        result => result,
    }
}

/// None of this is the user's work.
pub(crate) async fn keep_out_of_git(sandbox: &dyn Sandbox) -> Result<()> {
    let path = format!("{DIRECTORY}/.gitignore");
    match sandbox.write_file(&path, b"*\n".to_vec(), WriteMode::CreateNew).await {
        Err(error) if error.code() == Code::AlreadyExists => Ok(()),
        result => result.map(drop),
    }
}
