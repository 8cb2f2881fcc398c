//! File access to a workspace on the host, used by every backend.
//!
//! Commands may run elsewhere (in a container that mounts the directory). The file tools work on the host,
//! where they are fast and give the same results whichever backend runs the commands.

mod glob;
mod grep;
mod grep_matches;
mod ignore_rules;
mod list;
mod newest_files;
mod root;
mod search_limits;
mod spill;
mod transfer;
mod walk;
mod write;

use std::{path::Path, sync::Arc};

use nix::sys::statvfs::fstatvfs;
use remuda_domain::error::{Error, Result};

use self::search_limits::SearchLimits;
pub(crate) use self::{root::Root, transfer::WorkspaceEntries};
use crate::{
    guard::Guard,
    path,
    search_query::{GlobQuery, GlobResult, GrepQuery, GrepResult},
    traits::{ByteRange, FileContents, FileStat, Listing, WriteMode, WriteOutcome},
};

/// Files of a workspace. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct HostFiles {
    root: Arc<Root>,
    /// Blocks writes of a worker that was stopped for too long: the workspace may belong to another worker
    /// now.
    guard: Option<Arc<Guard>>,
}

impl HostFiles {
    /// Opens the workspace's directory. Creates it when missing.
    pub(crate) async fn open(directory: &Path, guard: Option<Arc<Guard>>) -> Result<Self> {
        let directory = directory.to_owned();
        let root = blocking(move || Root::open(&directory)).await?;
        Ok(Self { root: Arc::new(root), guard })
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// Bytes that are free on the file system of the workspace.
    pub(crate) fn free_bytes(&self) -> impl Future<Output = Result<u64>> + Send + use<> {
        let root = Arc::clone(&self.root);
        blocking(move || {
            let found = fstatvfs(root.directory(".")?).map_err(|errno| {
                Error::unavailable("cannot determine the free space of the workspace").with_source(errno)
            })?;
            Ok(found.blocks_available().saturating_mul(found.fragment_size()))
        })
    }

    pub(crate) async fn read(&self, path: &str, range: ByteRange) -> Result<FileContents> {
        self.run_blocking_at(path, move |root, path| root.read(path, range)).await
    }

    pub(crate) async fn write(&self, path: &str, contents: Vec<u8>, mode: WriteMode) -> Result<WriteOutcome> {
        self.run_guarded_at(path, move |root, path| root.write(path, &contents, mode)).await
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<FileStat> {
        self.run_blocking_at(path, Root::stat).await
    }

    pub(crate) async fn list(&self, path: &str, limit: usize) -> Result<Listing> {
        self.run_blocking_at(path, move |root, path| root.list(path, limit)).await
    }

    pub(crate) async fn remove(&self, path: &str) -> Result<()> {
        self.run_guarded_at(path, Root::remove).await
    }

    pub(crate) async fn glob(&self, query: GlobQuery) -> Result<GlobResult> {
        self.search(query.path.clone(), move |root, limits| glob::search(root, &query, limits)).await
    }

    pub(crate) async fn grep(&self, query: GrepQuery) -> Result<GrepResult> {
        self.search(query.path.clone(), move |root, limits| grep::search(root, &query, limits)).await
    }

    async fn run_blocking_at<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(&Root, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        path::check("path", path)?;
        let (root, path) = (Arc::clone(&self.root), path.to_owned());
        blocking(move || work(&root, &path)).await
    }

    async fn run_guarded_at<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(&Root, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let guard = self.guard.clone();
        let checked = move |root: &Root, path: &str| {
            guard.as_deref().map_or(Ok(()), Guard::check)?;
            work(root, path)
        };
        self.run_blocking_at(path, checked).await
    }

    /// Runs a search over many files: limited, and cancelled when the caller drops the future.
    async fn search<T: Send + 'static>(
        &self,
        path: String,
        work: impl FnOnce(&Root, &SearchLimits) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (limits, _stops_when_dropped) = SearchLimits::new();
        self.run_blocking_at(&path, move |root, _| work(root, &limits)).await
    }
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::internal("file access ended unexpectedly").with_source(error))?
}
