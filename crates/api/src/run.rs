//! Runs and tool calls.

use std::collections::BTreeMap;

use remuda_proto::{convert, v1};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    agent::MessageInput,
    json_value::{embedded, list, millis, text, time},
    spending::{Budget, Total},
};

/// The state of a run. The last four are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Queued,
    Running,
    /// Waits in the database and holds no worker.
    Parked,
    Completed,
    Failed,
    Cancelled,
    TimedOut,
}

impl RunState {
    /// `None` for an unknown number.
    #[must_use]
    pub fn of(number: i32) -> Option<Self> {
        use remuda_domain::RunState as State;
        Some(match convert::run_state("state", number).ok()? {
            State::Queued => Self::Queued,
            State::Running => Self::Running,
            State::Parked => Self::Parked,
            State::Completed => Self::Completed,
            State::Failed => Self::Failed,
            State::Cancelled => Self::Cancelled,
            State::TimedOut => Self::TimedOut,
        })
    }
}

/// What to do if the session already has unfinished runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IfBusy {
    /// Wait for them.
    #[default]
    Enqueue,
    /// Refuse the new run with the code session_busy.
    Reject,
    /// Cancel them, then run.
    Interrupt,
}

impl From<IfBusy> for v1::IfBusy {
    fn from(if_busy: IfBusy) -> Self {
        match if_busy {
            IfBusy::Enqueue => Self::Enqueue,
            IfBusy::Reject => Self::Reject,
            IfBusy::Interrupt => Self::Interrupt,
        }
    }
}

/// A unit of work of a session.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Run {
    /// `run_…`
    pub id: String,
    pub session_id: String,
    /// Position within the session; runs start in this order.
    pub seq: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// The input: a list of tool calls …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolsInput>,
    /// … or a message to an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<MessageInput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How many attempts were started. More than one after a crash, a hand-over or a wait.
    pub attempt: u32,
    /// How many attempts lost their worker.
    pub lost_attempts: u32,
    /// What a parked run waits for: `approval`, `children`, `budget` or `external`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub park_reason: Option<String>,
    /// The parent run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<String>,
    /// What the run has spent, without the runs below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent: Option<Total>,
    /// What the run and the runs below it have spent. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree_spent: Option<Total>,
    /// Budget of the run and the runs below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub created_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub finished_at: Option<String>,
    /// Outcomes of the calls of a tools run.
    pub outcomes: Vec<ToolOutcome>,
    /// The agent's final text in a message run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Why the agent had to conclude, if it did not do so by itself: `max_steps`. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Set if the run ended without completing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub cancel_requested_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<CancelReceipts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Set when the run was submitted, or inherited from its parent run.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// An ordered list of tool calls.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ToolsInput {
    pub calls: Vec<ToolCall>,
    /// Continue after a failed call. A failed call then does not fail the run.
    pub continue_on_error: bool,
    /// Append the calls and their results to the session's messages.
    pub record: bool,
}

/// A tool call.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ToolCall {
    /// `tool_…`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub tool: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    /// Adjacent parallel calls run together; a failure of one does not cancel the others.
    pub parallel: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// The outcome of a tool call.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ToolOutcome {
    pub id: String,
    pub tool: String,
    /// `completed`, `failed`, `timed_out`, `cancelled`, `interrupted` or `skipped`.
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    pub duration_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
}

/// Where a tool call was executed, if not on the worker itself.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Place {
    pub backend: String,
    /// `sbx_…`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Digest of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Failure {
    /// A stable code, the same as in errors.
    pub code: String,
    pub message: String,
}

/// Progress of a cancellation request. A time is missing until its stage is reached.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CancelReceipts {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub requested_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The worker that executes the run received the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub delivered_at: Option<String>,
    /// The last process of the run has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub stopped_at: Option<String>,
    /// The run has ended and its slot is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub released_at: Option<String>,
}

/// An accepted run: it is committed and will reach exactly one terminal state.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Submitted {
    pub run_id: String,
    pub session_id: String,
    /// Id of the message in the transcript.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The run's state: `queued`, unless an earlier request with the same key created the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RunState>,
    pub seq: i64,
    /// Cursor of the run's first event; 0 if deduplicated.
    pub first_cursor: i64,
    /// An earlier request with the same idempotency key created the run.
    pub deduplicated: bool,
    /// Runs cancelled by `if_busy: interrupt`.
    pub interrupted_run_ids: Vec<String>,
    /// The ended run, if the request waited for its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

/// A run, after waiting for it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Waited {
    pub run: Run,
    /// True if the run has ended, false if only the wait is over.
    pub finished: bool,
}

