//! Events: what clients see of a session, in one order.

mod appended;
mod delta;
#[cfg(test)]
mod documented;

use serde::{Deserialize, Serialize};

use crate::{
    Timestamp,
    approval::{ApprovalRequest, ApprovalState},
    budget::{Budget, Micros},
    execution::Place,
    ids::{ApprovalId, EventId, MessageId, RunId, SessionId, ToolCallId, WorkerId},
    message::{Part, Role},
    model::{FinishReason, ModelRef, Usage},
    run::{Failure, ParkReason, RunState},
    snapshot::Snapshot,
    tool::ToolOutcome,
};

pub use self::{
    appended::Appended,
    delta::{Delta, DeltaKind, DeltaOf},
};

/// Position in a session's event stream: 1, 2, 3 … without a hole. 0 stands before the first event.
pub type Cursor = i64;

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub id: EventId,
    pub cursor: Cursor,
    pub session: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    pub at: Timestamp,
    #[serde(flatten)]
    pub body: EventBody,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum EventBody {
    /// What the reader asked for is no longer kept: this is where things stand, and what is kept follows. Made by the stream, with
    /// the cursor just before the oldest event that is kept.
    #[serde(rename = "snapshot")]
    Snapshot(Box<Snapshot>),
    #[serde(rename = "session.created")]
    SessionCreated,
    #[serde(rename = "session.updated")]
    SessionUpdated,
    #[serde(rename = "session.closed")]
    SessionClosed,
    #[serde(rename = "run.queued")]
    RunQueued {
        seq: i64,
        kind: String,
        /// Runs of the session without an end, this one included. 0 in events of versions that did not say it.
        #[serde(default)]
        pending: i64,
    },
    #[serde(rename = "run.started")]
    RunStarted { attempt: u32, worker: WorkerId },
    /// The worker gave the run up at a step boundary; another one goes on.
    #[serde(rename = "run.handed_over")]
    RunHandedOver { worker: WorkerId },
    /// The worker was lost; another one goes on where it stood, unless `attempts` were too many.
    #[serde(rename = "run.attempt_lost")]
    RunAttemptLost { attempts: u32, worker: WorkerId },
    #[serde(rename = "run.parked")]
    RunParked { reason: ParkReason },
    #[serde(rename = "run.resumed")]
    RunResumed,
    #[serde(rename = "run.cancel_requested")]
    RunCancelRequested { reason: String },
    /// The worker that executes the run knows.
    #[serde(rename = "run.cancel_delivered")]
    RunCancelDelivered { worker: WorkerId },
    /// No process of the run is left.
    #[serde(rename = "run.stopped")]
    RunStopped,
    #[serde(rename = "tool.started")]
    ToolStarted { call: ToolCallId, tool: String },
    #[serde(rename = "tool.completed")]
    ToolCompleted(ToolOutcome),
    /// Any end of a call other than a result: failed, timed out, cancelled, interrupted.
    #[serde(rename = "tool.failed")]
    ToolFailed(ToolOutcome),
    /// The run's tools are executed there. Nothing is told of the worker's own machine.
    #[serde(rename = "sandbox.ready")]
    SandboxReady(Place),
    /// A hook has something to say.
    #[serde(rename = "hook.notice")]
    HookNotice { hook: String, event: String, message: String },
    /// A model is being asked. Pieces of its answer follow live, then `message.completed`.
    #[serde(rename = "model.started")]
    ModelStarted { message: MessageId, agent: String, model: ModelRef },
    #[serde(rename = "model.completed")]
    ModelCompleted {
        message: MessageId,
        finish: FinishReason,
        usage: Usage,
        /// In millionths of a dollar, if the model has a price.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<Micros>,
        attempts: u32,
        duration_ms: u64,
    },
    #[serde(rename = "model.failed")]
    ModelFailed { message: MessageId, failure: Failure },
    /// A message entered the transcript.
    #[serde(rename = "message.completed")]
    MessageCompleted {
        message: MessageId,
        role: Role,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
        parts: Vec<Part>,
    },
    /// Another agent leads from here on.
    #[serde(rename = "agent.switched")]
    AgentSwitched { call: ToolCallId, from: String, to: String },
    /// A run of another session works for this one. Its own events are in that session.
    #[serde(rename = "subagent.started")]
    SubagentStarted {
        call: ToolCallId,
        session: SessionId,
        run: RunId,
        agent: String,
        description: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        background: bool,
    },
    /// Its result is known here.
    #[serde(rename = "subagent.ended")]
    SubagentEnded { call: ToolCallId, session: SessionId, run: RunId, agent: String, state: RunState },
    /// A call waits for a person.
    #[serde(rename = "approval.requested")]
    ApprovalRequested {
        approval: ApprovalId,
        request: Box<ApprovalRequest>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at: Option<Timestamp>,
    },
    /// It waits no longer: someone decided, or it expired, or its run ended.
    #[serde(rename = "approval.decided")]
    ApprovalDecided {
        approval: ApprovalId,
        call: ToolCallId,
        state: ApprovalState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
    },
    /// What was said up to some message is sent as a summary from here on.
    #[serde(rename = "context.compacted")]
    ContextCompacted {
        /// The message that holds the summary.
        message: MessageId,
        /// The last message that it stands for.
        through: MessageId,
        tokens_before: u64,
        tokens_after: u64,
    },
    /// What the run, or its session, may spend was changed.
    #[serde(rename = "budget.changed")]
    BudgetChanged { budget: Budget },
    #[serde(rename = "run.completed")]
    RunCompleted,
    #[serde(rename = "run.failed")]
    RunFailed(Failure),
    #[serde(rename = "run.cancelled")]
    RunCancelled { reason: String },
    #[serde(rename = "run.timed_out")]
    RunTimedOut(Failure),
}

