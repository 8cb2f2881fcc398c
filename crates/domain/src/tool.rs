//! Tool calls, their outcomes, and what is known about each tool.

mod catalog;
mod descriptor;
mod result_display;
mod subject;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::{
    catalog::ToolCatalog,
    descriptor::{ForeignFormat, LongResults, ToolDescriptor, ToolOffer, ToolRole},
    result_display::{DisplayFields, Emphasis, ResultBody, ResultDisplay},
    subject::{CallSubject, SimilarCalls},
};
use crate::{
    error::Code,
    execution::ExecutionSite,
    ids::ToolCallId,
    run::{Failure, RunState},
};

/// One call of a tool, as submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: ToolCallId,
    pub tool: String,
    pub arguments: Value,
    /// Adjacent parallel calls run concurrently.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parallel: bool,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_millis")]
    pub timeout: Option<Duration>,
}

/// How one tool call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// Started, no result yet. A new owner decides by the tool's effects what to do.
    Started,
    Completed,
    Failed,
    TimedOut,
    Cancelled,
    /// Interrupted by a crash or a drain; whether its side effects happened is unknown.
    Interrupted,
    /// Never started because an earlier call failed.
    Skipped,
}

impl CallStatus {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
            Self::Skipped => "skipped",
        }
    }
}

/// The result of one tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    pub id: ToolCallId,
    pub tool: String,
    pub status: CallStatus,
    /// The tool's result; `null` if it returned none.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub output: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    pub duration_ms: u64,
    /// Where it was executed, unless on the worker itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<ExecutionSite>,
}

impl ToolOutcome {
    /// The outcome of a call that was interrupted together with its worker.
    #[must_use]
    pub fn interrupted(call: &ToolCall, how: &str) -> Self {
        let message = format!("its worker {how}; whether the call had effects is unknown");
        let failure = Failure::new(Code::Interrupted, message);
        Self::without_result(call, CallStatus::Interrupted, Some(failure))
    }

    /// The outcome of a call that was never started because the run ended in state `end`.
    #[must_use]
    pub fn unreached(call: &ToolCall, end: RunState) -> Self {
        let status = if end == RunState::Cancelled { CallStatus::Cancelled } else { CallStatus::Skipped };
        Self::without_result(call, status, None)
    }

    /// An outcome without a result.
    #[must_use]
    pub fn without_result(call: &ToolCall, status: CallStatus, failure: Option<Failure>) -> Self {
        Self {
            id: call.id,
            tool: call.tool.clone(),
            status,
            output: Value::Null,
            failure,
            duration_ms: 0,
            place: None,
        }
    }
}

/// What it would mean to execute a tool twice, or partly. Recovery depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// No changes: an unfinished call is repeated.
    ReadOnly,
    /// Twice equals once: an unfinished call is repeated too.
    Idempotent,
    /// Anything else: an unfinished call becomes `interrupted`.
    Mutating,
}

impl Effects {
    #[must_use]
    pub const fn repeatable(self) -> bool {
        matches!(self, Self::ReadOnly | Self::Idempotent)
    }
}

mod optional_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}
