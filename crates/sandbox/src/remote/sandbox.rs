//! The sandbox of a session: its container and its files.

use std::{path::Path, time::Duration};

use async_trait::async_trait;
use nix::unistd::{Gid, Uid};
use remuda_domain::{
    error::{Code, Error, Result},
    execution::ExecutionSite,
};
use remuda_supervisor::Limits;
use tokio_util::sync::CancellationToken;

use super::instance::ContainerHandle;
use crate::docker::create::{ContainerUser, WORKSPACE, environment};
use crate::docker::options::DockerOptions;
use crate::{
    command::{Command, ExecResult, Program},
    files::{HostFiles, blocking},
    output_sink::OutputSink,
    search_query::{GlobQuery, GlobResult, GrepQuery, GrepResult},
    supervised_command::{self, ExecutionSettings, Job},
    traits::{ByteRange, FileContents, FileStat, Listing, Sandbox, WriteMode, WriteOutcome},
};

/// Opens a workspace. Its directory must belong to the containers' user.
pub(crate) async fn open_workspace(directory: &Path, options: &DockerOptions) -> Result<HostFiles> {
    let files = HostFiles::open_as(directory, options.guard.clone(), Some(WORKSPACE.into())).await?;
    let (directory, user) = (directory.to_owned(), options.user);
    blocking(move || change_owner(&directory, user)).await?;
    Ok(files)
}

/// If this process is root, changes the owner of a root-owned workspace to the containers' user, which could
/// not write there otherwise.
fn change_owner(directory: &Path, user: ContainerUser) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    if !Uid::effective().is_root() {
        return Ok(());
    }
    let changed = std::fs::metadata(directory).and_then(|metadata| {
        if metadata.uid() != 0 {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        nix::unistd::chown(directory, Some(uid), Some(gid)).map_err(Into::into)
    });
    changed.map_err(|error| {
        Error::unavailable("cannot change the owner of the workspace to the container's user")
            .with_source(error)
    })
}

#[derive(Debug)]
pub(crate) struct DockerSandbox {
    files: HostFiles,
    container: ContainerHandle,
    grace: Duration,
}

impl DockerSandbox {
    pub(crate) fn new(files: HostFiles, container: ContainerHandle, options: &DockerOptions) -> Self {
        Self { files, container, grace: options.grace }
    }

    /// Working directory inside the container. The host checks that it is in the workspace, as for every
    /// backend.
    fn directory(&self, command: &Command) -> Result<String> {
        let Some(cwd) = &command.cwd else { return Ok(WORKSPACE.to_owned()) };
        let root = self.files.root();
        drop(root.directory(cwd)?);
        let relative = root.relative(cwd).map_err(|error| error.at("cwd"))?;
        Ok(format!("{WORKSPACE}/{}", relative.display()))
    }

    async fn run(&self, job: &Job<'_>) -> Result<ExecResult> {
        let limits = &self.container.spec.limits;
        let settings = ExecutionSettings {
            cwd: Some(self.directory(job.command)?),
            env: environment(&self.container.image),
            // The container limits memory and processes of all commands together.
            limits: Limits {
                open_files: limits.open_files,
                file_bytes: limits.file_bytes,
                ..Limits::default()
            },
            ..ExecutionSettings::default()
        };
        let mut channel = tokio::select! {
            () = job.cancel.cancelled() => return Ok(supervised_command::cancelled_before_start()),
            channel = self.container.connection.open() => channel?,
        };
        let result = supervised_command::run_command(&mut channel, job.request(settings), job).await;
        if result.is_ok() && !channel.has_ended() {
            // No process may survive, so the whole container is ended.
            self.container.connection.close("a command could not be killed");
        }
        result.map_err(|error| explain(error, job.command))
    }
}

/// Explains the failure of a script in an image without a shell, which can run programs only.
fn explain(error: Error, command: &Command) -> Error {
    match (error.code(), &command.program) {
        (Code::FileNotFound, Program::Shell(_)) if error.field() == Some("command") => {
            Error::new(Code::ImageUnusable, "the image has no shell: neither bash nor sh is in its PATH")
                .at("command")
        }
        _ => error,
    }
}

#[async_trait]
impl Sandbox for DockerSandbox {
    fn execution_site(&self) -> Option<ExecutionSite> {
        Some(self.container.execution_site())
    }

    fn workspace_path(&self) -> Option<&str> {
        self.files.root().command_path().to_str()
    }

    async fn exec(
        &self,
        command: Command,
        output: &dyn OutputSink,
        cancel: &CancellationToken,
    ) -> Result<ExecResult> {
        command.check()?;
        if cancel.is_cancelled() {
            return Ok(supervised_command::cancelled_before_start());
        }
        let job = Job { command: &command, files: &self.files, output, cancel, grace: self.grace };
        let Some(copy) = &self.container.copy else { return self.run(&job).await };
        let connection = &self.container.connection;
        copy.push(connection, &self.files).await?;
        let result = self.run(&job).await?;
        copy.pull(connection, &self.files).await?;
        Ok(result)
    }

    async fn read_file(&self, path: &str, range: ByteRange) -> Result<FileContents> {
        self.files.read(path, range).await
    }

    async fn write_file(&self, path: &str, contents: Vec<u8>, mode: WriteMode) -> Result<WriteOutcome> {
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

    async fn glob(&self, query: GlobQuery) -> Result<GlobResult> {
        self.files.glob(query).await
    }

    async fn grep(&self, query: GrepQuery) -> Result<GrepResult> {
        self.files.grep(query).await
    }
}
