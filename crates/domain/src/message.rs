//! Messages: the transcript of a session.

use serde::{Deserialize, Serialize};

use crate::{
    Timestamp,
    ids::{MessageId, RunId, SessionId},
    tool::{ToolCall, ToolOutcome},
};

/// Author of a message.
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
    Text {
        text: String,
    },
    Image {
        image: Image,
    },
    Reasoning {
        reasoning: Reasoning,
    },
    ToolUse {
        call: ToolCall,
    },
    ToolResult {
        outcome: ToolOutcome,
    },
    /// Sent to models instead of all messages up to and including `through`.
    Summary {
        text: String,
        through: MessageId,
    },
}

impl Part {
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// An image, inline or at a URL that the model's provider can fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "source", rename_all = "snake_case")]
pub enum Image {
    Inline {
        /// `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
        media_type: String,
        /// Base64.
        data: String,
    },
    Url {
        url: String,
    },
}

/// Reasoning of a model before its response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reasoning {
    /// Empty if the provider does not reveal it.
    pub text: String,
    /// Proof of origin that the provider expects back with the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// Reasoning that only the provider can decrypt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redacted: Option<String>,
    /// The model that produced it, as `platform/…` or `workspace/…`. It is not sent to other models.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
}

/// One entry of a session's transcript.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub id: MessageId,
    pub session: SessionId,
    pub run: Option<RunId>,
    pub role: Role,
    /// The agent that was active; `None` if no agent was involved.
    pub agent: Option<String>,
    pub parts: Vec<Part>,
    pub created_at: Timestamp,
}

impl Message {
    /// Its text, without reasoning, calls and results.
    #[must_use]
    pub fn text(&self) -> String {
        text_of(&self.parts)
    }
}

/// Text of the parts, without reasoning, calls and results.
#[must_use]
pub fn text_of(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text { text } | Part::Summary { text, .. } => Some(text.as_str()),
        Part::Image { .. } | Part::Reasoning { .. } | Part::ToolUse { .. } | Part::ToolResult { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
