//! Per-session state of tools, stored as files in the workspace.
//!
//! It therefore outlives workers, and people can read it. It is not a security boundary: commands of the
//! session can change it, and state that cannot be read counts as empty.

use remuda_domain::{
    SessionId,
    error::{Code, Error, Result},
};
use remuda_sandbox::{ByteRange, Sandbox, WriteMode};
use serde::{Serialize, de::DeserializeOwned};

const DIRECTORY: &str = ".openharness/state";
/// Upper bound of any state file.
const MAX_BYTES: u64 = 8 * 1024 * 1024;

/// Path of a state file.
pub(crate) fn path(what: &str, session: SessionId) -> String {
    format!("{DIRECTORY}/{what}/{session}.json")
}

pub(crate) async fn load<T: DeserializeOwned>(sandbox: &dyn Sandbox, path: &str) -> Option<T> {
    let contents = sandbox.read_file(path, ByteRange::first(MAX_BYTES)).await.ok()?;
    serde_json::from_slice(&contents.bytes).ok()
}

pub(crate) async fn save<T: Serialize + Sync>(sandbox: &dyn Sandbox, path: &str, value: &T) -> Result<()> {
    let json = serde_json::to_vec(value)
        .map_err(|error| Error::internal("cannot serialize the state as JSON").with_source(error))?;
    if sandbox.write_file(path, json, WriteMode::Overwrite).await?.created {
        exclude_from_git(sandbox).await?;
    }
    Ok(())
}

/// Deletes a state file, if it exists.
pub(crate) async fn delete(sandbox: &dyn Sandbox, path: &str) -> Result<()> {
    match sandbox.remove_file(path).await {
        Err(error) if error.code() == Code::FileNotFound => Ok(()),
        result => result,
    }
}

/// Excludes the state directory from git: it is not the user's work.
pub(crate) async fn exclude_from_git(sandbox: &dyn Sandbox) -> Result<()> {
    let path = format!("{DIRECTORY}/.gitignore");
    match sandbox.write_file(&path, b"*\n".to_vec(), WriteMode::CreateNew).await {
        Err(error) if error.code() == Code::AlreadyExists => Ok(()),
        result => result.map(drop),
    }
}
