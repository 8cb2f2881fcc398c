//! Executes one run of an owned session, step by step.
//!
//! [`Engine::execute`] takes a claim's grant and returns what the caller has to commit as the run's end. Every step
//! is committed before the next one begins, so another worker can resume where this one died:
//! - A finished tool call is never executed again.
//! - A tool call with side effects is committed as an intent before it starts. If a new owner finds the intent
//!   without a result, the call becomes `interrupted`: a result which says that the effects are unknown.
//! - A repeatable tool call without a result is executed again.
//!
//! The engine does not own sessions, renew leases or take tokens. Its caller does, and stops runs through
//! [`RunControl`].

mod agent;
mod approvals;
mod call_context;
mod call_plan;
mod commit_gate;
mod execution_placement;
mod journal;
mod live_output;
mod meters;
mod operator_rules;
mod run_context;
mod tools_run;

use std::sync::Arc;

pub use agent::{
    AgentRuntime, AgentSettings, ContextSettings, DelegationSettings, FirstModelCall, OnExpiry,
    PermissionSettings, preview_first_model_call, tool_catalog, tools_of_agent,
};
pub use commit_gate::Gate;
pub use execution_placement::Placement;
pub use journal::{Entry, Journal, now};
use remuda_dispatch::{Dispatcher, retry_until_abandoned};
use remuda_domain::{
    Code, Error, RunInput, RunState, Timestamp,
    event::NewEvent,
    run::{Failure, RunEnd},
    step,
};
use remuda_sandbox::Backends;
use remuda_store::{Grant, ParkRequest, Store};
use remuda_tools::Registry;
use remuda_transport::Transport;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

/// Executes runs. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub store: Arc<dyn Store>,
    pub transport: Arc<dyn Transport>,
    pub dispatcher: Dispatcher,
    pub tools: Registry,
    pub backends: Backends,
    pub placement: Arc<Placement>,
    pub agents: Arc<AgentRuntime>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("backends", &self.backends).finish_non_exhaustive()
    }
}

/// The signals by which the caller stops a run or holds it back.
#[derive(Clone, Debug, Default)]
pub struct RunControl {
    /// The run was cancelled: kill its processes and end as cancelled.
    pub cancel: CancellationToken,
    /// The worker drains: hand over at the next step boundary.
    pub drain: CancellationToken,
    /// The drain deadline has passed: kill running calls, record them as interrupted, and hand over.
    pub interrupt: CancellationToken,
    /// The session's lease is lost or about to expire: kill running calls and write nothing more.
    pub abandon: CancellationToken,
    /// Holds back commits, and calls that change anything, until the preceding run is committed.
    pub gate: Gate,
    /// A client subscribed in the middle of a message: publish the message again from its beginning.
    pub resend_deltas: Arc<Notify>,
}

/// How an execution ended.
#[derive(Debug)]
pub enum Execution {
    /// The run is over. The caller commits this.
    Ended(Box<Ending>),
    /// The run is at a step boundary, for another worker to resume. The caller commits this.
    HandedOver(Box<HandOver>),
    /// The run waits in the store and holds no worker. The caller commits this.
    Parked(Box<HandOver>, ParkRequest),
    /// All running calls were killed, and nothing was written since.
    Abandoned,
}

/// The content of the commit that hands a run over or parks it.
#[derive(Debug, Default)]
pub struct HandOver {
    pub entry: Entry,
    pub events: Vec<NewEvent>,
}

/// The content of a run's last commit.
#[derive(Debug)]
pub struct Ending {
    pub end: RunEnd,
    pub started_at: Timestamp,
    /// When the last process of a cancelled run had exited.
    pub stopped_at: Option<Instant>,
    pub entry: Entry,
    pub events: Vec<NewEvent>,
    /// The agent that leads the session from now on, if it changed.
    pub agent: Option<String>,
}

impl Engine {
    /// Executes the granted run until it ends, parks, is handed over or is abandoned.
    pub async fn execute(&self, grant: &Grant, control: &RunControl) -> Execution {
        let executed = match &grant.run.input {
            RunInput::Tools(input) => self.tools_run(input, grant, control).await,
            RunInput::Message(input) => Box::pin(self.agent_run(input, grant, control)).await,
        };
        match executed {
            Ok(execution) => execution,
            Err(error) if error.code() == Code::OwnershipLost || error.code().is_outage() => {
                tracing::warn!(run = %grant.run.id, error = error.chain(), "run abandoned");
                Execution::Abandoned
            }
            Err(error) => self.fail(grant, control, &error).await,
        }
    }

    /// Ends a run whose commits the store rejects. If it were abandoned, the next owner would fail in the same way.
    async fn fail(&self, grant: &Grant, control: &RunControl, error: &Error) -> Execution {
        tracing::error!(run = %grant.run.id, error = error.chain(), "run failed: it cannot continue");
        let (fence, run) = (grant.fence, &grant.run);
        let load = || self.store.list_steps(fence.tenant, run.id);
        let Ok(steps) = retry_until_abandoned(&control.abandon, load).await else {
            return Execution::Abandoned;
        };
        let (state, at) = (RunState::Failed, journal::now());
        let failure = Failure::new(error.code(), format!("the run cannot go on: {error}"));
        Execution::Ended(Box::new(Ending {
            end: RunEnd { state, outcomes: Vec::new(), failure: Some(failure) },
            started_at: run.started_at.unwrap_or(at),
            stopped_at: None,
            entry: Entry::steps(step::settle(&run.input, &steps, state, fence.epoch, at)),
            events: Vec::new(),
            agent: None,
        }))
    }
}
