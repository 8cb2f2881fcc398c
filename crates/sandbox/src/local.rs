//! The local backend: commands are children of this process, files are the host's.
//!
//! What a command starts is found by its process group. A process that leaves the group on purpose (`setsid`) is not
//! found: it can no longer hold the call up, but it lives on. Holding such processes takes a backend with a boundary.

mod environment;
mod exec;
mod group;
mod root;
mod write;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use remuda_domain::error::{Error, Result};
use tokio_util::sync::CancellationToken;

use self::{environment::Environment, root::Root};
use crate::{
    command::{Command, ExecResult},
    guard::Guard,
    output::OutputSink,
    path,
    traits::{Backend, ByteRange, FileContents, FileStat, Sandbox, SandboxRequest, WriteMode, Written},
};

#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Runs scripts. `bash`, or `sh` where there is none.
    pub shell: PathBuf,
    /// How long a command may tidy up between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Without one, commands survive a SIGKILL of this process: for tests only.
    pub guard: Option<Arc<Guard>>,
}

impl Default for LocalOptions {
    fn default() -> Self {
        let bash = Path::new("/bin/bash");
        let shell = if bash.is_file() { bash } else { Path::new("/bin/sh") };
        Self { shell: shell.to_owned(), grace: Duration::from_millis(500), guard: None }
    }
}

#[derive(Clone, Debug)]
pub struct LocalBackend(Arc<Host>);

/// What every sandbox on this machine shares.
#[derive(Debug)]
struct Host {
    options: LocalOptions,
    environment: Environment,
}

impl LocalBackend {
    #[must_use]
    pub fn new(options: LocalOptions) -> Self {
        let environment = Environment::of_this_process(&options.shell);
        Self(Arc::new(Host { options, environment }))
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn name(&self) -> &'static str {
        "local"
    }

    async fn acquire(&self, request: &SandboxRequest) -> Result<Arc<dyn Sandbox>> {
        let path = request.workspace_root.clone();
        let root = blocking(move || Root::open(&path)).await?;
        Ok(Arc::new(LocalSandbox { host: Arc::clone(&self.0), root: Arc::new(root) }))
    }
}

#[derive(Debug)]
struct LocalSandbox {
    host: Arc<Host>,
    root: Arc<Root>,
}

#[async_trait]
impl Sandbox for LocalSandbox {
    async fn exec(
        &self,
        command: Command,
        output: &dyn OutputSink,
        cancel: &CancellationToken,
    ) -> Result<ExecResult> {
        command.check()?;
        exec::run(&self.host, &self.root, &command, output, cancel).await
    }

    async fn read_file(&self, path: &str, range: ByteRange) -> Result<FileContents> {
        self.with_file(path, move |root, path| root.read(path, range)).await
    }

    async fn write_file(&self, path: &str, contents: Vec<u8>, mode: WriteMode) -> Result<Written> {
        let guard = self.host.options.guard.clone();
        // A worker that was stopped for too long must not write into what is someone else's now.
        let write = move |root: &Root, path: &str| {
            guard.as_deref().map_or(Ok(()), Guard::check)?;
            root.write(path, &contents, mode)
        };
        self.with_file(path, write).await
    }

    async fn stat(&self, path: &str) -> Result<FileStat> {
        self.with_file(path, Root::stat).await
    }
}

impl LocalSandbox {
    async fn with_file<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(&Root, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        path::check("path", path)?;
        let (root, path) = (Arc::clone(&self.root), path.to_owned());
        blocking(move || work(&root, &path)).await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::internal("file access ended unexpectedly").with_source(error))?
}

/// Hides this process's memory and environment, where its secrets are, from processes of the same user that lack
/// `CAP_SYS_PTRACE`: a command could read `/proc/<worker>/environ` otherwise. For the start of a worker's `main`.
pub fn conceal_process() -> Result<()> {
    nix::sys::prctl::set_dumpable(false)
        .map_err(|errno| Error::internal("cannot make this process unreadable").with_source(errno))
}
