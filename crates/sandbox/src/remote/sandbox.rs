//! The sandbox of a session: its instance and its files.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Error, Result},
    execution::ExecutionSite,
};
use remuda_supervisor::Limits;
use tokio_util::sync::CancellationToken;

use super::instance::InstanceHandle;
use crate::{
    command::{Command, ExecResult, Program},
    files::HostFiles,
    output_sink::OutputSink,
    search_query::{GlobQuery, GlobResult, GrepQuery, GrepResult},
    supervised_command::{self, ExecutionSettings, Job},
    traits::{ByteRange, FileContents, FileStat, Listing, Sandbox, WriteMode, WriteOutcome},
};

#[derive(Debug)]
pub(super) struct RemoteSandbox {
    files: HostFiles,
    instance: InstanceHandle,
    grace: Duration,
}

impl RemoteSandbox {
    pub(super) fn new(files: HostFiles, instance: InstanceHandle, grace: Duration) -> Self {
        files.root().set_command_path(instance.workspace.clone().into());
        Self { files, instance, grace }
    }

    /// Working directory inside the instance. The host checks that it is in the workspace, as for every
    /// backend.
    fn directory(&self, command: &Command) -> Result<String> {
        let Some(cwd) = &command.cwd else { return Ok(self.instance.workspace.clone()) };
        let root = self.files.root();
        drop(root.directory(cwd)?);
        let relative = root.relative(cwd).map_err(|error| error.at("cwd"))?;
        Ok(format!("{}/{}", self.instance.workspace, relative.display()))
    }

    async fn run(&self, job: &Job<'_>) -> Result<ExecResult> {
        let limits = &self.instance.spec.limits;
        let settings = ExecutionSettings {
            cwd: Some(self.directory(job.command)?),
            env: self.instance.env.clone(),
            // The instance limits memory and processes of all commands together.
            limits: Limits {
                open_files: limits.open_files,
                file_bytes: limits.file_bytes,
                ..Limits::default()
            },
            ..ExecutionSettings::default()
        };
        let mut channel = tokio::select! {
            () = job.cancel.cancelled() => return Ok(supervised_command::cancelled_before_start()),
            channel = self.instance.connection.open() => channel?,
        };
        let result = supervised_command::run_command(&mut channel, job.request(settings), job).await;
        if result.is_ok() && !channel.has_ended() {
            // No process may survive, so the whole instance is ended.
            self.instance.connection.close("a command could not be killed");
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
impl Sandbox for RemoteSandbox {
    fn execution_site(&self) -> Option<ExecutionSite> {
        Some(self.instance.execution_site())
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
        let disk_reserve = self.instance.spec.limits.disk_reserve_bytes;
        let job =
            Job { command: &command, files: &self.files, output, cancel, grace: self.grace, disk_reserve };
        let Some(copy) = &self.instance.copy else { return self.run(&job).await };
        let connection = &self.instance.connection;
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
