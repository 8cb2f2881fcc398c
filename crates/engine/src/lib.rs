//! Executes one run of an owned session, step by step.
//!
//! [`Engine::execute`] takes what a claim granted and ends with what is to be committed as the run's end. In between,
//! every step is committed before the next one begins, so that another worker can go on where this one died:
//! - A call that finished is never executed again.
//! - A call with side effects is announced in the store before it starts. Found announced but unfinished, it becomes
//!   `interrupted`: a result that says that nobody knows whether the effects happened.
//! - A call that can be repeated is repeated.
//!
//! The engine does not own sessions, renew leases or take tokens; its caller does, and says through [`RunControl`] when
//! to stop.

mod agent;
mod calls;
mod gate;
mod journal;
mod live_output;
mod meters;
mod placement;
mod plan;
mod stand;
mod tools_run;

use std::sync::Arc;

pub use agent::{
    AgentRuntime, AgentSettings, ContextSettings, DelegationSettings, FirstQuestion, OnExpiry,
    PermissionSettings, first_question, tools_of_agent,
};
pub use gate::Gate;
pub use journal::{Entry, Journal, now, patiently, wake_all};
pub use placement::Placement;
use remuda_domain::{
    Code, Error, RunInput, RunState, Timestamp,
    event::NewEvent,
    run::{Failure, RunEnd},
    step,
};
use remuda_sandbox::Backends;
use remuda_store::{Grant, Parking, Store};
use remuda_tools::Registry;
use remuda_transport::Transport;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

/// Executes runs. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub store: Arc<dyn Store>,
    pub transport: Arc<dyn Transport>,
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

/// How a run is stopped from outside.
#[derive(Clone, Debug, Default)]
pub struct RunControl {
    /// Someone asked for the run to stop: kill what runs and end as cancelled.
    pub cancel: CancellationToken,
    /// The worker drains: hand over at the next step boundary.
    pub drain: CancellationToken,
    /// The drain takes too long: kill what runs, record it as interrupted, and hand over.
    pub interrupt: CancellationToken,
    /// The session is, or will be, someone else's: kill what runs and write nothing more.
    pub abandon: CancellationToken,
    /// Holds back whatever the run would commit, and with it all that has effects, until the run before it is committed.
    pub gate: Gate,
    /// Someone began to listen in the middle of a message: tell it again from its beginning.
    pub tell_again: Arc<Notify>,
}

/// How an execution ended.
#[derive(Debug)]
pub enum Execution {
    /// The run is over; this is to be committed.
    Ended(Box<Ending>),
    /// The run stands at a step boundary, for another worker to go on; this is to be committed.
    HandedOver(Box<HandOver>),
    /// The run waits as data, and holds no worker; this is to be committed.
    Parked(Box<HandOver>, Parking),
    /// What ran is dead; nothing was written since.
    Abandoned,
}

/// What belongs to the commit that hands a run over, or lets it wait.
#[derive(Debug, Default)]
pub struct HandOver {
    pub entry: Entry,
    pub events: Vec<NewEvent>,
}

/// What belongs to a run's last commit.
#[derive(Debug)]
pub struct Ending {
    pub end: RunEnd,
    pub started_at: Timestamp,
    /// When the last process of a cancelled run was dead.
    pub stopped_at: Option<Instant>,
    pub entry: Entry,
    pub events: Vec<NewEvent>,
    /// The agent that leads the session from here on, if it is another one.
    pub agent: Option<String>,
}

impl Engine {
    /// Executes the granted run until it is over, handed over or abandoned.
    pub async fn execute(&self, grant: &Grant, control: &RunControl) -> Execution {
        let executed = match &grant.run.input {
            RunInput::Tools(input) => self.tools_run(input, grant, control).await,
            RunInput::Message(input) => Box::pin(self.agent_run(input, grant, control)).await,
        };
        match executed {
            Ok(execution) => execution,
            Err(error) if matches!(error.code(), Code::OwnershipLost | Code::Unavailable) => {
                tracing::warn!(run = %grant.run.id, error = error.chain(), "the run was given up");
                Execution::Abandoned
            }
            Err(error) => self.fail(grant, control, &error).await,
        }
    }

    /// Ends a run that the store does not let go on. To give it up would only make the next owner find the same.
    async fn fail(&self, grant: &Grant, control: &RunControl, error: &Error) -> Execution {
        tracing::error!(run = %grant.run.id, error = error.chain(), "the run cannot go on");
        let (fence, run) = (grant.fence, &grant.run);
        let load = || self.store.list_steps(fence.tenant, run.id);
        let Ok(steps) = patiently(&control.abandon, load).await else { return Execution::Abandoned };
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
