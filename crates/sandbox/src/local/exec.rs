//! Running one command: a supervisor per call.

use remuda_domain::error::Result;

use super::{
    LocalSandbox,
    hardening::{TEMPORARY, Walls},
    wire::Pipes,
};
use crate::{
    command::ExecResult,
    supervised::{self, Conditions, Job},
};

pub(super) async fn run(sandbox: &LocalSandbox, job: &Job<'_>) -> Result<ExecResult> {
    if job.cancel.is_cancelled() {
        return Ok(supervised::never_begun());
    }
    let request = job.request(conditions(sandbox)?);
    let mut pipes = sandbox.starter.supervisor(job.command.cwd.as_deref()).await?;
    let result = match watch(sandbox, &mut pipes).await {
        Ok(()) => {
            sandbox.starter.prepare();
            supervised::drive(&mut pipes, request, job).await
        }
        Err(error) => Err(error),
    };
    pipes.close().await;
    result
}

fn conditions(sandbox: &LocalSandbox) -> Result<Conditions> {
    let (host, starter) = (&sandbox.starter.host, &sandbox.starter);
    let mut env = host.environment.to_vec();
    if starter.walls != Walls::None {
        env.push(("TMPDIR".to_owned(), TEMPORARY.to_owned()));
    }
    Ok(Conditions {
        shell: host.options.shell.to_str().map(str::to_owned),
        cwd: None,
        env,
        limits: sandbox.limits,
        confinement: starter.walls.confinement(&starter.workspace, starter.network)?,
    })
}

/// Puts the supervisor and its group under watch: only then the command may begin.
async fn watch(sandbox: &LocalSandbox, pipes: &mut Pipes) -> Result<()> {
    if let (Some(guard), Some(group)) = (&sandbox.starter.host.options.guard, pipes.group.id()) {
        pipes.group.guarded_by(guard.register(group).await?);
    }
    Ok(())
}
