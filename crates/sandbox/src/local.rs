//! The local backend: commands run as processes of this user on the host's files.
//!
//! Each command has a supervisor (`crates/supervisor`) that leads its session and adopts its orphans, so no
//! process outlives the command, even one that left its process group. A command has no capabilities and is kept
//! from this process where the machine can do that. Its user's files and network are open to it, unless it is
//! confined ([`Hardening`]).

mod bubblewrap;
mod command_user;
mod describe;
mod environment;
mod exec;
mod hardening;
mod limits;
mod pipes;
mod process_group;
mod supervisor_starter;
mod system_files;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use remuda_domain::{
    error::{Error, Result},
    execution::{BackendKind, NO_NETWORK},
};
use remuda_supervisor::Limits;
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::hardening::Hardening;
use self::{
    environment::Environment,
    hardening::{CommandConfinement, ConfinementMethod},
    supervisor_starter::{MAX_SPARES, SupervisorStarter},
};
use crate::{
    command::{Command, ExecResult},
    files::{HostFiles, blocking},
    guard::Guard,
    output_sink::OutputSink,
    search_query::{GlobQuery, GlobResult, GrepQuery, GrepResult},
    supervised_command::Job,
    traits::{
        Backend, ByteRange, Feature, FileContents, FileStat, Listing, Sandbox, SandboxRequest, WriteMode,
        WriteOutcome,
    },
};

#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Shell for scripts: `bash`, or `sh` where there is none.
    pub shell: PathBuf,
    /// Grace period between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Kills commands when this process dies. Without a guard, commands survive a SIGKILL of this process:
    /// for tests only.
    pub guard: Option<Arc<Guard>>,
    pub hardening: Hardening,
    /// Program that confines commands, where it works. [`Hardening::Required`] needs it.
    pub bubblewrap: Option<PathBuf>,
    /// Whether the kernel's Landlock may be used where it works. For tests.
    pub landlock: bool,
    /// Further paths that confined commands may read.
    pub readable: Vec<PathBuf>,
}

impl Default for LocalOptions {
    fn default() -> Self {
        let bash = Path::new("/bin/bash");
        let shell = if bash.is_file() { bash } else { Path::new("/bin/sh") };
        Self {
            shell: shell.to_owned(),
            grace: Duration::from_millis(500),
            guard: None,
            hardening: Hardening::None,
            bubblewrap: bubblewrap::find(),
            landlock: true,
            readable: Vec::new(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct LocalBackend(Arc<Host>);

/// State shared by all sandboxes of the backend.
#[derive(Debug)]
struct Host {
    options: LocalOptions,
    environment: Environment,
    /// How commands are confined; detected at first use.
    confinement_method: OnceCell<ConfinementMethod>,
    /// Permits for spare supervisors, which wait for a command.
    spares: Arc<Semaphore>,
    /// Cancelled when no spare supervisors are needed any more.
    stop: CancellationToken,
    /// Starts of spare supervisors, and cleanup of abandoned calls.
    tasks: TaskTracker,
}

impl Host {
    async fn confinement_method(&self) -> Result<ConfinementMethod> {
        let detect = || ConfinementMethod::detect(&self.options);
        self.confinement_method.get_or_try_init(detect).await.cloned()
    }
}

impl LocalBackend {
    #[must_use]
    pub fn new(options: LocalOptions) -> Self {
        let environment = Environment::of_this_process(&options.shell);
        Self(Arc::new(Host {
            options,
            environment,
            confinement_method: OnceCell::new(),
            spares: Arc::new(Semaphore::new(MAX_SPARES)),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }))
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Local
    }

    async fn check(&self, _request: &SandboxRequest) -> Result<()> {
        self.0.confinement_method().await.map(drop)
    }

    async fn acquire(&self, request: &SandboxRequest) -> Result<Arc<dyn Sandbox>> {
        let files = HostFiles::open(&request.workspace_root, self.0.options.guard.clone()).await?;
        let method = self.0.confinement_method().await?;
        let (wanted, network) = (request.policy.limits, request.policy.network != NO_NETWORK);
        let (directory, readable) = (files.root().directory(".")?, self.0.options.readable.clone());
        let (confinement, limits) = blocking(move || {
            let scratch = wanted.scratch_bytes;
            let confinement = CommandConfinement::new(method, &directory, network, scratch, &readable)?;
            let limits = limits::of(&wanted, confinement.other_user());
            Ok((confinement, limits))
        })
        .await?;
        let starter = SupervisorStarter::new(Arc::clone(&self.0), files, confinement);
        let disk_reserve = request.policy.limits.disk_reserve_bytes;
        Ok(Arc::new(LocalSandbox { starter, limits, disk_reserve }))
    }

    async fn maintain(&self, stop: CancellationToken) {
        stop.cancelled().await;
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    async fn describe(&self) -> Vec<Feature> {
        let options = &self.0.options;
        describe::features(options.hardening, &self.0.confinement_method().await, options.guard.is_some())
    }
}

#[derive(Debug)]
struct LocalSandbox {
    starter: Arc<SupervisorStarter>,
    limits: Limits,
    disk_reserve: u64,
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn workspace_path(&self) -> Option<&str> {
        self.starter.files.root().command_path().to_str()
    }

    async fn exec(
        &self,
        command: Command,
        output: &dyn OutputSink,
        cancel: &CancellationToken,
    ) -> Result<ExecResult> {
        command.check()?;
        let (command, files, grace) = (&command, &self.starter.files, self.starter.host.options.grace);
        let disk_reserve = self.disk_reserve;
        exec::run(self, &Job { command, files, output, cancel, grace, disk_reserve }).await
    }

    async fn read_file(&self, path: &str, range: ByteRange) -> Result<FileContents> {
        self.starter.files.read(path, range).await
    }

    async fn write_file(&self, path: &str, contents: Vec<u8>, mode: WriteMode) -> Result<WriteOutcome> {
        self.starter.files.write(path, contents, mode).await
    }

    async fn stat(&self, path: &str) -> Result<FileStat> {
        self.starter.files.stat(path).await
    }

    async fn list_files(&self, path: &str, limit: usize) -> Result<Listing> {
        self.starter.files.list(path, limit).await
    }

    async fn remove_file(&self, path: &str) -> Result<()> {
        self.starter.files.remove(path).await
    }

    async fn glob(&self, query: GlobQuery) -> Result<GlobResult> {
        self.starter.files.glob(query).await
    }

    async fn grep(&self, query: GrepQuery) -> Result<GrepResult> {
        self.starter.files.grep(query).await
    }
}

/// Hides this process's memory and environment, which contain secrets, from processes of the same user that
/// lack `CAP_SYS_PTRACE`: otherwise a command could read `/proc/<worker>/environ`. Call it when a process starts
/// that has secrets, whether or not it executes commands: a worker of the same user may.
pub fn conceal_process() -> Result<()> {
    nix::sys::prctl::set_dumpable(false)
        .map_err(|errno| Error::internal("cannot make this process unreadable").with_source(errno))
}
