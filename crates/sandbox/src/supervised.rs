//! Driving one command that a supervisor runs, wherever that is.

mod stream;

use std::{future::Future, time::Duration};

use remuda_domain::error::{Code, Error, Result};
use remuda_supervisor::{
    Confinement, End, ExitStatus, FromSupervisor, Limits, Program as Started, Refusal, RefusalKind, Request,
    ToSupervisor,
};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::stream::Stream;
use crate::{
    capture::Captured,
    command::{Command, ExecResult, ExecStatus, Program, Usage},
    files::HostFiles,
    output::{OutputSink, OutputStream},
};

/// How long a supervisor may take to kill and to say so.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// One message of input. Small enough that a message to stop does not wait for long behind it.
const INPUT_CHUNK: usize = 64 * 1024;

/// The messages of one command, both ways. Dropping it kills the command if it has not ended.
pub(crate) trait Wire: Send {
    fn send(&mut self, message: ToSupervisor) -> impl Future<Output = Result<()>> + Send;

    /// The next message; an error if none will come. Cancel-safe.
    fn receive(&mut self) -> impl Future<Output = Result<FromSupervisor>> + Send;
}

/// What belongs to a command and does not travel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) command: &'a Command,
    /// For output that is too much to be answered.
    pub(crate) files: &'a HostFiles,
    pub(crate) output: &'a dyn OutputSink,
    pub(crate) cancel: &'a CancellationToken,
    /// Between asking the command to end and killing it.
    pub(crate) grace: Duration,
}

/// What the place decides about a command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) shell: Option<String>,
    pub(crate) cwd: Option<String>,
    /// Beneath what the command itself sets.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) limits: Limits,
    pub(crate) confinement: Option<Confinement>,
}

impl Job<'_> {
    pub(crate) fn request(&self, conditions: Conditions) -> Request {
        let Conditions { shell, cwd, mut env, limits, confinement } = conditions;
        // Whoever comes later wins.
        env.extend(self.command.env.iter().cloned());
        Request {
            program: match &self.command.program {
                Program::Shell(script) => Started::Shell { shell, script: script.clone() },
                Program::Argv(argv) => Started::Argv(argv.clone()),
            },
            cwd,
            env,
            has_input: self.command.stdin.is_some(),
            limits,
            confinement,
            grace_ms: u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// The result of a command that was cancelled before it began.
pub(crate) fn never_begun() -> ExecResult {
    ExecResult {
        status: ExecStatus::Cancelled,
        stdout: Captured::default(),
        stderr: Captured::default(),
        duration: Duration::ZERO,
        usage: Usage::default(),
    }
}

/// Runs a command to its end. When it returns, the command has ended, unless the supervisor does not answer: dropping the
/// wire is what kills it then.
pub(crate) async fn drive(wire: &mut impl Wire, request: Request, job: &Job<'_>) -> Result<ExecResult> {
    let start = Instant::now();
    let mut patience = Patience::new(start, job);
    let mut stdout = Stream::new(OutputStream::Stdout, job);
    let mut stderr = Stream::new(OutputStream::Stderr, job);
    // If nobody takes it, what is received next tells more than the error.
    let end = if patience.lasts(send_all(wire, request, job.command)).await {
        loop {
            let message = tokio::select! {
                biased;
                message = patience.runs_out() => match message {
                    Some(message) => {
                        if !patience.lasts(wire.send(message)).await {
                            break None;
                        }
                        continue;
                    }
                    None => break None,
                },
                message = wire.receive() => message,
            };
            match message {
                Ok(FromSupervisor::Ready) => {}
                Ok(FromSupervisor::Stdout(bytes)) => stdout.push(&bytes).await,
                Ok(FromSupervisor::Stderr(bytes)) => stderr.push(&bytes).await,
                Ok(FromSupervisor::Refused(refusal)) => return Err(refused(refusal)),
                Ok(FromSupervisor::Ended(end)) => break Some(end),
                // It was to end, and it did.
                Err(_) if patience.reason.is_some() => break None,
                Err(error) => return Err(error),
            }
        }
    } else {
        None
    };
    Ok(ExecResult {
        status: patience.reason.unwrap_or_else(|| end.map_or(ExecStatus::Cancelled, status)),
        stdout: stdout.finish(end.is_some()),
        stderr: stderr.finish(end.is_some()),
        duration: start.elapsed(),
        usage: end.map_or_else(Usage::default, usage),
    })
}

/// Says everything that there is to say in advance. A supervisor reads all of it, also while nobody reads what it says.
async fn send_all(wire: &mut impl Wire, request: Request, command: &Command) -> Result<()> {
    wire.send(ToSupervisor::Start(Box::new(request))).await?;
    if let Some(input) = &command.stdin {
        for chunk in input.chunks(INPUT_CHUNK) {
            wire.send(ToSupervisor::Input(chunk.to_vec())).await?;
        }
        wire.send(ToSupervisor::Input(Vec::new())).await?;
    }
    Ok(())
}

/// How long the command may run on, and why not longer.
struct Patience<'a> {
    cancel: &'a CancellationToken,
    grace: Duration,
    /// When the next step is due: asking the command to end, killing it, giving up.
    due: Instant,
    killed: bool,
    /// Why the command was asked to end.
    reason: Option<ExecStatus>,
}

impl<'a> Patience<'a> {
    fn new(start: Instant, job: &Job<'a>) -> Self {
        let far = Duration::from_secs(365 * 24 * 3600);
        Self {
            cancel: job.cancel,
            grace: job.grace,
            due: start + job.command.timeout.min(far),
            killed: false,
            reason: None,
        }
    }

    /// Waits until the command may run no longer, and gives what to tell the supervisor; nothing if it was told everything.
    /// Cancel-safe.
    async fn runs_out(&mut self) -> Option<ToSupervisor> {
        if self.reason.is_some() {
            sleep_until(self.due).await;
            self.due = Instant::now() + ANSWER_TIME;
            return (!std::mem::replace(&mut self.killed, true)).then_some(ToSupervisor::Kill);
        }
        let reason = tokio::select! {
            () = self.cancel.cancelled() => ExecStatus::Cancelled,
            () = sleep_until(self.due) => ExecStatus::TimedOut,
        };
        self.reason = Some(reason);
        self.due = Instant::now() + self.grace + ANSWER_TIME;
        Some(ToSupervisor::Stop)
    }

    /// Whether something is done in time. If not, it is left undone in the middle, and all that is left is to give up.
    async fn lasts(&mut self, work: impl Future<Output = Result<()>>) -> bool {
        tokio::select! {
            biased;
            _ = work => true,
            _ = self.runs_out() => false,
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
            let message = "the command cannot be confined as configured: the kernel lacks what it takes";
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
