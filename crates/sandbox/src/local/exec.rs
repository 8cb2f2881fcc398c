//! Running one command: a supervisor per call.

use std::{io, os::fd::AsRawFd, process::Stdio, time::Duration};

use remuda_domain::error::{Error, Result};
use remuda_supervisor::FromSupervisor;
use tokio::{process::Command as Process, time::timeout};

use super::{LocalSandbox, group::Group, wire::Pipes};
use crate::{
    command::ExecResult,
    supervised::{self, Conditions, Job, Wire},
    supervisor_binary,
};

/// How long a supervisor may take to begin; a busy machine takes a fraction of a second.
const START_TIME: Duration = Duration::from_secs(10);

pub(super) async fn run(sandbox: &LocalSandbox, job: &Job<'_>) -> Result<ExecResult> {
    let host = &sandbox.host;
    if job.cancel.is_cancelled() {
        return Ok(supervised::never_begun());
    }
    let mut pipes = spawn(sandbox, job)?;
    let begun = begin(sandbox, &mut pipes).await;
    let conditions = Conditions {
        shell: host.options.shell.to_str().map(str::to_owned),
        cwd: None,
        env: host.environment.to_vec(),
        limits: sandbox.limits,
        confinement: None,
    };
    let result = match begun {
        Ok(()) => supervised::drive(&mut pipes, job.request(conditions), job).await,
        Err(error) => Err(error),
    };
    pipes.close().await;
    result
}

fn spawn(sandbox: &LocalSandbox, job: &Job<'_>) -> Result<Pipes> {
    let mut process = Process::new(supervisor_binary::path()?);
    // By descriptor: the path could be another directory by the time the child is there.
    let directory = sandbox.files.root().directory(job.command.cwd.as_deref().unwrap_or("."))?;
    let mut child = process
        .arg("supervise")
        .current_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(not_started)?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let group = Group::new(child, sandbox.host.tasks.clone()).map_err(not_started)?;
    let (input, output) = pipes.ok_or_else(|| not_started(io::Error::other("no pipes")))?;
    Ok(Pipes::new(group, input, output))
}

/// Waits until the supervisor leads its group, and puts it under watch: only then the command may begin.
async fn begin(sandbox: &LocalSandbox, pipes: &mut Pipes) -> Result<()> {
    let ready = timeout(START_TIME, pipes.receive()).await;
    if !matches!(ready, Ok(Ok(FromSupervisor::Ready))) {
        return Err(Error::unavailable("the process that is to run the command does not begin"));
    }
    if let (Some(guard), Some(group)) = (&sandbox.host.options.guard, pipes.group.id()) {
        pipes.group.guarded_by(guard.register(group).await?);
    }
    Ok(())
}

fn not_started(error: io::Error) -> Error {
    Error::unavailable("the command cannot be started").with_source(error)
}
