//! Runs one command through a supervisor, for every backend.

mod stream_capture;

use std::{future::Future, time::Duration};

use remuda_domain::error::{Code, Error, Result};
use remuda_supervisor::{
    Confinement, End, ExitStatus, FromSupervisor, Limits, Program as SupervisorProgram, Refusal, RefusalKind,
    Request, ToSupervisor, User,
};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::stream_capture::StreamCapture;
use crate::{
    command::{Command, ExecResult, ExecStatus, Program, Usage},
    disk_watch::DiskWatch,
    files::HostFiles,
    output_capture::CapturedOutput,
    output_sink::{OutputSink, OutputStream},
};

/// How long a supervisor may take to kill a command and report it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Size of one input message. Small, so that a stop message does not wait long behind it.
const INPUT_CHUNK: usize = 64 * 1024;

/// Message stream of one command. Dropping it kills the command if it has not ended.
pub(crate) trait SupervisorConnection: Send {
    fn send(&mut self, message: ToSupervisor) -> impl Future<Output = Result<()>> + Send;

    /// Receives the next message; an error if the stream has ended. Cancel-safe.
    fn receive(&mut self) -> impl Future<Output = Result<FromSupervisor>> + Send;
}

/// A command with the caller's context, which is not sent to the supervisor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) command: &'a Command,
    /// Workspace files, for spilled output.
    pub(crate) files: &'a HostFiles,
    pub(crate) output: &'a dyn OutputSink,
    pub(crate) cancel: &'a CancellationToken,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
    /// Free bytes of the workspace's file system that the command must leave; 0 for no limit.
    pub(crate) disk_reserve: u64,
}

/// Execution settings that the backend decides.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExecutionSettings {
    pub(crate) shell: Option<String>,
    pub(crate) cwd: Option<String>,
    /// Base environment; the command's own variables override it.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) limits: Limits,
    pub(crate) user: Option<User>,
    pub(crate) file_capabilities: bool,
    pub(crate) confinement: Option<Confinement>,
}

