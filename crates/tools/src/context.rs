//! What a tool call has around it.

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
    /// Acquired only by tools that ask for it.
    pub sandbox: Arc<LazySandbox>,
    /// The time the call has; a tool may take less.
    pub timeout: Duration,
    pub cancel: CancellationToken,
    /// Sees output while the call runs.
    pub output: Arc<dyn OutputSink>,
    /// Of the call's run.
    pub background: Arc<BackgroundTasks>,
    /// Where the call stands in its trace, for programs that go on with it.
    pub trace: Option<TraceContext>,
}

impl ToolContext {
    /// Does some work within the call's time, until it is cancelled. Only for work that may be dropped anywhere.
    pub(crate) async fn within_limits<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(cancelled()),
            done = work => done,
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
