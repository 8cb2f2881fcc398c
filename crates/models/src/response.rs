//! What a model answers, in no provider's words.

use remuda_domain::{
    message::Reasoning,
    model::{FinishReason, Usage},
};
use serde_json::{Map, Value};

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// In the order in which it thought; empty for models that do not show it.
    pub reasoning: Vec<Reasoning>,
    pub text: String,
    pub tool_requests: Vec<ToolRequest>,
    pub finish: FinishReason,
    pub usage: Usage,
    /// What the provider calls this answer.
    pub id: String,
    /// Requests it took.
    pub attempts: u32,
}

/// A tool that the model wants to be called.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRequest {
    pub name: String,
    /// The arguments, or what came instead of a JSON object, word for word.
    pub arguments: Result<Map<String, Value>, String>,
}

/// A piece of an answer on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    Text(String),
    Reasoning(String),
    /// A tool will be called; its arguments follow with the answer.
    ToolRequested {
        name: String,
    },
    /// All of that was for nothing: the request is made again.
    Restarted,
}

/// Told of pieces as they arrive. Must not block.
pub type OnDelta<'a> = &'a (dyn Fn(Delta) + Send + Sync);
