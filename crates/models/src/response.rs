//! A model response, independent of the provider.

use std::time::Duration;

use remuda_domain::{
    message::Reasoning,
    model::{FinishReason, Usage},
    run::Failure,
};
use serde_json::{Map, Value};

/// A complete response.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// In order; empty for models that do not show their reasoning.
    pub reasoning: Vec<Reasoning>,
    pub text: String,
    pub tool_requests: Vec<ToolRequest>,
    pub finish: FinishReason,
    pub usage: Usage,
    /// The provider's id of this response.
    pub id: String,
    /// Number of attempts.
    pub attempts: u32,
}

/// A tool call that the model requests.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRequest {
    pub name: String,
    /// The arguments, or the verbatim text if it is not a JSON object.
    pub arguments: Result<Map<String, Value>, String>,
}

/// A piece of a streamed response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    Text(String),
    Reasoning(String),
    /// A tool will be called. Its arguments come with the complete response.
    ToolRequested {
        name: String,
    },
    /// The attempt failed and is repeated: earlier deltas are void.
    Restarted,
    /// The provider failed. The next attempt starts after the delay.
    Retrying {
        /// The number of the attempt that failed, from 1.
        attempt: u32,
        failure: Failure,
        delay: Duration,
    },
}

/// Called with each delta. Must not block.
pub type OnDelta<'a> = &'a (dyn Fn(Delta) + Send + Sync);
