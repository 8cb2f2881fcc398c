//! The files of a workspace on this machine, which is where every backend has them so far.
//!
//! Commands may run elsewhere (in a container that mounts the directory); the file tools work here, where they are
//! quick and give the same answers whichever backend runs the commands.

mod bounds;
mod carry;
mod glob;
mod grep;
mod ignored;
mod lines;
mod list;
mod newest;
mod root;
mod spill;
mod walk;
mod write;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use remuda_domain::error::{Error, Result};

use self::bounds::Bounds;
pub(crate) use self::{carry::Survey, root::Root};
use crate::{
    guard::Guard,
    path,
    search::{GlobAnswer, GlobQuery, GrepAnswer, GrepQuery},
    traits::{ByteRange, FileContents, FileStat, Listing, WriteMode, Written},
};

/// A workspace's files. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct HostFiles {
    root: Arc<Root>,
    /// A worker that was stopped for too long must not write into what is someone else's now.
    guard: Option<Arc<Guard>>,
}

impl HostFiles {
    /// Opens the workspace's directory, making it first if it is missing.
    pub(crate) async fn open(directory: &Path, guard: Option<Arc<Guard>>) -> Result<Self> {
        Self::open_as(directory, guard, None).await
    }

    /// The same, for commands that see the workspace elsewhere, like `/workspace`: absolute paths beneath that are
    /// taken as well.
    pub(crate) async fn open_as(
        directory: &Path,
        guard: Option<Arc<Guard>>,
        seen_as: Option<PathBuf>,
    ) -> Result<Self> {
        let directory = directory.to_owned();
        let root = blocking(move || Root::open(&directory, seen_as)).await?;
        Ok(Self { root: Arc::new(root), guard })
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    pub(crate) async fn read(&self, path: &str, range: ByteRange) -> Result<FileContents> {
        self.with(path, move |root, path| root.read(path, range)).await
    }

    pub(crate) async fn write(&self, path: &str, contents: Vec<u8>, mode: WriteMode) -> Result<Written> {
        self.change(path, move |root, path| root.write(path, &contents, mode)).await
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<FileStat> {
        self.with(path, Root::stat).await
    }

    pub(crate) async fn list(&self, path: &str, limit: usize) -> Result<Listing> {
        self.with(path, move |root, path| root.list(path, limit)).await
    }

    pub(crate) async fn remove(&self, path: &str) -> Result<()> {
        self.change(path, Root::remove).await
    }

    pub(crate) async fn glob(&self, query: GlobQuery) -> Result<GlobAnswer> {
        self.search(query.path.clone(), move |root, bounds| glob::search(root, &query, bounds)).await
    }

    pub(crate) async fn grep(&self, query: GrepQuery) -> Result<GrepAnswer> {
        self.search(query.path.clone(), move |root, bounds| grep::search(root, &query, bounds)).await
    }

    async fn with<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(&Root, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        path::check("path", path)?;
        let (root, path) = (Arc::clone(&self.root), path.to_owned());
        blocking(move || work(&root, &path)).await
    }

    async fn change<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(&Root, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let guard = self.guard.clone();
        let checked = move |root: &Root, path: &str| {
            guard.as_deref().map_or(Ok(()), Guard::check)?;
            work(root, path)
        };
        self.with(path, checked).await
    }

    /// Looks through many files: within bounds, and no longer than someone waits for the answer.
    async fn search<T: Send + 'static>(
        &self,
        path: String,
        work: impl FnOnce(&Root, &Bounds) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (bounds, _stops_when_dropped) = Bounds::new();
        self.with(&path, move |root, _| work(root, &bounds)).await
    }
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::internal("file access ended unexpectedly").with_source(error))?
}