impl Job<'_> {
    pub(crate) fn request(&self, settings: ExecutionSettings) -> Request {
        let ExecutionSettings { shell, cwd, mut env, limits, user, file_capabilities, confinement } =
            settings;
        // Later entries override earlier ones.
        env.extend(self.command.env.iter().cloned());
        Request {
            program: match &self.command.program {
                Program::Shell(script) => SupervisorProgram::Shell { shell, script: script.clone() },
                Program::Argv(argv) => SupervisorProgram::Argv(argv.clone()),
            },
            cwd,
            env,
            has_input: self.command.stdin.is_some(),
            limits,
            user,
            file_capabilities,
            confinement,
            grace_ms: u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// The result of a command that was cancelled before it started.
pub(crate) fn cancelled_before_start() -> ExecResult {
    ExecResult {
        status: ExecStatus::Cancelled,
        stdout: CapturedOutput::default(),
        stderr: CapturedOutput::default(),
        duration: Duration::ZERO,
        usage: Usage::default(),
    }
}

/// Runs a command until it ends. If the supervisor stops responding, the function returns anyway; dropping
/// the connection then kills the command.
pub(crate) async fn run_command(
    connection: &mut impl SupervisorConnection,
    request: Request,
    job: &Job<'_>,
) -> Result<ExecResult> {
    let start = Instant::now();
    let mut escalation = StopEscalation::new(start, job);
    let mut stdout = StreamCapture::new(OutputStream::Stdout, job);
    let mut stderr = StreamCapture::new(OutputStream::Stderr, job);
    // A send error is ignored: what is received next is more specific.
    let end = if escalation.completes(send_all(connection, request, job.command)).await {
        loop {
            let message = tokio::select! {
                biased;
                message = escalation.next_step() => match message {
                    Some(message) => {
                        if !escalation.completes(connection.send(message)).await {
                            break None;
                        }
                        continue;
                    }
                    None => break None,
                },
                message = connection.receive() => message,
            };
            match message {
                Ok(FromSupervisor::Ready) => {}
                Ok(FromSupervisor::Stdout(bytes)) => stdout.push(&bytes).await,
                Ok(FromSupervisor::Stderr(bytes)) => stderr.push(&bytes).await,
                Ok(FromSupervisor::Refused(refusal)) => return Err(refused(refusal)),
                Ok(FromSupervisor::Ended(end)) => break Some(end),
                // It was told to end, and ended.
                Err(_) if escalation.reason.is_some() => break None,
                Err(error) => return Err(error),
            }
        }
    } else {
        None
    };
    Ok(ExecResult {
        status: escalation.reason.unwrap_or_else(|| end.map_or(ExecStatus::Cancelled, status)),
        stdout: stdout.finish(end.is_some()),
        stderr: stderr.finish(end.is_some()),
        duration: start.elapsed(),
        usage: end.map_or_else(Usage::default, usage),
    })
}

/// Sends the request and all input. A supervisor reads all of it, even while its own output is not read.
async fn send_all(
    connection: &mut impl SupervisorConnection,
    request: Request,
    command: &Command,
) -> Result<()> {
    connection.send(ToSupervisor::Start(Box::new(request))).await?;
    if let Some(input) = &command.stdin {
        for chunk in input.chunks(INPUT_CHUNK) {
            connection.send(ToSupervisor::Input(chunk.to_vec())).await?;
        }
        connection.send(ToSupervisor::Input(Vec::new())).await?;
    }
    Ok(())
}

/// Escalation from timeout, cancellation or a full disk to stop, kill and giving up.
struct StopEscalation<'a> {
    cancel: &'a CancellationToken,
    disk: DiskWatch<'a>,
    grace: Duration,
    /// When the next step is due: stop, kill, give up.
    due: Instant,
    killed: bool,
    /// Why the command was told to end.
    reason: Option<ExecStatus>,
}

impl<'a> StopEscalation<'a> {
    fn new(start: Instant, job: &Job<'a>) -> Self {
        let longest = Duration::from_secs(365 * 24 * 3600);
        Self {
            cancel: job.cancel,
            disk: DiskWatch::new(job.files, job.disk_reserve),
            grace: job.grace,
            due: start + job.command.timeout.min(longest),
            killed: false,
            reason: None,
        }
    }

    /// Waits until the next step is due and returns the message for the supervisor; `None` if there is no
    /// further step. Cancel-safe.
    async fn next_step(&mut self) -> Option<ToSupervisor> {
        if self.reason.is_some() {
            sleep_until(self.due).await;
            self.due = Instant::now() + RESPONSE_TIMEOUT;
            return (!std::mem::replace(&mut self.killed, true)).then_some(ToSupervisor::Kill);
        }
        let reason = tokio::select! {
            () = self.cancel.cancelled() => ExecStatus::Cancelled,
            () = sleep_until(self.due) => ExecStatus::TimedOut,
            () = self.disk.exhausted() => ExecStatus::DiskFull,
        };
        self.reason = Some(reason);
        self.due = Instant::now() + self.grace + RESPONSE_TIMEOUT;
        Some(ToSupervisor::Stop)
    }

    /// Runs `work` until the next step is due. False if it was interrupted; the caller must then give up,
    /// since the work is half done.
    async fn completes(&mut self, work: impl Future<Output = Result<()>>) -> bool {
        tokio::select! {
            biased;
            _ = work => true,
            _ = self.next_step() => false,
        }
    }
}

fn status(end: End) -> ExecStatus {
    match end.status {
        ExitStatus::Signalled(_) if end.out_of_memory => ExecStatus::OutOfMemory,
        ExitStatus::Signalled(signal) => ExecStatus::Signalled(signal),
        ExitStatus::Exited(code) => ExecStatus::Exited(code),
    }
}

fn usage(end: End) -> Usage {
    Usage {
        cpu: Duration::from_millis(end.cpu_ms),
        max_memory_bytes: end.max_rss_kib.saturating_mul(1024),
        left_behind: end.left_behind,
    }
}

fn refused(refusal: Refusal) -> Error {
    let (code, field, message) = match refusal.kind {
        RefusalKind::ProgramNotFound => (Code::FileNotFound, "command", "the program does not exist"),
        RefusalKind::ProgramNotExecutable => (Code::ToolFailed, "command", "the program cannot be executed"),
        RefusalKind::DirectoryNotFound => (Code::FileNotFound, "cwd", "the directory does not exist"),
        RefusalKind::ArgumentsTooLong => (Code::TooLarge, "command", "the arguments are too long"),
        RefusalKind::NotConfined => {
            let message = "the kernel cannot confine the command as configured";
            return Error::unavailable(message).with_source(refusal.detail);
        }
        RefusalKind::OutOfResources | RefusalKind::Other => {
            return Error::unavailable("the command cannot be started").with_source(refusal.detail);
        }
    };
    Error::new(code, message).at(field).with_source(refusal.detail)
}

#[cfg(test)]
mod tests;
