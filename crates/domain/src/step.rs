//! Steps: the durable units inside a run.

use serde::{Deserialize, Serialize};

use crate::{
    Timestamp,
    ids::{MessageId, RunId, SessionId, StepId},
    run::RunState,
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

/// Completes the steps of a run that ends while nobody executes it: what was begun is interrupted, what was not reached is
/// skipped or cancelled. Returns the steps that are new or changed.
#[must_use]
pub fn settle(calls: &[ToolCall], steps: &[Step], end: RunState, epoch: Epoch, at: Timestamp) -> Vec<Step> {
    let settled = calls.iter().zip(0..).filter_map(|(call, index)| {
        let found = steps.iter().find(|step| step.call.id == call.id);
        if found.is_some_and(|step| step.outcome.is_some()) {
            return None;
        }
        let outcome = match found {
            Some(_) => ToolOutcome::interrupted(call, "was lost"),
            None => ToolOutcome::unreached(call, end),
        };
        let new = || Step {
            id: StepId::new(),
            index,
            kind: StepKind::ToolCall,
            call: call.clone(),
            outcome: None,
            started_at: at,
            finished_at: None,
            epoch,
        };
        let step = found.cloned().unwrap_or_else(new);
        Some(Step { outcome: Some(outcome), finished_at: Some(at), ..step })
    });
    settled.collect()
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{ids::ToolCallId, tool::CallStatus};

    #[test]
    fn every_call_of_an_ended_run_has_an_outcome() {
        let call = |tool: &str| ToolCall {
            id: ToolCallId::new(),
            tool: tool.into(),
            arguments: json!({}),
            parallel: false,
            timeout: None,
        };
        let calls = [call("done"), call("begun"), call("never")];
        let at = Timestamp::UNIX_EPOCH;
        // As after a run that was never reached at all.
        let mut steps = settle(&calls, &[], RunState::Failed, 1, at);
        assert!(steps.iter().all(|step| step.outcome.as_ref().unwrap().status == CallStatus::Skipped));
        steps.pop();
        steps[1].outcome = None;
        let settled = settle(&calls, &steps, RunState::Cancelled, 2, at);
        let status = |step: &Step| step.outcome.as_ref().unwrap().status;
        assert_eq!(
            settled.iter().map(status).collect::<Vec<_>>(),
            [CallStatus::Interrupted, CallStatus::Cancelled]
        );
        assert_eq!((settled[0].id, settled[0].epoch, settled[1].index), (steps[1].id, 1, 2));
    }
}
