//! Steps: the durable units inside a run.

use serde::{Deserialize, Serialize};

use crate::{
    Timestamp,
    ids::{MessageId, RunId, SessionId, StepId},
    session::Epoch,
    tool::{ToolCall, ToolOutcome},
};

/// What a step does. More kinds (model calls, switches, delegations) follow with the agent runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    ToolCall,
}

/// One step as stored. `outcome` is missing while the step has only been announced (its *intent*).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub id: StepId,
    /// Position in the run, from 0.
    pub index: u32,
    pub kind: StepKind,
    pub call: ToolCall,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<ToolOutcome>,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The ownership under which it was started.
    pub epoch: Epoch,
}

/// Who said a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::System, Self::User, Self::Assistant, Self::Tool].into_iter().find(|role| role.as_str() == text)
    }
}

/// One part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    Text { text: String },
    ToolUse { call: ToolCall },
    ToolResult { outcome: ToolOutcome },
}

/// One entry of a session's transcript.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub id: MessageId,
    pub session: SessionId,
    pub run: Option<RunId>,
    pub role: Role,
    pub parts: Vec<Part>,
    pub created_at: Timestamp,
}
