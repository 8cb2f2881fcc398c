//! One background task.

use std::sync::{Arc, Mutex, PoisonError};

use regex::bytes::Regex;
use remuda_domain::error::Result;
use remuda_sandbox::{Command, ExecResult, ExecStatus, OutputSink, OutputStream, Sandbox};
use tokio::{sync::watch, task::AbortHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use super::ring::{News, Ring};
use crate::native::hide_artifacts;

/// What is kept of each stream.
const RING_BYTES: usize = 512 * 1024;
/// The most a look returns of each stream.
const LOOK_BYTES: usize = 16_000;

#[derive(Debug)]
pub(crate) struct Task {
    cancel: CancellationToken,
    running: AbortHandle,
    output: Arc<Output>,
    status: watch::Receiver<Status>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Running,
    Ended {
        how: ExecStatus,
        /// The files of the workspace that hold what was too much.
        artifacts: Vec<String>,
    },
    /// It never began, or its backend lost it.
    Failed(String),
}

/// What a look at a task gave.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) status: Status,
    pub(crate) stdout: News,
    pub(crate) stderr: News,
}

impl Task {
    pub(super) fn start(
        tracker: &TaskTracker,
        cancel: CancellationToken,
        sandbox: Arc<dyn Sandbox>,
        command: Command,
    ) -> Self {
        let output = Arc::new(Output::default());
        let (told, status) = watch::channel(Status::Running);
        let execution = execute(sandbox, command, Arc::clone(&output), cancel.clone(), told);
        let running = tracker.spawn(execution.in_current_span()).abort_handle();
        Self { cancel, running, output, status }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.status() == Status::Running
    }

    fn status(&self) -> Status {
        let status = self.status.borrow().clone();
        // Dropped before it could say how it ended.
        let dropped = status == Status::Running && self.status.has_changed().is_err();
        if dropped { Status::Failed("it was abandoned".to_owned()) } else { status }
    }

    /// What is new since the last look. The status is of before, so that an ended task's output is complete.
    pub(crate) fn look(&self, filter: Option<&Regex>) -> Report {
        let status = self.status();
        let ended = status != Status::Running;
        let take = |stream| self.output.ring(stream).take(LOOK_BYTES, filter, ended);
        Report { stdout: take(OutputStream::Stdout), stderr: take(OutputStream::Stderr), status }
    }

    /// Ends it and waits until it is gone. Cancel-safe.
    pub(crate) async fn kill(&self) {
        self.cancel.cancel();
        let mut status = self.status.clone();
        // An error means that it was dropped, which ends it as well.
        drop(status.wait_for(|status| *status != Status::Running).await);
    }

    pub(super) fn abort(&self) {
        self.running.abort();
    }
}

async fn execute(
    sandbox: Arc<dyn Sandbox>,
    command: Command,
    output: Arc<Output>,
    cancel: CancellationToken,
    told: watch::Sender<Status>,
) {
    let result = sandbox.exec(command, &*output, &cancel).await;
    if let Ok(result) = &result {
        hide_artifacts(&*sandbox, result).await;
    }
    // The sandbox may be given back before anyone hears of the end.
    drop(sandbox);
    told.send_replace(status_of(result));
}

fn status_of(result: Result<ExecResult>) -> Status {
    match result {
        Ok(result) => {
            let artifacts = [result.stdout.artifact, result.stderr.artifact].into_iter().flatten().collect();
            Status::Ended { how: result.status, artifacts }
        }
        Err(error) => {
            tracing::debug!(error = error.chain(), "a background task failed");
            Status::Failed(error.to_string())
        }
    }
}

/// Both streams.
#[derive(Debug)]
struct Output {
    stdout: Mutex<Ring>,
    stderr: Mutex<Ring>,
}

impl Default for Output {
    fn default() -> Self {
        Self { stdout: Mutex::new(Ring::new(RING_BYTES)), stderr: Mutex::new(Ring::new(RING_BYTES)) }
    }
}

impl Output {
    fn ring(&self, stream: OutputStream) -> std::sync::MutexGuard<'_, Ring> {
        let ring = match stream {
            OutputStream::Stdout => &self.stdout,
            OutputStream::Stderr => &self.stderr,
        };
        ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutputSink for Output {
    fn write(&self, stream: OutputStream, chunk: &[u8]) {
        self.ring(stream).push(chunk);
    }
}
