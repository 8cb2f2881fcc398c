//! Messages and model calls.

use remuda_proto::v1;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    json_value::{embedded, list, text, time},
    run::Failure,
    spending::Usage,
};

/// A message to an agent.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MessageInput {
    /// Id of the message in the transcript (`msg_…`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub images: Vec<Image>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

/// An image without its data, which is long. The message in the transcript has the data.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Image {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// One entry of a session's transcript.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Message {
    /// `msg_…`
    pub id: String,
    pub session_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The agent that was active when the message was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// A list of parts: `text`, `image`, `reasoning`, `tool_use`, `tool_result`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub created_at: Option<String>,
}

/// A model call: request and response.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelCall {
    /// The message that holds the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// `platform/<name>` or `workspace/<name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The provider's name of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// Hashes of the workspace's definitions, the system prompt and the offered tools; see `/contents/{hash}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definitions_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools_hash: Option<String>,
    /// Ranges of the transcript, and messages that are not in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<Value>,
    /// `completed`, `failed`, `cancelled` or `interrupted`. Omitted while the call is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<Value>,
    /// `stop`, `tool_calls`, `length`, `content_filter` or `other`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
    /// Millionths of a dollar. Omitted if the model has no price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
    /// `answer`, or `summary` for a compaction of the transcript.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// Number of requests to the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
}

impl From<v1::MessageInput> for MessageInput {
    fn from(input: v1::MessageInput) -> Self {
        Self {
            id: text(input.id),
            text: text(input.text),
            images: list(input.images),
            agent: text(input.agent),
        }
    }
}

impl From<v1::Image> for Image {
    fn from(image: v1::Image) -> Self {
        Self {
            media_type: text(image.media_type),
            bytes: (!image.data.is_empty()).then_some(image.data.len()),
            url: text(image.url),
        }
    }
}

impl From<v1::Message> for Message {
    fn from(message: v1::Message) -> Self {
        Self {
            id: message.id,
            session_id: message.session_id,
            run_id: text(message.run_id),
            role: message.role,
            agent: text(message.agent),
            parts: embedded(&message.parts),
            created_at: time(message.created_at),
        }
    }
}

impl From<v1::ModelCall> for ModelCall {
    fn from(call: v1::ModelCall) -> Self {
        let answered = !call.status.is_empty();
        Self {
            message_id: text(call.message_id),
            agent: text(call.agent),
            model: text(call.model),
            model_name: text(call.model_name),
            parameters: embedded(&call.parameters),
            definitions_hash: text(call.definitions_hash),
            system_hash: text(call.system_hash),
            tools_hash: text(call.tools_hash),
            messages: embedded(&call.messages),
            status: text(call.status),
            parts: embedded(&call.parts),
            finish: text(call.finish),
            usage: call.usage.map(Into::into),
            failure: call.failure.map(Into::into),
            duration_ms: answered.then_some(call.duration_ms),
            cost_micros: call.cost_micros,
            purpose: text(call.purpose),
            attempts: answered.then_some(call.attempts),
        }
    }
}
