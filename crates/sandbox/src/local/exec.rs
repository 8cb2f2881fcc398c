//! Runs one command with its own supervisor.

use remuda_domain::error::Result;

use super::{LocalSandbox, command_user::CommandUser, pipes::SupervisorPipes};
use crate::{
    command::ExecResult,
    supervised_command::{self, ExecutionSettings, Job},
};

pub(super) async fn run(sandbox: &LocalSandbox, job: &Job<'_>) -> Result<ExecResult> {
    if job.cancel.is_cancelled() {
        return Ok(supervised_command::cancelled_before_start());
    }
    let request = job.request(settings(sandbox)?);
    let mut pipes = sandbox.starter.supervisor(job.command.cwd.as_deref()).await?;
    let result = match watch(sandbox, &mut pipes).await {
        Ok(()) => {
            sandbox.starter.start_spare();
            supervised_command::run_command(&mut pipes, request, job).await
        }
        Err(error) => Err(error),
    };
    pipes.close().await;
    result
}

fn settings(sandbox: &LocalSandbox) -> Result<ExecutionSettings> {
    let (host, confinement) = (&sandbox.starter.host, &sandbox.starter.confinement);
    let mut env = host.environment.to_vec();
    env.extend(confinement.environment());
    Ok(ExecutionSettings {
        shell: host.options.shell.to_str().map(str::to_owned),
        cwd: None,
        env,
        limits: sandbox.limits,
        user: confinement.other_user(),
        file_capabilities: confinement.user == CommandUser::RootForFiles,
        confinement: confinement.rules()?,
    })
}

/// Registers the supervisor's process group with the guard, which must happen before the command starts.
async fn watch(sandbox: &LocalSandbox, pipes: &mut SupervisorPipes) -> Result<()> {
    if let (Some(guard), Some(group)) = (&sandbox.starter.host.options.guard, pipes.group.id()) {
        pipes.group.set_registration(guard.register(group).await?);
    }
    Ok(())
}
