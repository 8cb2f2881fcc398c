//! The traits that backends implement, and their data types.

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use remuda_domain::{
    Epoch, SandboxId, SessionId, TenantId, WorkerId,
    error::Result,
    execution::{BackendKind, ExecutionPolicy, ExecutionSite, Holder},
};
use tokio_util::sync::CancellationToken;

use crate::{
    command::{Command, ExecResult},
    output_sink::OutputSink,
    search_query::{GlobQuery, GlobResult, GrepQuery, GrepResult},
};

/// The most bytes one [`Sandbox::read_file`] returns, whatever limit was requested.
pub const MAX_READ_BYTES: u64 = 16 * 1024 * 1024;

/// An execution backend: creates and manages sandboxes.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    fn kind(&self) -> BackendKind;

    /// Checks whether [`acquire`](Self::acquire) could succeed now, without creating anything: a run whose
    /// image is missing fails before its first tool call.
    async fn check(&self, request: &SandboxRequest) -> Result<()>;

    /// Returns the session's sandbox, existing or new.
    ///
    /// Acquiring twice for the same session gives access to the same files. A failed or dropped call leaves
    /// nothing behind. The sandbox is in use as long as the returned handle lives; the backend decides what
    /// happens to an idle one.
    async fn acquire(&self, request: &SandboxRequest) -> Result<Arc<dyn Sandbox>>;

    /// Feeds the watchdog: if no other call follows within `time`, because this process was stopped or hangs,
    /// everything that runs in its sandboxes is killed before that time has passed. Called with every renewal
    /// of the worker's lease.
    fn feed_watchdog(&self, time: Duration) {
        let _ = time;
    }

    /// Sets the worker id of this process, with which sandboxes created in advance are labelled.
    fn set_worker(&self, worker: WorkerId) {
        let _ = worker;
    }

    /// Id of the container engine, for machines with several; empty for backends without an engine.
    async fn engine_id(&self) -> Result<String> {
        Ok(String::new())
    }

    /// Maintains idle and spare sandboxes until `stop`, then removes all of them.
    async fn maintain(&self, stop: CancellationToken) {
        stop.cancelled().await;
    }

    /// Lists the resources of this installation on this machine, of all workers.
    async fn list(&self) -> Result<Vec<EngineResource>> {
        Ok(Vec::new())
    }

    /// Removes a resource that [`list`](Self::list) found. Succeeds if it is already gone.
    async fn remove(&self, existing: &EngineResource) -> Result<()> {
        let _ = existing;
        Ok(())
    }

    /// What the backend enforces on this machine, for `doctor` and the log of a starting worker.
    async fn describe(&self) -> Vec<Feature>;
}

/// A container or volume that a backend created, as found on the machine (not in the registry).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineResource {
    /// The engine's id or name.
    pub handle: String,
    pub kind: EngineResourceKind,
    /// The creating worker, according to its labels.
    pub worker: WorkerId,
    pub sandbox: SandboxId,
    pub holder: Option<Holder>,
    /// Created by this backend instance, which also cleans it up.
    pub ours: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineResourceKind {
    Container,
    Volume,
}

/// One containment feature of a backend and its state on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    pub name: &'static str,
    pub state: FeatureState,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureState {
    Enforced,
    /// As far as this machine can; the detail says what is missing.
    Partial,
    /// Available, but not configured.
    Off,
    Unavailable,
}

/// Request for the sandbox of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxRequest {
    pub tenant: TenantId,
    pub session: SessionId,
    /// Epoch of the session's ownership. Sandboxes of older epochs may be removed.
    pub epoch: Epoch,
    pub worker: WorkerId,
    /// Absolute path of the workspace on this host. Created when missing.
    pub workspace_root: PathBuf,
    pub policy: ExecutionPolicy,
}

/// A session's files and a place to run commands on them.
///
/// Paths are relative to the workspace, or absolute and within it (as commands see it). A path that leaves
/// the workspace, by `..` or by a link, is rejected with `path_not_allowed`. Errors about a path name the
/// field `path`.
#[async_trait]
pub trait Sandbox: fmt::Debug + Send + Sync + 'static {
    /// Where commands execute; `None` for the worker's own machine.
    fn execution_site(&self) -> Option<ExecutionSite> {
        None
    }

    /// Path of the workspace as commands see it, if it is valid UTF-8.
    fn workspace_path(&self) -> Option<&str> {
        None
    }

    /// Runs a command until it ends.
    ///
    /// - A command that was started yields a result, even if it failed, timed out or was cancelled. An error
    ///   means that it never ran, or that its sandbox was lost.
    /// - When the call returns, no process of the command is running; when the call is dropped, they are
    ///   killed.
    /// - Memory is bounded by `output_limit` per stream, but all output is read, so that the command never
    ///   blocks.
    /// - The command gets only the environment that the backend allows, plus `command.env`.
    async fn exec(
        &self,
        command: Command,
        output: &dyn OutputSink,
        cancel: &CancellationToken,
    ) -> Result<ExecResult>;

    /// Reads part of a regular file; anything else (directory, FIFO, device) is rejected without blocking.
    async fn read_file(&self, path: &str, range: ByteRange) -> Result<FileContents>;

    /// Writes a whole file atomically: readers see the old contents or the new ones. Missing parent
    /// directories are created; an existing file keeps its permissions; a link within the workspace is
    /// followed.
    async fn write_file(&self, path: &str, contents: Vec<u8>, mode: WriteMode) -> Result<WriteOutcome>;

    /// Reads the metadata of a path, following links.
    async fn stat(&self, path: &str) -> Result<FileStat>;

    /// Lists a directory by name, at most `limit` entries.
    async fn list_files(&self, path: &str, limit: usize) -> Result<Listing>;

    /// Removes a file, a link (not its target) or an empty directory.
    async fn remove_file(&self, path: &str) -> Result<()>;

    /// Finds files whose path matches, newest first.
    async fn glob(&self, query: GlobQuery) -> Result<GlobResult>;

    /// Finds matching lines in files that `.gitignore` does not exclude.
    async fn grep(&self, query: GrepQuery) -> Result<GrepResult>;
}

/// A byte range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    pub offset: u64,
    pub limit: u64,
}

impl ByteRange {
    /// The first `limit` bytes.
    #[must_use]
    pub const fn first(limit: u64) -> Self {
        Self { offset: 0, limit }
    }
}

/// Part of a file. It reaches the end of the file if `offset + bytes.len() >= size`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileContents {
    pub bytes: Vec<u8>,
    /// Size of the whole file when it was opened.
    pub size: u64,
}

/// Behaviour when the file exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// Fails with `already_exists`.
    CreateNew,
    Overwrite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOutcome {
    /// Whether the file did not exist before.
    pub created: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    /// FIFO, socket or device.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    pub kind: FileKind,
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    pub modified: Option<SystemTime>,
    /// Identifies the file, also under another name.
    pub inode: u64,
}

/// A directory entry. Links are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub kind: EntryKind,
    pub size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Directory,
    Link,
    Other,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Ordered by name. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub entries: Vec<Entry>,
    /// The directory has more entries.
    pub truncated: bool,
}
