//! The context that the tool calls of a run share, and the execution of one call.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use remuda_domain::{
    Code, Error, SessionId,
    execution::ExecutionSite,
    limits,
    run::Failure,
    tool::{CallStatus, ToolCall, ToolOutcome},
    trace::TraceContext,
};
use remuda_sandbox::{LazySandbox, NoOutput, OutputSink};
use remuda_tools::{BackgroundTasks, CallError, CallResult, Registry, ToolContext, artifacts};
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::{OversizedResult, oversized},
    live_output::{LiveOutput, OutputPublisher},
};

/// What the tool calls of one run share.
#[derive(Clone, Debug)]
pub(crate) struct CallContext {
    pub(crate) session: SessionId,
    pub(crate) tools: Registry,
    /// Missing in a run that has nowhere to execute. Such a run makes no calls.
    pub(crate) sandbox: Option<Arc<LazySandbox>>,
    pub(crate) background: Arc<BackgroundTasks>,
    /// When the run's time is over.
    pub(crate) deadline: Instant,
    /// Kills all running calls.
    pub(crate) kill: CancellationToken,
    /// Limits the calls of the run that execute in parallel.
    pub(crate) permits: Arc<Semaphore>,
    /// Publishes live output.
    pub(crate) publisher: OutputPublisher,
    /// Whether results go into the context of an agent, which long ones would fill.
    pub(crate) shortens_results: bool,
}

impl CallContext {
    /// Executes a call to its end. Never fails and never panics: every error is an outcome.
    pub(crate) async fn execute(self, call: ToolCall, trace: Option<TraceContext>) -> ToolOutcome {
        let outcome = self.outcome_of(call, trace).await;
        self.shorten(outcome).await
    }

    /// Stores a result that is too long in a file, and replaces it by a preview.
    pub(crate) async fn shorten(&self, outcome: ToolOutcome) -> ToolOutcome {
        if !self.shortens_results {
            return outcome;
        }
        let Some(oversized) = oversized(&outcome, self.tools.catalog()) else { return outcome };
        let artifact = match &self.sandbox {
            Some(sandbox) if oversized.needs_artifact => {
                self.store_artifact(sandbox, &outcome, &oversized).await
            }
            _ => None,
        };
        oversized.shorten(outcome, artifact.as_deref())
    }

    async fn store_artifact(
        &self,
        sandbox: &LazySandbox,
        outcome: &ToolOutcome,
        oversized: &OversizedResult,
    ) -> Option<String> {
        let storing = async { artifacts::save(&*sandbox.get().await?, outcome.id, &oversized.text).await };
        let artifact = tokio::select! {
            biased;
            artifact = storing => artifact,
            () = self.kill.cancelled() => return None,
        };
        artifact
            .inspect_err(|error| tracing::warn!(error = error.chain(), "storing a long result failed"))
            .ok()
    }

    async fn outcome_of(&self, call: ToolCall, trace: Option<TraceContext>) -> ToolOutcome {
        let started = Instant::now();
        let result = AssertUnwindSafe(self.invoke(&call, trace)).catch_unwind().await;
        let panicked = || Error::internal("the tool broke down (this is a bug)");
        let result = result.unwrap_or_else(|_| Err(panicked().into()));
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let site = self.site(&call);
        match result {
            Ok(output) => ToolOutcome {
                id: call.id,
                tool: call.tool,
                status: CallStatus::Completed,
                output,
                failure: None,
                duration_ms,
                place: site,
            },
            Err(error) => ToolOutcome { duration_ms, place: site, ..failed(&call, error) },
        }
    }

    /// Where the call was executed, if it used a sandbox.
    fn site(&self, call: &ToolCall) -> Option<ExecutionSite> {
        let needed = self.needs_sandbox(&call.tool);
        let acquired = self.sandbox.as_ref().and_then(|sandbox| sandbox.acquired());
        acquired.filter(|_| needed).and_then(|sandbox| sandbox.execution_site())
    }

    pub(crate) fn needs_sandbox(&self, tool: &str) -> bool {
        self.tools.get(tool).is_some_and(|tool| tool.needs_sandbox())
    }

    /// Waits until calls are executed elsewhere than on the worker itself. Cancel-safe.
    pub(crate) async fn remote_site(&self) -> ExecutionSite {
        let site = match &self.sandbox {
            Some(sandbox) => sandbox.ready().await.execution_site(),
            None => None,
        };
        match site {
            Some(site) => site,
            None => std::future::pending().await,
        }
    }

    async fn invoke(&self, call: &ToolCall, trace: Option<TraceContext>) -> CallResult {
        let _permit = tokio::select! {
            biased;
            permit = self.permits.acquire() => permit.map_err(|_| Error::internal("a run has no room for calls"))?,
            () = self.kill.cancelled() => {
                return Err(Error::new(Code::Cancelled, "the call was cancelled before it began").into());
            }
        };
        let unknown = || Error::new(Code::UnknownTool, format!("this worker has no tool {}", call.tool));
        let tool = self.tools.get(&call.tool).ok_or_else(unknown)?;
        let limit = call.timeout.unwrap_or(limits::DEFAULT_TOOL_TIMEOUT);
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        let no_sandbox = || Error::new(Code::ToolsDisabled, "this run can execute nowhere");
        let mut context = ToolContext {
            session: self.session,
            call: call.id,
            sandbox: Arc::clone(self.sandbox.as_ref().ok_or_else(no_sandbox)?),
            background: Arc::clone(&self.background),
            // The run's deadline is enforced by the caller and ends the run, not the call.
            timeout: limit.min(remaining + Duration::from_secs(1)),
            cancel: self.kill.clone(),
            output: Arc::new(NoOutput),
            trace,
        };
        // Without a sandbox there is no command whose output could be published.
        if !tool.needs_sandbox() {
            return tool.call(&call.arguments, &context).await;
        }
        let output = Arc::new(LiveOutput::new(call.id));
        context.output = Arc::clone(&output) as Arc<dyn OutputSink>;
        output.publish_while(tool.call(&call.arguments, &context), &self.publisher).await
    }
}

fn failed(call: &ToolCall, CallError { error, output }: CallError) -> ToolOutcome {
    let status = match error.code() {
        Code::ToolTimedOut => CallStatus::TimedOut,
        Code::Cancelled => CallStatus::Cancelled,
        _ => CallStatus::Failed,
    };
    if error.code() == Code::Internal {
        tracing::error!(tool = call.tool, error = error.chain(), "tool call failed with an internal error");
    }
    let failure = Failure::new(error.code(), error.to_string());
    ToolOutcome { output, ..ToolOutcome::without_result(call, status, Some(failure)) }
}
