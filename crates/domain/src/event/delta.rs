//! What is told while it happens and kept nowhere.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ids::{MessageId, RunId, ToolCallId};

/// A piece of a message that is still being said, or of what a running tool prints. It is sent to whoever listens and kept
/// nowhere: the message, or the tool's result, follows as an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    pub run: RunId,
    #[serde(flatten)]
    pub of: DeltaOf,
    pub kind: DeltaKind,
    /// Bytes of this kind that came before. For a message, smaller than what a reader has means that the model began anew; for
    /// output, larger means that some of it was left out.
    pub offset: u64,
    pub text: String,
}

/// What a piece belongs to.
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
    /// About the output of a call: no more of it comes live.
    Notice,
}

impl Delta {
    /// The stable name of its type where it stands among events.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self.of {
            DeltaOf::Message(_) => "message.delta",
            DeltaOf::Call(_) => "tool.output",
        }
    }

    /// What clients see of it, beside its [`name`](Self::name).
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

    /// The message that it is a piece of.
    #[must_use]
    pub const fn message(&self) -> Option<MessageId> {
        match self.of {
            DeltaOf::Message(message) => Some(message),
            DeltaOf::Call(_) => None,
        }
    }

    /// The call whose output it is.
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
    fn pieces_say_what_they_belong_to() {
        let (run, message, call) = (RunId::new(), MessageId::new(), ToolCallId::new());
        let said =
            Delta { run, of: DeltaOf::Message(message), kind: DeltaKind::Text, offset: 3, text: "lo".into() };
        let printed = Delta { of: DeltaOf::Call(call), kind: DeltaKind::Stderr, offset: 0, ..said.clone() };
        assert_eq!((said.name(), printed.name()), ("message.delta", "tool.output"));
        assert_eq!((said.message(), said.call()), (Some(message), None));
        assert_eq!((printed.message(), printed.call()), (None, Some(call)));
        // What processes of earlier versions send each other.
        let json = json!({ "run": run, "message": message, "kind": "text", "offset": 3, "text": "lo" });
        assert_eq!(serde_json::to_value(&said).unwrap(), json);
        for delta in [said, printed] {
            let json = serde_json::to_string(&delta).unwrap();
            assert_eq!(serde_json::from_str::<Delta>(&json).unwrap(), delta);
        }
    }
}
