//! Events: the ordered history of a session as clients see it.

mod appended;
mod delta;
#[cfg(test)]
mod docs_tests;

use serde::{Deserialize, Serialize};

use crate::{
    Timestamp,
    approval::{ApprovalRequest, ApprovalState},
    budget::{Budget, Micros},
    execution::ExecutionSite,
    ids::{ApprovalId, EventId, MessageId, RunId, SessionId, ToolCallId, WorkerId},
    labels::Labels,
    message::{Part, Role},
    model::{FinishReason, ModelRef, Usage},
    run::{Failure, ParkReason, RunState},
    snapshot::Snapshot,
    step::{ModelRetry, StopReason},
    tool::ToolOutcome,
};

pub use self::{
    appended::Appended,
    delta::{Delta, DeltaKind, DeltaOf},
};

/// Position in a session's event stream: 1, 2, 3 … without gaps. 0 is the position before the first event.
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
    /// The events that the reader asked for have been trimmed. This is the current state, and the retained events
    /// follow. Created by the stream service, with the cursor just before the oldest retained event.
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
        /// Unfinished runs of the session, this one included. 0 in events of versions without this field.
        #[serde(default)]
        pending: i64,
        #[serde(default, skip_serializing_if = "Labels::is_empty")]
        labels: Labels,
    },
    #[serde(rename = "run.started")]
    RunStarted { attempt: u32, worker: WorkerId },
    /// The worker handed the run over at a step boundary; another worker continues.
    #[serde(rename = "run.handed_over")]
    RunHandedOver { worker: WorkerId },
    /// The worker was lost. Another worker continues where it stopped, unless there were too many lost `attempts`.
    #[serde(rename = "run.attempt_lost")]
    RunAttemptLost { attempts: u32, worker: WorkerId },
    #[serde(rename = "run.parked")]
    RunParked { reason: ParkReason },
    #[serde(rename = "run.resumed")]
    RunResumed,
    #[serde(rename = "run.cancel_requested")]
    RunCancelRequested { reason: String },
    /// The worker that executes the run has received the request.
    #[serde(rename = "run.cancel_delivered")]
    RunCancelDelivered { worker: WorkerId },
    /// All processes of the run are dead.
    #[serde(rename = "run.stopped")]
    RunStopped,
    #[serde(rename = "tool.started")]
    ToolStarted { call: ToolCallId, tool: String },
    #[serde(rename = "tool.completed")]
    ToolCompleted(ToolOutcome),
    /// Any end of a call other than a result: failed, timed out, cancelled, interrupted.
    #[serde(rename = "tool.failed")]
    ToolFailed(ToolOutcome),
    /// The run's tools are executed there. Not emitted for the worker's own machine.
    #[serde(rename = "sandbox.ready")]
    SandboxReady(ExecutionSite),
    /// A message of a hook.
    #[serde(rename = "hook.notice")]
    HookNotice { hook: String, event: String, message: String },
    /// A model call has started. Its deltas follow live, then `message.completed`.
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
    /// The provider failed. The model is called again.
    #[serde(rename = "model.retrying")]
    ModelRetrying {
        message: MessageId,
        model: ModelRef,
        #[serde(flatten)]
        retry: ModelRetry,
    },
    #[serde(rename = "model.failed")]
    ModelFailed { message: MessageId, failure: Failure },
    /// A message was added to the transcript.
    #[serde(rename = "message.completed")]
    MessageCompleted {
        message: MessageId,
        role: Role,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
        parts: Vec<Part>,
    },
    /// The agent was told to conclude: it has made all model calls that its `max_steps` allows.
    #[serde(rename = "agent.stopped")]
    AgentStopped { agent: String, reason: StopReason, steps: u32 },
    /// Another agent leads the session from here on.
    #[serde(rename = "agent.switched")]
    AgentSwitched { call: ToolCallId, from: String, to: String },
    /// A child run in another session works for this one. Its own events are in that session.
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
    /// The child run has ended, and its result is known here.
    #[serde(rename = "subagent.ended")]
    SubagentEnded { call: ToolCallId, session: SessionId, run: RunId, agent: String, state: RunState },
    /// A tool call waits for a person's decision.
    #[serde(rename = "approval.requested")]
    ApprovalRequested {
        approval: ApprovalId,
        request: Box<ApprovalRequest>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at: Option<Timestamp>,
    },
    /// The call no longer waits: a decision was made, the request expired, or the run ended.
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
    /// From here on, a summary replaces the transcript up to some message.
    #[serde(rename = "context.compacted")]
    ContextCompacted {
        /// The message that holds the summary.
        message: MessageId,
        /// The last message that the summary replaces.
        through: MessageId,
        tokens_before: u64,
        tokens_after: u64,
    },
    /// The budget of the run or of its session was changed.
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

/// Generates the list of all names from the match that names each variant, so none can be missing.
macro_rules! names {
    ($($variant:pat => $name:literal,)*) => {
        /// The names of all event types.
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
        Self::ModelRetrying { .. } => "model.retrying",
        Self::ModelFailed { .. } => "model.failed",
        Self::MessageCompleted { .. } => "message.completed",
        Self::AgentStopped { .. } => "agent.stopped",
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

    /// The terminal state that this event reports, if any.
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

/// An event without a cursor.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    pub run: Option<RunId>,
    pub at: Timestamp,
    pub body: EventBody,
}

impl NewEvent {
    /// Assigns the cursor.
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
            EventBody::RunQueued { seq: 1, kind: "tools".into(), pending: 1, labels: Labels::default() },
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
    fn every_terminal_state_has_an_event() {
        for state in RunState::ALL {
            let event = EventBody::for_end(state, None);
            assert_eq!(event.is_some(), state.is_terminal());
            assert_eq!(event.and_then(|event| event.terminal_state()).unwrap_or(state), state);
        }
    }
}