/// The result of cancelling the runs of a session.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CancelledSession {
    /// Runs that no worker executed: they have ended.
    pub ended_run_ids: Vec<String>,
    /// Running runs: their workers were signalled.
    pub requested_run_ids: Vec<String>,
    /// The sessions of all these runs.
    pub session_ids: Vec<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct BudgetSet {
    pub budget: Budget,
    /// Runs that waited for the budget and resume.
    pub resumed_run_ids: Vec<String>,
}

impl From<v1::Run> for Run {
    fn from(run: v1::Run) -> Self {
        let (tools, message) = match run.input {
            Some(v1::run::Input::Tools(input)) => (Some(input.into()), None),
            Some(v1::run::Input::Message(input)) => (None, Some(input.into())),
            None => (None, None),
        };
        Self {
            state: RunState::of(run.state),
            id: run.id,
            session_id: run.session_id,
            seq: run.seq,
            tools,
            message,
            timeout_ms: millis(run.timeout),
            attempt: run.attempt,
            lost_attempts: run.lost_attempts,
            park_reason: text(run.park_reason),
            parent_run_id: text(run.parent_run_id),
            spent: run.spent.map(Into::into),
            tree_spent: run.tree_spent.map(Into::into),
            budget: run.budget.map(Into::into),
            created_at: time(run.created_at),
            started_at: time(run.started_at),
            finished_at: time(run.finished_at),
            outcomes: list(run.outcomes),
            answer: text(run.answer),
            stop_reason: text(run.stop_reason),
            failure: run.failure.map(Into::into),
            cancel_requested_at: time(run.cancel_requested_at),
            cancel_reason: text(run.cancel_reason),
            cancel: run.cancel.map(Into::into),
            idempotency_key: text(run.idempotency_key),
            labels: run.labels,
        }
    }
}

impl From<v1::ToolsInput> for ToolsInput {
    fn from(input: v1::ToolsInput) -> Self {
        Self { calls: list(input.calls), continue_on_error: input.continue_on_error, record: input.record }
    }
}

impl From<v1::ToolCall> for ToolCall {
    fn from(call: v1::ToolCall) -> Self {
        Self {
            id: text(call.id),
            tool: call.tool,
            arguments: embedded(&call.arguments),
            parallel: call.parallel,
            timeout_ms: millis(call.timeout),
        }
    }
}

impl From<v1::ToolOutcome> for ToolOutcome {
    fn from(outcome: v1::ToolOutcome) -> Self {
        Self {
            id: outcome.id,
            tool: outcome.tool,
            status: outcome.status,
            output: embedded(&outcome.output),
            failure: outcome.failure.map(Into::into),
            duration_ms: outcome.duration_ms,
            place: outcome.place.map(Into::into),
        }
    }
}

impl From<v1::Place> for Place {
    fn from(place: v1::Place) -> Self {
        let v1::Place { backend, sandbox_id, image, digest } = place;
        Self { backend, sandbox_id: text(sandbox_id), image: text(image), digest: text(digest) }
    }
}

impl From<v1::Failure> for Failure {
    fn from(failure: v1::Failure) -> Self {
        Self { code: failure.code, message: failure.message }
    }
}

impl From<v1::CancelReceipts> for CancelReceipts {
    fn from(receipts: v1::CancelReceipts) -> Self {
        Self {
            requested_at: time(receipts.requested_at),
            reason: text(receipts.reason),
            delivered_at: time(receipts.delivered_at),
            stopped_at: time(receipts.stopped_at),
            released_at: time(receipts.released_at),
        }
    }
}

impl From<v1::SubmitRunResponse> for Submitted {
    fn from(answer: v1::SubmitRunResponse) -> Self {
        let run = answer.run.unwrap_or_default();
        let message_id = match run.input {
            Some(v1::run::Input::Message(message)) => text(message.id),
            _ => None,
        };
        Self {
            status: RunState::of(run.state),
            run_id: run.id,
            session_id: run.session_id,
            message_id,
            seq: run.seq,
            first_cursor: answer.first_cursor,
            deduplicated: answer.deduplicated,
            interrupted_run_ids: answer.interrupted_run_ids,
            run: None,
        }
    }
}

impl From<v1::WaitRunResponse> for Waited {
    fn from(answer: v1::WaitRunResponse) -> Self {
        Self { run: answer.run.unwrap_or_default().into(), finished: answer.finished }
    }
}

impl From<v1::CancelSessionResponse> for CancelledSession {
    fn from(answer: v1::CancelSessionResponse) -> Self {
        let v1::CancelSessionResponse { ended_run_ids, requested_run_ids, session_ids } = answer;
        Self { ended_run_ids, requested_run_ids, session_ids }
    }
}

impl From<v1::SetBudgetResponse> for BudgetSet {
    fn from(answer: v1::SetBudgetResponse) -> Self {
        Self { budget: answer.budget.unwrap_or_default().into(), resumed_run_ids: answer.resumed_run_ids }
    }
}
