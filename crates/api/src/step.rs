//! Steps of runs.

use remuda_proto::v1;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    agent::ModelCall,
    json_value::{embedded, text, time},
    run::{ToolCall, ToolOutcome},
};

/// A durable unit of work inside a run.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Step {
    /// `step_…`
    pub id: String,
    pub index: u32,
    /// `tool_call` or `model_call`. Ignore unknown kinds.
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<ToolCall>,
    /// The outcome of a tool call. Omitted while the step runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<ToolOutcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_call: Option<ModelCall>,
    /// The approval of a tool call, pending or decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<String>,
    /// The child run that a tool call was delegated to, and its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_session_id: Option<String>,
    /// Arguments that replaced those of the call at its approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edited_arguments: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub finished_at: Option<String>,
}

impl From<v1::Step> for Step {
    fn from(step: v1::Step) -> Self {
        Self {
            id: step.id,
            index: step.index,
            kind: step.kind,
            call: step.call.map(Into::into),
            outcome: step.outcome.map(Into::into),
            model_call: step.model_call.map(Into::into),
            approval_id: text(step.approval_id),
            child_run_id: text(step.child_run_id),
            child_session_id: text(step.child_session_id),
            edited_arguments: embedded(&step.edited_arguments),
            started_at: time(step.started_at),
            finished_at: time(step.finished_at),
        }
    }
}