/// Makes the list of all names from the match that gives each variant its own: none can be missing.
macro_rules! names {
    ($($variant:pat => $name:literal,)*) => {
        /// The names of all types.
        pub const NAMES: &[&str] = &[$($name),*];

        /// The stable name of the event type.
        #[must_use]
        pub const fn name(&self) -> &'static str {
            match self {
                $($variant => $name,)*
            }
        }
    };
}

impl EventBody {
    names! {
        Self::Snapshot(_) => "snapshot",
        Self::SessionCreated => "session.created",
        Self::SessionUpdated => "session.updated",
        Self::SessionClosed => "session.closed",
        Self::RunQueued { .. } => "run.queued",
        Self::RunStarted { .. } => "run.started",
        Self::RunHandedOver { .. } => "run.handed_over",
        Self::RunAttemptLost { .. } => "run.attempt_lost",
        Self::RunParked { .. } => "run.parked",
        Self::RunResumed => "run.resumed",
        Self::RunCancelRequested { .. } => "run.cancel_requested",
        Self::RunCancelDelivered { .. } => "run.cancel_delivered",
        Self::RunStopped => "run.stopped",
        Self::ToolStarted { .. } => "tool.started",
        Self::ToolCompleted(_) => "tool.completed",
        Self::ToolFailed(_) => "tool.failed",
        Self::SandboxReady(_) => "sandbox.ready",
        Self::HookNotice { .. } => "hook.notice",
        Self::ModelStarted { .. } => "model.started",
        Self::ModelCompleted { .. } => "model.completed",
        Self::ModelFailed { .. } => "model.failed",
        Self::MessageCompleted { .. } => "message.completed",
        Self::AgentSwitched { .. } => "agent.switched",
        Self::SubagentStarted { .. } => "subagent.started",
        Self::SubagentEnded { .. } => "subagent.ended",
        Self::ApprovalRequested { .. } => "approval.requested",
        Self::ApprovalDecided { .. } => "approval.decided",
        Self::ContextCompacted { .. } => "context.compacted",
        Self::BudgetChanged { .. } => "budget.changed",
        Self::RunCompleted => "run.completed",
        Self::RunFailed(_) => "run.failed",
        Self::RunCancelled { .. } => "run.cancelled",
        Self::RunTimedOut(_) => "run.timed_out",
    }

    /// The terminal state this event reports, if it does.
    #[must_use]
    pub const fn terminal_state(&self) -> Option<RunState> {
        match self {
            Self::RunCompleted => Some(RunState::Completed),
            Self::RunFailed(_) => Some(RunState::Failed),
            Self::RunCancelled { .. } => Some(RunState::Cancelled),
            Self::RunTimedOut(_) => Some(RunState::TimedOut),
            _ => None,
        }
    }

    /// The event that reports this end of a run.
    #[must_use]
    pub fn for_end(state: RunState, failure: Option<&Failure>) -> Option<Self> {
        let failure = || {
            failure
                .cloned()
                .unwrap_or_else(|| Failure { code: "internal".to_owned(), message: String::new() })
        };
        match state {
            RunState::Completed => Some(Self::RunCompleted),
            RunState::Failed => Some(Self::RunFailed(failure())),
            RunState::Cancelled => Some(Self::RunCancelled { reason: failure().message }),
            RunState::TimedOut => Some(Self::RunTimedOut(failure())),
            RunState::Queued | RunState::Running | RunState::Parked => None,
        }
    }
}

/// An event before it has a place in the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    pub run: Option<RunId>,
    pub at: Timestamp,
    pub body: EventBody,
}

impl NewEvent {
    /// Gives the event its place.
    #[must_use]
    pub fn at_cursor(self, session: SessionId, cursor: Cursor) -> Event {
        Event { id: EventId::new(), cursor, session, run: self.run, at: self.at, body: self.body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialised_type_equals_name() {
        let bodies = [
            EventBody::SessionCreated,
            EventBody::RunQueued { seq: 1, kind: "tools".into(), pending: 1 },
            EventBody::RunFailed(Failure { code: "tool_failed".into(), message: "x".into() }),
            EventBody::RunAttemptLost { attempts: 2, worker: WorkerId::new() },
            EventBody::RunParked { reason: ParkReason::Approval },
            EventBody::RunStopped,
            EventBody::RunCompleted,
        ];
        for body in bodies {
            let json = serde_json::to_value(&body).unwrap();
            assert_eq!(json["type"], body.name());
            assert_eq!(serde_json::from_value::<EventBody>(json).unwrap(), body);
        }
    }

    #[test]
    fn every_terminal_state_has_its_event() {
        for state in RunState::ALL {
            let event = EventBody::for_end(state, None);
            assert_eq!(event.is_some(), state.is_terminal());
            assert_eq!(event.and_then(|event| event.terminal_state()).unwrap_or(state), state);
        }
    }
}
