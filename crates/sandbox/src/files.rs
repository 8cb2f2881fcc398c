//! The files of a workspace on this machine, which is where every backend has them so far.
//!
//! Commands may run elsewhere (in a container that mounts the directory); the file tools work here, where they are
//! quick and give the same answers whichever backend runs the commands.

mod root;
mod write;

use std::{path::Path, sync::Arc};

use remuda_domain::error::{Code, Error, Result};

pub(crate) use self::root::Root;
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
        let directory = directory.to_owned();
        let root = blocking(move || Root::open(&directory)).await?;
        Ok(Self { root: Arc::new(root), guard })
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    pub(crate) async fn read(&self, path: &str, range: ByteRange) -> Result<FileContents> {
        self.with(path, move |root, path| root.read(path, range)).await
    }

    pub(crate) async fn write(&self, path: &str, contents: Vec<u8>, mode: WriteMode) -> Result<Written> {
        let guard = self.guard.clone();
        let write = move |root: &Root, path: &str| {
            guard.as_deref().map_or(Ok(()), Guard::check)?;
            root.write(path, &contents, mode)
        };
        self.with(path, write).await
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<FileStat> {
        self.with(path, Root::stat).await
    }

    pub(crate) async fn list(&self, _path: &str, _limit: usize) -> Result<Listing> {
        Err(Error::new(Code::Unimplemented, "not yet"))
    }

    pub(crate) async fn remove(&self, _path: &str) -> Result<()> {
        Err(Error::new(Code::Unimplemented, "not yet"))
    }

    pub(crate) async fn glob(&self, _query: GlobQuery) -> Result<GlobAnswer> {
        Err(Error::new(Code::Unimplemented, "not yet"))
    }

    pub(crate) async fn grep(&self, _query: GrepQuery) -> Result<GrepAnswer> {
        Err(Error::new(Code::Unimplemented, "not yet"))
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
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::internal("file access ended unexpectedly").with_source(error))?
}
