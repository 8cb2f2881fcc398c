//! One tool call.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use remuda_domain::{
    Code, Error, SessionId,
    execution::Place,
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
    agent::Overlong,
    live_output::{Audience, LiveOutput},
};

/// Says what of a result is too long to be recorded, and what stays of it once the whole is kept somewhere.
pub(crate) type Shorten = fn(&ToolOutcome) -> Option<Overlong>;

/// What calls of one run share.
#[derive(Clone, Debug)]
pub(crate) struct CallContext {
    pub(crate) session: SessionId,
    pub(crate) tools: Registry,
    /// Missing in a run that can execute nowhere, which never comes to a call.
    pub(crate) sandbox: Option<Arc<LazySandbox>>,
    pub(crate) background: Arc<BackgroundTasks>,
    /// When the run's own time is over.
    pub(crate) deadline: Instant,
    /// Kills whatever runs.
    pub(crate) kill: CancellationToken,
    /// How many calls of the run go on at once.
    pub(crate) room: Arc<Semaphore>,
    /// Who sees what calls print, while they do.
    pub(crate) audience: Audience,
    /// What is done to a result before it is recorded.
    pub(crate) shorten: Option<Shorten>,
}

impl CallContext {
    /// Executes a call to its end. Never fails and never panics: whatever happens is an outcome.
    pub(crate) async fn execute(self, call: ToolCall, trace: Option<TraceContext>) -> ToolOutcome {
        let outcome = self.make(call, trace).await;
        self.shorten(outcome).await
    }

    /// Keeps a result that is too long to be looked at in a file, and what can be looked at as the result.
    pub(crate) async fn shorten(&self, outcome: ToolOutcome) -> ToolOutcome {
        let Some(overlong) = self.shorten.and_then(|shorten| shorten(&outcome)) else { return outcome };
        let kept = match &self.sandbox {
            Some(sandbox) if overlong.keep => self.keep(sandbox, &outcome, &overlong).await,
            _ => None,
        };
        overlong.shorten(outcome, kept.as_deref())
    }

    async fn keep(
        &self,
        sandbox: &LazySandbox,
        outcome: &ToolOutcome,
        overlong: &Overlong,
    ) -> Option<String> {
        let keeping = async { artifacts::keep(&*sandbox.get().await?, outcome.id, &overlong.text).await };
        let kept = tokio::select! {
            biased;
            kept = keeping => kept,
            () = self.kill.cancelled() => return None,
        };
        kept.inspect_err(|error| tracing::warn!(error = error.chain(), "a long result could not be kept"))
            .ok()
    }

    async fn make(&self, call: ToolCall, trace: Option<TraceContext>) -> ToolOutcome {
        let begun = Instant::now();
        let answer = AssertUnwindSafe(self.call(&call, trace)).catch_unwind().await;
        let broken = || Error::internal("the tool broke down (this is a bug)");
        let result = answer.unwrap_or_else(|_| Err(broken().into()));
        let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let place = self.place(&call);
        match result {
            Ok(output) => ToolOutcome {
                id: call.id,
                tool: call.tool,
                status: CallStatus::Completed,
                output,
                failure: None,
                duration_ms,
                place,
            },
            Err(error) => ToolOutcome { duration_ms, place, ..failed(&call, error) },
        }
    }

    /// Where the call was executed, if a sandbox had to do with it.
    fn place(&self, call: &ToolCall) -> Option<Place> {
        let needed = self.needs_sandbox(&call.tool);
        let acquired = self.sandbox.as_ref().and_then(|sandbox| sandbox.acquired());
        acquired.filter(|_| needed).and_then(|sandbox| sandbox.place())
    }

    pub(crate) fn needs_sandbox(&self, tool: &str) -> bool {
        self.tools.get(tool).is_some_and(|tool| tool.needs_sandbox())
    }

    /// Waits until calls are executed somewhere else than on the worker itself. Cancel-safe.
    pub(crate) async fn placed(&self) -> Place {
        let place = match &self.sandbox {
            Some(sandbox) => sandbox.ready().await.place(),
            None => None,
        };
        match place {
            Some(place) => place,
            None => std::future::pending().await,
        }
    }

    async fn call(&self, call: &ToolCall, trace: Option<TraceContext>) -> CallResult {
        let _room = tokio::select! {
            biased;
            room = self.room.acquire() => room.map_err(|_| Error::internal("a run has no room for calls"))?,
            () = self.kill.cancelled() => {
                return Err(Error::new(Code::Cancelled, "the call was cancelled before it began").into());
            }
        };
        let missing = || Error::new(Code::UnknownTool, format!("this worker has no tool {}", call.tool));
        let tool = self.tools.get(&call.tool).ok_or_else(missing)?;
        let wanted = call.timeout.unwrap_or(limits::DEFAULT_TOOL_TIMEOUT);
        let left = self.deadline.saturating_duration_since(Instant::now());
        let nowhere = || Error::new(Code::ToolsDisabled, "this run can execute nowhere");
        let mut context = ToolContext {
            session: self.session,
            call: call.id,
            sandbox: Arc::clone(self.sandbox.as_ref().ok_or_else(nowhere)?),
            background: Arc::clone(&self.background),
            // The run's own deadline is watched from outside and means another end than a call's.
            timeout: wanted.min(left + Duration::from_secs(1)),
            cancel: self.kill.clone(),
            output: Arc::new(NoOutput),
            trace,
        };
        // Without a sandbox there is no command that could print something.
        if !tool.needs_sandbox() {
            return tool.call(&call.arguments, &context).await;
        }
        let output = Arc::new(LiveOutput::new(call.id));
        context.output = Arc::clone(&output) as Arc<dyn OutputSink>;
        output.tell_while(tool.call(&call.arguments, &context), &self.audience).await
    }
}

fn failed(call: &ToolCall, CallError { error, output }: CallError) -> ToolOutcome {
    let status = match error.code() {
        Code::ToolTimedOut => CallStatus::TimedOut,
        Code::Cancelled => CallStatus::Cancelled,
        _ => CallStatus::Failed,
    };
    if error.code() == Code::Internal {
        tracing::error!(tool = call.tool, error = error.chain(), "a tool call failed inside");
    }
    let failure = Failure::new(error.code(), error.to_string());
    ToolOutcome { output, ..ToolOutcome::without_result(call, status, Some(failure)) }
}
