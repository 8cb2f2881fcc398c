//! What a model is asked, in no provider's words.

use std::sync::Arc;

use remuda_domain::{
    message::{Image, Reasoning},
    model::ModelParameters,
    trace::TraceContext,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One question to a model, whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Sent where the provider wants it; nothing when empty.
    pub system: String,
    /// Begins with the user's, then alternates as it did: providers that want strict alternation join neighbours of one role.
    pub messages: Vec<ChatMessage>,
    pub tools: Arc<[ToolSpec]>,
    pub tool_choice: ToolChoice,
    /// Whether the model may ask for several calls at once.
    pub parallel_tool_calls: bool,
    pub parameters: ModelParameters,
    /// Where the question stands in its trace: providers that trace go on with it.
    pub trace: Option<TraceContext>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    Auto,
    /// Tools are shown, because calls of them are in the messages, but none may be called.
    None,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ChatMessage {
    pub role: ChatRole,
    pub content: Vec<Content>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatRole {
    /// Also says what tools answered ([`Content::ToolResult`]).
    User,
    Assistant,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Text(String),
    Image(Image),
    /// Only the model's own, as it came.
    Reasoning(Reasoning),
    ToolUse {
        /// At most 40 characters of `[a-zA-Z0-9_-]`, unique in the request.
        id: String,
        name: String,
        /// An object.
        arguments: Value,
    },
    /// The answer to a use in the message before.
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
