//! Running one command.

use std::{
    io,
    os::{fd::AsRawFd, unix::process::ExitStatusExt},
    pin::Pin,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use remuda_domain::error::{Code, Error, Result};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command as Process},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Host, group::Group};
use crate::{
    capture::{Capture, Captured},
    command::{Command, ExecResult, ExecStatus, Program, Usage},
    files::Root,
    guard::Guard,
    output::{OutputSink, OutputStream},
};

/// How long to read on after the end, while a process that left the group holds the pipe.
const DRAIN_AFTER_EXIT: Duration = Duration::from_secs(2);
const DRAIN_AFTER_KILL: Duration = Duration::from_millis(100);

/// A gated command waits for a line of input before it begins, which it gets once the guard knows it. Should the worker
/// die in between, the line never comes, and nor does the command. A shell waits by itself, so that a script costs no
/// second program.
const SCRIPT_GATE: &str = "IFS= read -r _ || exit 125; exec </dev/null\n";

/// Where the shell can, it waits no longer than the worker may live without being heard of: a worker that is stopped between
/// the start of a process and its registration would else leave it waiting beyond the lease.
fn script_gate(host: &Host) -> String {
    let left = host.options.guard.as_deref().and_then(Guard::time_left);
    match left {
        Some(left) if host.options.shell.ends_with("bash") => {
            format!("IFS= read -r -t {:.3} _ || exit 125; exec </dev/null\n", left.as_secs_f64().max(0.001))
        }
        _ => SCRIPT_GATE.to_owned(),
    }
}
const ARGV_GATE: &str = "IFS= read -r _ || exit 125; exec \"$@\" </dev/null";

pub(super) async fn run(
    host: &Host,
    root: &Root,
    command: &Command,
    output: &dyn OutputSink,
    cancel: &CancellationToken,
) -> Result<ExecResult> {
    let start = Instant::now();
    if cancel.is_cancelled() {
        let nothing = Captured::default();
        let status = ExecStatus::Cancelled;
        return Ok(ExecResult { status, stdout: nothing.clone(), stderr: nothing, duration: Duration::ZERO, usage: Usage::default() });
    }
    let mut child = spawn(host, root, command)?;
    let (gate, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let mut group = Group::new(child).map_err(not_started)?;
    if let Some(guard) = &host.options.guard {
        group.guarded_by(guard.register(group.id()).await?);
    }
    if let Some(mut gate) = gate
        && let Err(error) = gate.write_all(b"\n").await
    {
        // The gate is gone already; how it ended says more.
        tracing::debug!(%error, "a gated command ended before it began");
    }

    let (mut stdout, mut stderr) = (Capture::new(command.output_limit), Capture::new(command.output_limit));
    let mut drain = Drain::new(async {
        tokio::join!(
            pump(out, OutputStream::Stdout, &mut stdout, output),
            pump(err, OutputStream::Stderr, &mut stderr, output),
        );
    });
    let ended = tokio::select! {
        status = end_of(&mut group, &mut drain) => Ok(status.map_err(lost)?),
        () = sleep(command.timeout) => Err(ExecStatus::TimedOut),
        () = cancel.cancelled() => Err(ExecStatus::Cancelled),
    };
    let (status, patience) = match ended {
        Ok(status) => (exec_status(status), DRAIN_AFTER_EXIT),
        Err(stopped) => {
            group.ask_to_end();
            if let Ok(Err(error)) = timeout(host.options.grace, end_of(&mut group, &mut drain)).await {
                return Err(lost(error));
            }
            (stopped, DRAIN_AFTER_KILL)
        }
    };
    group.clear().await;
    let complete = timeout(patience, drain.finish()).await.is_ok();
    drop(drain);
    Ok(ExecResult {
        status,
        stdout: stdout.finish(complete),
        stderr: stderr.finish(complete),
        duration: start.elapsed(),
        usage: Usage::default(),
    })
}

fn spawn(host: &Host, root: &Root, command: &Command) -> Result<Child> {
    let gated = host.options.guard.is_some();
    let mut process = match &command.program {
        Program::Shell(script) => {
            let mut process = Process::new(&host.options.shell);
            process.arg("-c").arg(if gated { script_gate(host) + script } else { script.clone() });
            process
        }
        Program::Argv(argv) if gated => {
            let mut process = Process::new("/bin/sh");
            process.args(["-c", ARGV_GATE, "remuda"]).args(argv);
            process
        }
        Program::Argv(argv) => {
            let mut process = Process::new(&argv[0]);
            process.args(&argv[1..]);
            process
        }
    };
    // By descriptor: the path could be another directory by the time the child is there.
    let directory = root.directory(command.cwd.as_deref().unwrap_or("."))?;
    process
        .current_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))
        .env_clear()
        .envs(host.environment.iter())
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .stdin(if gated { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(not_started)
}

/// Waits for the leader's end while its output is read.
async fn end_of<F: Future<Output = ()>>(group: &mut Group, drain: &mut Drain<F>) -> io::Result<ExitStatus> {
    tokio::select! {
        status = group.wait() => return status,
        () = drain.finish() => {}
    }
    group.wait().await
}

/// The reading of both streams, which goes on while other things are waited for.
struct Drain<F> {
    reading: Pin<Box<F>>,
    done: bool,
}

impl<F: Future<Output = ()>> Drain<F> {
    fn new(reading: F) -> Self {
        Self { reading: Box::pin(reading), done: false }
    }

    /// Reads to the end. Cancel-safe, and may be called again.
    async fn finish(&mut self) {
        if !self.done {
            self.reading.as_mut().await;
            self.done = true;
        }
    }
}

async fn pump(
    pipe: Option<impl AsyncRead + Unpin>,
    stream: OutputStream,
    capture: &mut Capture,
    output: &dyn OutputSink,
) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; 16 * 1024];
    // A pipe that cannot be read has ended.
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        capture.push(&buffer[..count]);
        output.write(stream, &buffer[..count]);
    }
}

fn exec_status(status: ExitStatus) -> ExecStatus {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExecStatus::Exited(code),
        (None, Some(signal)) => ExecStatus::Signalled(signal),
        (None, None) => ExecStatus::Exited(-1),
    }
}

fn not_started(error: io::Error) -> Error {
    let failure = match error.kind() {
        io::ErrorKind::NotFound => Error::new(Code::FileNotFound, "the program does not exist").at("command"),
        io::ErrorKind::PermissionDenied => {
            Error::new(Code::ToolFailed, "the program cannot be executed").at("command")
        }
        io::ErrorKind::ArgumentListTooLong => {
            Error::new(Code::TooLarge, "the arguments are too long").at("command")
        }
        _ => Error::unavailable("the command cannot be started"),
    };
    failure.with_source(error)
}

fn lost(error: io::Error) -> Error {
    Error::internal("lost track of a tool process").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gate's input ends, as it does when the worker dies between start and registration.
    #[tokio::test]
    async fn what_is_not_let_through_does_not_begin() {
        let directory = tempfile::tempdir().unwrap();
        let script = format!("{SCRIPT_GATE}touch began");
        let gates: [(&str, &[&str]); 3] = [
            ("/bin/bash", &["-c", &script]),
            ("/bin/sh", &["-c", &script]),
            ("/bin/sh", &["-c", ARGV_GATE, "remuda", "touch", "began"]),
        ];
        for (program, arguments) in gates {
            let mut process = Process::new(program);
            process.args(arguments).current_dir(directory.path()).stdin(Stdio::null());
            assert_eq!(process.status().await.unwrap().code(), Some(125));
            assert!(!directory.path().join("began").try_exists().unwrap());
        }
    }
}
