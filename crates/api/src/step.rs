//! Steps of runs.

use remuda_proto::v1;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    agent::ModelCall,
    run::{ToolCall, ToolOutcome},
    value::{embedded, text, time},
};

/// One durable unit inside a run.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Step {
    /// `step_…`
    pub id: String,
    pub index: u32,
    /// `tool_call` or `model_call`. Skip kinds you do not know.
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<ToolCall>,
    /// Of a tool call; left out while the step runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<ToolOutcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_call: Option<ModelCall>,
    /// The approval that a tool call waits for, or waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<String>,
    /// The run that does the work of a tool call, and its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_session_id: Option<String>,
    /// The arguments that whoever approved the call gave it.
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
