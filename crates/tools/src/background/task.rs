//! One background task: a running command, its output and its status.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use regex::bytes::Regex;
use remuda_domain::error::Result;
use remuda_sandbox::{Command, ExecResult, ExecStatus, OutputSink, OutputStream, Sandbox};
use tokio::{sync::watch, task::AbortHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use super::output_ring::{NewOutput, OutputRing};
use crate::native::exclude_artifacts_from_git;

/// Buffered bytes of each stream.
const RING_BYTES: usize = 512 * 1024;
/// The most bytes of each stream in one report.
const MAX_REPORT_BYTES: usize = 16_000;

#[derive(Debug)]
pub(crate) struct Task {
    cancel: CancellationToken,
    running: AbortHandle,
    output: Arc<Output>,
    status: watch::Receiver<TaskStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TaskStatus {
    Running,
    Ended {
        how: ExecStatus,
        /// Workspace files with spilled output.
        artifacts: Vec<String>,
    },
    /// It never started, or its backend lost it.
    Failed(String),
}

/// Status and new output of a task.
#[derive(Debug)]
pub(crate) struct TaskReport {
    pub(crate) status: TaskStatus,
    pub(crate) stdout: NewOutput,
    pub(crate) stderr: NewOutput,
}

impl Task {
    pub(super) fn start(
        tracker: &TaskTracker,
        cancel: CancellationToken,
        sandbox: Arc<dyn Sandbox>,
        command: Command,
    ) -> Self {
        let output = Arc::new(Output::default());
        let (status_sender, status) = watch::channel(TaskStatus::Running);
        let execution = execute(sandbox, command, Arc::clone(&output), cancel.clone(), status_sender);
        let running = tracker.spawn(execution.in_current_span()).abort_handle();
        Self { cancel, running, output, status }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.status() == TaskStatus::Running
    }

    fn status(&self) -> TaskStatus {
        let status = self.status.borrow().clone();
        // Dropped before it could report its end.
        let dropped = status == TaskStatus::Running && self.status.has_changed().is_err();
        if dropped { TaskStatus::Failed("it was abandoned".to_owned()) } else { status }
    }

    /// Reads the output since the last report. The status is read first, so that the output of an ended task
    /// is complete.
    pub(crate) fn read_report(&self, filter: Option<&Regex>) -> TaskReport {
        let status = self.status();
        let ended = status != TaskStatus::Running;
        let take = |stream| self.output.ring(stream).take(MAX_REPORT_BYTES, filter, ended);
        TaskReport { stdout: take(OutputStream::Stdout), stderr: take(OutputStream::Stderr), status }
    }

    /// Cancels the task and waits for its end. Cancel-safe.
    pub(crate) async fn kill(&self) {
        self.cancel.cancel();
        let mut status = self.status.clone();
        // An error means that the task was dropped, which ends it as well.
        drop(status.wait_for(|status| *status != TaskStatus::Running).await);
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
    status_sender: watch::Sender<TaskStatus>,
) {
    let result = sandbox.exec(command, &*output, &cancel).await;
    if let Ok(result) = &result {
        exclude_artifacts_from_git(&*sandbox, result).await;
    }
    // Release the sandbox before the end is reported.
    drop(sandbox);
    status_sender.send_replace(status_of(result));
}

fn status_of(result: Result<ExecResult>) -> TaskStatus {
    match result {
        Ok(result) => {
            let artifacts = [result.stdout.artifact, result.stderr.artifact].into_iter().flatten().collect();
            TaskStatus::Ended { how: result.status, artifacts }
        }
        Err(error) => {
            tracing::debug!(error = error.chain(), "background task failed");
            TaskStatus::Failed(error.to_string())
        }
    }
}

/// Buffers of both streams.
#[derive(Debug)]
struct Output {
    stdout: Mutex<OutputRing>,
    stderr: Mutex<OutputRing>,
}

impl Default for Output {
    fn default() -> Self {
        Self {
            stdout: Mutex::new(OutputRing::new(RING_BYTES)),
            stderr: Mutex::new(OutputRing::new(RING_BYTES)),
        }
    }
}

impl Output {
    fn ring(&self, stream: OutputStream) -> MutexGuard<'_, OutputRing> {
        let ring = match stream {
            OutputStream::Stdout => &self.stdout,
            OutputStream::Stderr => &self.stderr,
        };
        ring.lock()
    }
}

impl OutputSink for Output {
    fn write(&self, stream: OutputStream, chunk: &[u8]) {
        self.ring(stream).push(chunk);
    }
}
