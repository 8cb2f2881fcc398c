//! Deltas: live output that is not stored.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ids::{MessageId, RunId, ToolCallId};

/// A piece of a message under way, or of the output of a running tool. It is sent to current subscribers and not
/// stored: the complete message or tool result follows as an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    pub run: RunId,
    #[serde(flatten)]
    pub of: DeltaOf,
    pub kind: DeltaKind,
    /// Number of bytes of this kind before this piece. For a message, an offset below what a reader has means that
    /// the model started over. For output, a larger one means that some output was skipped.
    pub offset: u64,
    pub text: String,
}

/// What a delta belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeltaOf {
    Message(MessageId),
    Call(ToolCallId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeltaKind {
    Text,
    Reasoning,
    Stdout,
    Stderr,
    /// About the output of a call: no more of it follows live.
    Notice,
}

impl Delta {
    /// The stable name of its type in a stream of events.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self.of {
            DeltaOf::Message(_) => "message.delta",
            DeltaOf::Call(_) => "tool.output",
        }
    }

    /// Its data as clients see it, next to the [`name`](Self::name).
    #[must_use]
    pub fn data(&self) -> Value {
        let Self { run, of, kind, offset, text } = self;
        let kind = kind.as_str();
        match of {
            DeltaOf::Message(message) => {
                json!({ "run_id": run, "message_id": message, "kind": kind, "offset": offset, "text": text })
            }
            DeltaOf::Call(call) => {
                json!({ "run_id": run, "call_id": call, "stream": kind, "offset": offset, "text": text })
            }
        }
    }

    /// The message that it belongs to.
    #[must_use]
    pub const fn message(&self) -> Option<MessageId> {
        match self.of {
            DeltaOf::Message(message) => Some(message),
            DeltaOf::Call(_) => None,
        }
    }

    /// The tool call whose output it is.
    #[must_use]
    pub const fn call(&self) -> Option<ToolCallId> {
        match self.of {
            DeltaOf::Message(_) => None,
            DeltaOf::Call(call) => Some(call),
        }
    }
}

impl DeltaKind {
    pub const ALL: [Self; 5] = [Self::Text, Self::Reasoning, Self::Stdout, Self::Stderr, Self::Notice];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Reasoning => "reasoning",
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Notice => "notice",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deltas_name_their_message_or_call() {
        let (run, message, call) = (RunId::new(), MessageId::new(), ToolCallId::new());
        let text =
            Delta { run, of: DeltaOf::Message(message), kind: DeltaKind::Text, offset: 3, text: "lo".into() };
        let output = Delta { of: DeltaOf::Call(call), kind: DeltaKind::Stderr, offset: 0, ..text.clone() };
        assert_eq!((text.name(), output.name()), ("message.delta", "tool.output"));
        assert_eq!((text.message(), text.call()), (Some(message), None));
        assert_eq!((output.message(), output.call()), (None, Some(call)));
        // The format that earlier versions send each other.
        let json = json!({ "run": run, "message": message, "kind": "text", "offset": 3, "text": "lo" });
        assert_eq!(serde_json::to_value(&text).unwrap(), json);
        for delta in [text, output] {
            let json = serde_json::to_string(&delta).unwrap();
            assert_eq!(serde_json::from_str::<Delta>(&json).unwrap(), delta);
        }
    }
}
