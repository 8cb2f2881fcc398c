//! The local backend: commands are children of this process, files are the host's.
//!
//! What a command starts is found by its process group. A process that leaves the group on purpose (`setsid`) is not
//! found: it can no longer hold the call up, but it lives on. Holding such processes takes a backend with a boundary.

mod environment;
mod exec;
mod group;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use remuda_domain::{
    error::{Error, Result},
    execution::{BackendKind, ResourceLimits},
};
use tokio_util::sync::CancellationToken;

use self::environment::Environment;
use crate::{
    command::{Command, ExecResult},
    files::HostFiles,
    guard::Guard,
    output::OutputSink,
    search::{GlobAnswer, GlobQuery, GrepAnswer, GrepQuery},
    traits::{
        Backend, ByteRange, Feature, FileContents, FileStat, Listing, Sandbox, SandboxRequest, WriteMode,
        Written,
    },
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
    fn kind(&self) -> BackendKind {
        BackendKind::Local
    }

    async fn check(&self, _request: &SandboxRequest) -> Result<()> {
        Ok(())
    }

    async fn acquire(&self, request: &SandboxRequest) -> Result<Arc<dyn Sandbox>> {
        let files = HostFiles::open(&request.workspace_root, self.0.options.guard.clone()).await?;
        Ok(Arc::new(LocalSandbox { host: Arc::clone(&self.0), files, limits: request.policy.limits }))
    }

    async fn describe(&self) -> Vec<Feature> {
        Vec::new()
    }
}

#[derive(Debug)]
struct LocalSandbox {
    host: Arc<Host>,
    files: HostFiles,
    #[expect(dead_code, reason = "to be applied by the supervisor")]
    limits: ResourceLimits,
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
        exec::run(&self.host, self.files.root(), &command, output, cancel).await
    }

    async fn read_file(&self, path: &str, range: ByteRange) -> Result<FileContents> {
        self.files.read(path, range).await
    }

    async fn write_file(&self, path: &str, contents: Vec<u8>, mode: WriteMode) -> Result<Written> {
        self.files.write(path, contents, mode).await
    }

    async fn stat(&self, path: &str) -> Result<FileStat> {
        self.files.stat(path).await
    }

    async fn list_files(&self, path: &str, limit: usize) -> Result<Listing> {
        self.files.list(path, limit).await
    }

    async fn remove_file(&self, path: &str) -> Result<()> {
        self.files.remove(path).await
    }

    async fn glob(&self, query: GlobQuery) -> Result<GlobAnswer> {
        self.files.glob(query).await
    }

    async fn grep(&self, query: GrepQuery) -> Result<GrepAnswer> {
        self.files.grep(query).await
    }
}

/// Hides this process's memory and environment, where its secrets are, from processes of the same user that lack
/// `CAP_SYS_PTRACE`: a command could read `/proc/<worker>/environ` otherwise. For the start of a worker's `main`.
pub fn conceal_process() -> Result<()> {
    nix::sys::prctl::set_dumpable(false)
        .map_err(|errno| Error::internal("cannot make this process unreadable").with_source(errno))
}
