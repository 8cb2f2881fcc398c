//! The seam.

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
    execution::{BackendKind, ExecutionPolicy, Holder, Place},
};
use tokio_util::sync::CancellationToken;

use crate::{
    command::{Command, ExecResult},
    output::OutputSink,
    search::{GlobAnswer, GlobQuery, GrepAnswer, GrepQuery},
};

/// The most one [`Sandbox::read_file`] returns, whatever was asked for.
pub const MAX_READ_BYTES: u64 = 16 * 1024 * 1024;

/// A way to execute tools.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    fn kind(&self) -> BackendKind;

    /// Says whether [`acquire`](Self::acquire) could work now, without making anything: a run whose image is missing
    /// fails before its first call.
    async fn check(&self, request: &SandboxRequest) -> Result<()>;

    /// Gives the session its sandbox, made anew or found again.
    ///
    /// Acquiring twice for the same session leads to the same files. A failed or dropped call leaves nothing behind. The
    /// sandbox is in use as long as the returned handle lives; what becomes of an idle one is the backend's to decide.
    async fn acquire(&self, request: &SandboxRequest) -> Result<Arc<dyn Sandbox>>;

    /// Promises another call within `time`. If none comes, because this process was stopped or hangs, everything that
    /// runs in its sandboxes dies before that time is over. Called with every renewal of the worker's lease.
    fn feed(&self, time: Duration) {
        let _ = time;
    }

    /// From now on this process is that worker: what is made in advance carries its id.
    fn serve(&self, worker: WorkerId) {
        let _ = worker;
    }

    /// Which engine sandboxes are on, for machines with several; empty where there is none.
    async fn engine(&self) -> Result<String> {
        Ok(String::new())
    }

    /// Looks after idle and spare sandboxes until `stop`, then removes all of them.
    async fn keep(&self, stop: CancellationToken) {
        stop.cancelled().await;
    }

    /// What exists of this installation on this machine, whoever made it.
    async fn list(&self) -> Result<Vec<Existing>> {
        Ok(Vec::new())
    }

    /// Removes something that [`list`](Self::list) found. It may be gone already.
    async fn remove(&self, existing: &Existing) -> Result<()> {
        let _ = existing;
        Ok(())
    }

    /// What it enforces here, for people: `doctor` and the log of a starting worker.
    async fn describe(&self) -> Vec<Feature>;
}

/// Something that a backend made, found by looking at the machine and not at our own records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// What the engine calls it.
    pub handle: String,
    pub what: ExistingKind,
    /// Who made it, as its labels say.
    pub worker: WorkerId,
    pub sandbox: SandboxId,
    pub holder: Option<Holder>,
    /// In use by this process, by its own knowledge.
    pub ours: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingKind {
    Container,
    Volume,
}

/// One thing that a backend does, or cannot do, to hold what it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    pub name: &'static str,
    pub state: FeatureState,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureState {
    Enforced,
    /// Could be, and is not asked for.
    Off,
    Unavailable,
}

/// For whom a sandbox is, and over which files.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxRequest {
    pub tenant: TenantId,
    pub session: SessionId,
    /// The ownership under which it is used: what an older one left behind may be removed.
    pub epoch: Epoch,
    pub worker: WorkerId,
    /// The workspace on this host, absolute. Made when missing.
    pub workspace_root: PathBuf,
    pub policy: ExecutionPolicy,
}

/// A place with a session's files in which commands run.
///
/// Paths are relative to the workspace, or absolute and within it (as commands see it); one that leads out of it, by `..`
/// or by a link, is refused with `path_not_allowed`. Errors about a path name the field `path`.
#[async_trait]
pub trait Sandbox: fmt::Debug + Send + Sync + 'static {
    /// Where this is, unless that is the worker itself.
    fn place(&self) -> Option<Place> {
        None
    }

    /// Where commands see the workspace, if that can be said.
    fn workspace_path(&self) -> Option<&str> {
        None
    }

    /// Runs a command to its end.
    ///
    /// - A command that was started gives a result, also when it failed, ran too long or was cancelled; an error means
    ///   that it never ran.
    /// - When the call returns, nothing the command started is running; when the call is dropped, it is killed.
    /// - Memory is bounded by `output_limit` per stream, but everything is read, so that the command never blocks.
    /// - The command gets only the environment that the backend allows, plus `command.env`.
    async fn exec(
        &self,
        command: Command,
        output: &dyn OutputSink,
        cancel: &CancellationToken,
    ) -> Result<ExecResult>;

    /// Reads part of a regular file; anything else (directory, FIFO, device) is refused without blocking.
    async fn read_file(&self, path: &str, range: ByteRange) -> Result<FileContents>;

    /// Writes a whole file, atomically: readers see the old contents or the new ones. Missing parent directories are
    /// made; an existing file keeps its permissions; a link within the workspace is written through.
    async fn write_file(&self, path: &str, contents: Vec<u8>, mode: WriteMode) -> Result<Written>;

    /// Says what is at a path, following links.
    async fn stat(&self, path: &str) -> Result<FileStat>;

    /// What a directory holds, by name, at most `limit` entries.
    async fn list_files(&self, path: &str, limit: usize) -> Result<Listing>;

    /// Removes a file, a link (not what it points to) or an empty directory.
    async fn remove_file(&self, path: &str) -> Result<()>;

    /// Files whose path matches, newest first.
    async fn glob(&self, query: GlobQuery) -> Result<GlobAnswer>;

    /// Lines that match, in files that `.gitignore` does not exclude.
    async fn grep(&self, query: GrepQuery) -> Result<GrepAnswer>;
}

/// Which bytes of a file.
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

/// Part of a file. It was all of the rest when `offset + bytes.len() >= size`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileContents {
    pub bytes: Vec<u8>,
    /// The size of the whole file when it was opened.
    pub size: u64,
}

/// What happens when the file exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// It is an error: `already_exists`.
    CreateNew,
    Overwrite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Whether there was no such file before.
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
    /// Tells files apart and finds the same one again under another name.
    pub inode: u64,
}

/// One entry of a directory. Links are not followed.
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
    /// By name. Names that are not UTF-8 are shown with U+FFFD.
    pub entries: Vec<Entry>,
    /// There are more.
    pub truncated: bool,
}
