//! The seam.

use std::{fmt, path::PathBuf, sync::Arc, time::SystemTime};

use async_trait::async_trait;
use remuda_domain::{Epoch, SessionId, TenantId, error::Result};
use tokio_util::sync::CancellationToken;

use crate::{
    command::{Command, ExecResult},
    output::OutputSink,
};

/// The most one [`Sandbox::read_file`] returns, whatever was asked for.
pub const MAX_READ_BYTES: u64 = 16 * 1024 * 1024;

/// A way to execute tools.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// The name by which policies choose it: `local`, `docker`, ….
    fn name(&self) -> &'static str;

    /// Gives the session its sandbox, made anew or found again.
    ///
    /// Acquiring twice for the same session leads to the same files. A failed or dropped call leaves nothing behind.
    async fn acquire(&self, request: &SandboxRequest) -> Result<Arc<dyn Sandbox>>;
}

/// For whom a sandbox is, and over which files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRequest {
    pub tenant: TenantId,
    pub session: SessionId,
    /// The ownership under which it is used: what an older one left behind may be removed.
    pub epoch: Epoch,
    /// The workspace on this host, absolute. Made when missing.
    pub workspace_root: PathBuf,
}

/// A place with a session's files in which commands run.
///
/// Paths are relative to the workspace, or absolute and within it; one that leads out of it, by `..` or by a link, is
/// refused with `path_not_allowed`. Errors about a path name the field `path`.
#[async_trait]
pub trait Sandbox: fmt::Debug + Send + Sync + 'static {
    /// Runs a command to its end.
    ///
    /// - A command that was started gives a result, also when it failed, ran too long or was cancelled; an error means
    ///   that it never ran.
    /// - When the call returns, nothing the command started is running; when the call is dropped, it is killed.
    /// - Memory is bounded by `output_limit` per stream, but everything is read, so that the command never blocks.
    /// - The command gets no input and only the environment that the backend allows, plus `command.env`.
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
}
