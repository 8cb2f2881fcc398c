//! A model request, independent of the provider.

use std::sync::Arc;

use remuda_domain::{
    message::{Image, Reasoning},
    model::ModelParameters,
    trace::TraceContext,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A complete model request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Omitted if empty.
    pub system: String,
    /// Begins with a user message. Providers that require strict alternation merge adjacent messages of one role.
    pub messages: Vec<ChatMessage>,
    pub tools: Arc<[ToolSpec]>,
    pub tool_choice: ToolChoice,
    /// Whether the model may request several calls at once.
    pub parallel_tool_calls: bool,
    pub parameters: ModelParameters,
    /// The trace context that is passed to the provider.
    pub trace: Option<TraceContext>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    Auto,
    /// Tools are listed, because the messages contain calls of them, but none may be called.
    None,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ChatMessage {
    pub role: ChatRole,
    pub content: Vec<Content>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatRole {
    /// Also carries tool results ([`Content::ToolResult`]).
    User,
    Assistant,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Text(String),
    Image(Image),
    /// The model's own reasoning, unchanged.
    Reasoning(Reasoning),
    ToolUse {
        /// At most 40 characters of `[a-zA-Z0-9_-]`, unique in the request.
        id: String,
        name: String,
        /// A JSON object.
        arguments: Value,
    },
    /// The result of a tool use in the message before.
    ToolResult {
        id: String,
        text: String,
        is_error: bool,
    },
}

/// A tool as a model sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// JSON Schema of an object.
    pub schema: Value,
}
