//! One tool call.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use remuda_domain::{
    Code, Error,
    error::Result,
    limits,
    run::Failure,
    tool::{CallStatus, ToolCall, ToolOutcome},
};
use remuda_sandbox::{LazySandbox, NoOutput};
use remuda_tools::{Registry, ToolContext};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What calls of one run share.
#[derive(Clone, Debug)]
pub(crate) struct CallContext {
    pub(crate) tools: Registry,
    pub(crate) sandbox: Arc<LazySandbox>,
    /// When the run's own time is over.
    pub(crate) deadline: Instant,
    /// Kills whatever runs.
    pub(crate) kill: CancellationToken,
}

impl CallContext {
    /// Executes a call to its end. Never fails and never panics: whatever happens is an outcome.
    pub(crate) async fn execute(self, call: ToolCall) -> ToolOutcome {
        let begun = Instant::now();
        let answer = AssertUnwindSafe(self.call(&call)).catch_unwind().await;
        let result = answer.unwrap_or_else(|_| Err(Error::internal("the tool broke down (this is a bug)")));
        let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        match result {
            Ok(output) => ToolOutcome {
                id: call.id,
                tool: call.tool,
                status: CallStatus::Completed,
                output,
                failure: None,
                duration_ms,
            },
            Err(error) => ToolOutcome { duration_ms, ..failed(&call, &error) },
        }
    }

    async fn call(&self, call: &ToolCall) -> Result<Value> {
        let missing = || Error::new(Code::UnknownTool, format!("this worker has no tool {}", call.tool));
        let tool = self.tools.get(&call.tool).ok_or_else(missing)?;
        let wanted = call.timeout.unwrap_or(limits::DEFAULT_TOOL_TIMEOUT);
        let left = self.deadline.saturating_duration_since(Instant::now());
        let context = ToolContext {
            sandbox: Arc::clone(&self.sandbox),
            // The run's own deadline is watched from outside and means another end than a call's.
            timeout: wanted.min(left + Duration::from_secs(1)),
            cancel: self.kill.clone(),
            output: Arc::new(NoOutput),
        };
        tool.call(&call.arguments, &context).await
    }
}

fn failed(call: &ToolCall, error: &Error) -> ToolOutcome {
    let status = match error.code() {
        Code::ToolTimedOut => CallStatus::TimedOut,
        Code::Cancelled => CallStatus::Cancelled,
        _ => CallStatus::Failed,
    };
    if error.code() == Code::Internal {
        tracing::error!(tool = call.tool, error = error.chain(), "a tool call failed inside");
    }
    ToolOutcome::without_result(call, status, Some(Failure::new(error.code(), error.to_string())))
}
