//! A session's container and its files.

use std::{path::Path, time::Duration};

use async_trait::async_trait;
use nix::unistd::{Gid, Uid};
use remuda_domain::{
    error::{Code, Error, Result},
    execution::Place,
};
use remuda_supervisor::Limits;
use tokio_util::sync::CancellationToken;

use super::{
    container::Held,
    create::{ContainerUser, WORKSPACE, environment},
    options::DockerOptions,
};
use crate::{
    command::{Command, ExecResult, Program},
    files::{HostFiles, blocking},
    output::OutputSink,
    search::{GlobAnswer, GlobQuery, GrepAnswer, GrepQuery},
    supervised::{self, Conditions, Job},
    traits::{ByteRange, FileContents, FileStat, Listing, Sandbox, WriteMode, Written},
};

/// Opens a workspace for both sides: its directory belongs to whoever commands are.
pub(super) async fn open_workspace(directory: &Path, options: &DockerOptions) -> Result<HostFiles> {
    let files = HostFiles::open_as(directory, options.guard.clone(), Some(WORKSPACE.into())).await?;
    let (directory, user) = (directory.to_owned(), options.user);
    blocking(move || give(&directory, user)).await?;
    Ok(files)
}

/// Root gives a directory of its own to the user of the containers, who could not write there otherwise.
fn give(directory: &Path, user: ContainerUser) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    if !Uid::effective().is_root() {
        return Ok(());
    }
    let given = std::fs::metadata(directory).and_then(|metadata| {
        if metadata.uid() != 0 {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        nix::unistd::chown(directory, Some(uid), Some(gid)).map_err(Into::into)
    });
    given.map_err(|error| {
        Error::unavailable("the workspace cannot be given to the container's user").with_source(error)
    })
}

#[derive(Debug)]
pub(super) struct DockerSandbox {
    files: HostFiles,
    container: Held,
    grace: Duration,
}

impl DockerSandbox {
    pub(super) fn new(files: HostFiles, container: Held, options: &DockerOptions) -> Self {
        Self { files, container, grace: options.grace }
    }

    /// Where a command begins, as it sees it. That it is in the workspace is decided on this side, as for every backend.
    fn directory(&self, command: &Command) -> Result<String> {
        let Some(cwd) = &command.cwd else { return Ok(WORKSPACE.to_owned()) };
        let root = self.files.root();
        drop(root.directory(cwd)?);
        let relative = root.relative(cwd).map_err(|error| error.at("cwd"))?;
        Ok(format!("{WORKSPACE}/{}", relative.display()))
    }

    async fn run(&self, job: &Job<'_>) -> Result<ExecResult> {
        let limits = &self.container.shape.limits;
        let conditions = Conditions {
            cwd: Some(self.directory(job.command)?),
            env: environment(&self.container.image),
            // The container itself limits memory and processes, for all commands together.
            limits: Limits {
                open_files: limits.open_files,
                file_bytes: limits.file_bytes,
                ..Limits::default()
            },
            ..Conditions::default()
        };
        let mut channel = tokio::select! {
            () = job.cancel.cancelled() => return Ok(supervised::never_begun()),
            channel = self.container.link.open() => channel?,
        };
        let result = supervised::drive(&mut channel, job.request(conditions), job).await;
        if result.is_ok() && !channel.has_ended() {
            // Nothing of it may live on, so everything in there dies.
            self.container.link.close("a command could not be killed");
        }
        result.map_err(|error| explained(error, job.command))
    }
}

/// An image may have no shell; then only programs can be run.
fn explained(error: Error, command: &Command) -> Error {
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
    fn place(&self) -> Option<Place> {
        Some(self.container.place())
    }

    fn workspace_path(&self) -> Option<&str> {
        self.files.root().seen_path().to_str()
    }

    async fn exec(
        &self,
        command: Command,
        output: &dyn OutputSink,
        cancel: &CancellationToken,
    ) -> Result<ExecResult> {
        command.check()?;
        if cancel.is_cancelled() {
            return Ok(supervised::never_begun());
        }
        let job = Job { command: &command, files: &self.files, output, cancel, grace: self.grace };
        let Some(copy) = &self.container.copy else { return self.run(&job).await };
        let link = &self.container.link;
        copy.push(link, &self.files).await?;
        let result = self.run(&job).await?;
        copy.pull(link, &self.files).await?;
        Ok(result)
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
