//! Context of a tool call.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    SessionId, ToolCallId,
    error::{Code, Error, Result},
    trace::TraceContext,
};
use remuda_sandbox::{LazySandbox, OutputSink};
use tokio_util::sync::CancellationToken;

use crate::background::BackgroundTasks;

#[derive(Clone, Debug)]
pub struct ToolContext {
    pub session: SessionId,
    pub call: ToolCallId,
    /// Acquired only by tools that use it.
    pub sandbox: Arc<LazySandbox>,
    /// Time limit of the call; a tool may use a shorter one.
    pub timeout: Duration,
    pub cancel: CancellationToken,
    /// Receives output while the call runs.
    pub output: Arc<dyn OutputSink>,
    /// Background tasks of the call's run.
    pub background: Arc<BackgroundTasks>,
    /// Trace context of the call, for programs that continue the trace.
    pub trace: Option<TraceContext>,
}

impl ToolContext {
    /// Runs `work` with the call's timeout and cancellation. Only for work that is safe to drop at any point.
    pub(crate) async fn within_limits<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(cancelled()),
            result = work => result,
            () = tokio::time::sleep(self.timeout) => Err(timed_out(self.timeout)),
        }
    }
}

pub(crate) fn cancelled() -> Error {
    Error::new(Code::Cancelled, "the tool call was cancelled")
}

pub(crate) fn timed_out(timeout: Duration) -> Error {
    Error::new(Code::ToolTimedOut, format!("the tool call did not end within {} ms", timeout.as_millis()))
}
