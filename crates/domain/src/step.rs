//! Steps: the durable units of a run.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Timestamp,
    budget::Micros,
    content::ContentHash,
    error::Code,
    ids::{ApprovalId, MessageId, RunId, SessionId, StepId},
    message::{Part, Role, text_of},
    model::{FinishReason, ModelParameters, ModelRef, ProviderKind, Usage},
    run::{Failure, RunInput, RunState},
    session::Epoch,
    tool::{CallStatus, ToolCall, ToolOutcome},
};

/// A step as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub id: StepId,
    /// Position in the run, from 0.
    pub index: u32,
    #[serde(flatten)]
    pub work: StepWork,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The epoch under which it was started.
    pub epoch: Epoch,
}

/// What a step does, and its outcome. `None` while only its *intent* has been recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "tool calls are the common ones, and one allocation less each")]
pub enum StepWork {
    ToolCall {
        call: ToolCall,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<ToolOutcome>,
        #[serde(default, skip_serializing_if = "CallLinks::is_none")]
        links: CallLinks,
    },
    ModelCall {
        request: Box<ModelRequest>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<Box<ModelOutcome>>,
    },
}

impl StepWork {
    /// The name of its kind.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::ToolCall { .. } => "tool_call",
            Self::ModelCall { .. } => "model_call",
        }
    }
}

impl Step {
    /// The tool call of this step, if it is one.
    #[must_use]
    pub const fn call(&self) -> Option<&ToolCall> {
        match &self.work {
            StepWork::ToolCall { call, .. } => Some(call),
            StepWork::ModelCall { .. } => None,
        }
    }

    /// The outcome of its tool call, if it is one and has ended.
    #[must_use]
    pub const fn call_outcome(&self) -> Option<&ToolOutcome> {
        match &self.work {
            StepWork::ToolCall { outcome, .. } => outcome.as_ref(),
            StepWork::ModelCall { .. } => None,
        }
    }

    /// Like [`call_outcome`](Self::call_outcome), by value.
    #[must_use]
    pub fn into_call_outcome(self) -> Option<ToolOutcome> {
        match self.work {
            StepWork::ToolCall { outcome, .. } => outcome,
            StepWork::ModelCall { .. } => None,
        }
    }

    /// What its tool call waits for, or waited for.
    #[must_use]
    pub const fn links(&self) -> Option<&CallLinks> {
        match &self.work {
            StepWork::ToolCall { links, .. } => Some(links),
            StepWork::ModelCall { .. } => None,
        }
    }

    #[must_use]
    pub const fn is_finished(&self) -> bool {
        match &self.work {
            StepWork::ToolCall { outcome, .. } => outcome.is_some(),
            StepWork::ModelCall { outcome, .. } => outcome.is_some(),
        }
    }
}

/// What a call waits for, or waited for, outside of its run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallLinks {
    /// The approval that the call needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalId>,
    /// The approval was given, and the call may have started.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub approved: bool,
    /// The arguments as edited by the approver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edited: Option<Value>,
    /// The approver's message to the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The child run that does the work of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child: Option<Child>,
}

impl CallLinks {
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.approval.is_none() && self.edited.is_none() && self.child.is_none()
    }

    /// The call has not started because it is not approved yet.
    #[must_use]
    pub const fn awaits_approval(&self) -> bool {
        self.approval.is_some() && !self.approved
    }

    /// Whether an unfinished call with these links certainly had no effects of its own.
    #[must_use]
    pub const fn is_harmless(&self) -> bool {
        self.awaits_approval() || self.child.is_some()
    }
}

/// A child run, in a session of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    pub session: SessionId,
    pub run: RunId,
    pub agent: String,
    /// The call ended when the child started; its result is reported later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
}

/// The text of the last model response of a run, if it completed.
#[must_use]
pub fn answer(steps: &[Step]) -> Option<String> {
    let outcome = steps.iter().rev().find_map(|step| match &step.work {
        StepWork::ModelCall { request, outcome } if request.purpose.is_answer() => outcome.as_deref(),
        StepWork::ModelCall { .. } | StepWork::ToolCall { .. } => None,
    })?;
    (outcome.status == CallStatus::Completed).then(|| text_of(&outcome.parts)).filter(|text| !text.is_empty())
}

/// Why an agent's run ended before the agent concluded by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The agent had made all model calls that its `max_steps` allows, and was told to conclude.
    MaxSteps,
}

impl StopReason {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxSteps => "max_steps",
        }
    }
}

/// What stopped the agent of a run, if its last response was not its own conclusion. An agent with a single step that
/// answers without a tool call was not stopped.
#[must_use]
pub fn stop_reason(steps: &[Step]) -> Option<StopReason> {
    let mut responses = steps.iter().rev().filter_map(|step| match &step.work {
        StepWork::ModelCall { request, outcome: Some(outcome) }
            if request.purpose.is_answer() && outcome.status == CallStatus::Completed =>
        {
            Some((request, outcome))
        }
        StepWork::ModelCall { .. } | StepWork::ToolCall { .. } => None,
    });
    let (last, outcome) = responses.next().filter(|(request, _)| request.concluding)?;
    let wants_tools = outcome.parts.iter().any(|part| matches!(part, Part::ToolUse { .. }));
    let has_earlier = responses.next().is_some_and(|(earlier, _)| earlier.agent == last.agent);
    (wants_tools || has_earlier).then_some(StopReason::MaxSteps)
}

/// A request to a model. Long texts are stored as contents under their hash: they rarely change between calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// Id of the message that the response becomes.
    pub message: MessageId,
    pub agent: String,
    /// The workspace definitions that the run uses.
    pub definitions: ContentHash,
    pub model: ModelRef,
    /// The wire protocol. Missing in steps of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderKind>,
    /// The provider's name for the model.
    pub model_name: String,
    pub parameters: ModelParameters,
    /// The system prompt.
    pub system: ContentHash,
    /// The tools offered, with their descriptions and schemas.
    pub tools: ContentHash,
    pub messages: Vec<SentMessages>,
    /// The last call that the agent's `max_steps` allows: the model was told to conclude.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub concluding: bool,
    #[serde(default, skip_serializing_if = "Purpose::is_answer")]
    pub purpose: Purpose,
    /// Background children whose end this request reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reported: Vec<RunId>,
    /// Tool results up to this message were replaced by a note that they were omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared: Option<MessageId>,
    /// The last failed attempt, while the call is not finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<ModelRetry>,
}

/// A failed attempt of a model call that is attempted again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRetry {
    /// The number of the attempt that failed, from 1.
    pub attempt: u32,
    pub failure: Failure,
    /// When the next attempt starts.
    pub next_at: Timestamp,
}

/// Purpose of a model call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Continues the run.
    #[default]
    Answer,
    /// Summarizes the transcript because it grows too long.
    Summary,
}

impl Purpose {
    #[must_use]
    pub const fn is_answer(&self) -> bool {
        matches!(self, Self::Answer)
    }
}

/// Messages as they were sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SentMessages {
    /// All messages of the transcript from `first` to `last`. Summaries are only referred to individually.
    Stored { first: MessageId, last: MessageId, count: u32 },
    /// Like `Stored`, with tool results omitted.
    Cleared { first: MessageId, last: MessageId, count: u32 },
    /// A message that is not in the transcript in this form.
    Given { role: Role, parts: Vec<Part> },
}

/// Outcome of a model call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelOutcome {
    /// `completed`, `failed` or `cancelled`.
    pub status: CallStatus,
    /// The response, or the part of it received before it was stopped.
    pub parts: Vec<Part>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<FinishReason>,
    pub usage: Usage,
    /// Cost in millionths of a dollar, if the model has a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Micros>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    pub duration_ms: u64,
    /// Time from the request to the first piece of a streamed response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_ms: Option<u64>,
    /// Number of requests; more than one after failures of the provider.
    pub attempts: u32,
    /// The provider's id of the response.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub response_id: String,
}

impl ModelOutcome {
    /// The outcome of a call without a response.
    #[must_use]
    pub fn without_answer(status: CallStatus, failure: Option<Failure>) -> Self {
        Self {
            status,
            parts: Vec::new(),
            finish: None,
            usage: Usage::default(),
            cost: None,
            failure,
            duration_ms: 0,
            first_token_ms: None,
            attempts: 0,
            response_id: String::new(),
        }
    }

    /// The outcome of a call whose worker was lost.
    #[must_use]
    pub fn lost() -> Self {
        let failure = Failure::new(Code::Interrupted, "its worker was lost");
        Self::without_answer(CallStatus::Interrupted, Some(failure))
    }
}

/// Completes the steps of a run that ends without an owner: started calls are interrupted, calls not reached are
/// skipped or cancelled. Returns the new and changed steps.
#[must_use]
pub fn settle(input: &RunInput, steps: &[Step], end: RunState, epoch: Epoch, at: Timestamp) -> Vec<Step> {
    match input {
        RunInput::Tools(input) => settle_calls(&input.calls, steps, end, epoch, at),
        RunInput::Message(_) => settle_begun(steps, end, at),
    }
}

/// An agent's run has no calls beyond those in its steps.
fn settle_begun(steps: &[Step], end: RunState, at: Timestamp) -> Vec<Step> {
    let begun = steps.iter().filter(|step| !step.is_finished()).cloned();
    let settled = begun.map(|mut step| {
        match &mut step.work {
            StepWork::ToolCall { call, outcome, links } => {
                *outcome = Some(match links.is_harmless() {
                    true => ToolOutcome::unreached(call, end),
                    false => ToolOutcome::interrupted(call, "was lost"),
                });
            }
            StepWork::ModelCall { outcome, .. } => *outcome = Some(Box::new(ModelOutcome::lost())),
        }
        Step { finished_at: Some(at), ..step }
    });
    settled.collect()
}

fn settle_calls(calls: &[ToolCall], steps: &[Step], end: RunState, epoch: Epoch, at: Timestamp) -> Vec<Step> {
    let settled = calls.iter().zip(0..).filter_map(|(call, index)| {
        let found = steps.iter().find(|step| step.call().is_some_and(|it| it.id == call.id));
        if found.is_some_and(Step::is_finished) {
            return None;
        }
        let begun = found.is_some_and(|step| !step.links().is_some_and(CallLinks::is_harmless));
        let outcome = match begun {
            true => ToolOutcome::interrupted(call, "was lost"),
            false => ToolOutcome::unreached(call, end),
        };
        let (id, started_at, epoch) =
            found.map_or((StepId::new(), at, epoch), |step| (step.id, step.started_at, step.epoch));
        let links = found.and_then(Step::links).cloned().unwrap_or_default();
        let work = StepWork::ToolCall { call: call.clone(), outcome: Some(outcome), links };
        Some(Step { id, index, work, started_at, finished_at: Some(at), epoch })
    });
    settled.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{ids::ToolCallId, run::ToolsInput, tool::CallStatus};

    #[test]
    fn every_call_of_an_ended_run_has_an_outcome() {
        let call = |tool: &str| ToolCall {
            id: ToolCallId::new(),
            tool: tool.into(),
            arguments: json!({}),
            parallel: false,
            timeout: None,
        };
        let calls = vec![call("done"), call("begun"), call("never")];
        let input = RunInput::Tools(ToolsInput { calls, continue_on_error: false, record: false });
        let at = Timestamp::UNIX_EPOCH;
        let status = |step: &Step| step.call_outcome().unwrap().status;
        // A run whose calls were never reached.
        let mut steps = settle(&input, &[], RunState::Failed, 1, at);
        assert!(steps.iter().all(|step| status(step) == CallStatus::Skipped));
        steps.pop();
        let StepWork::ToolCall { outcome, .. } = &mut steps[1].work else { panic!("not a call") };
        *outcome = None;
        // A call that still waits for its approval was certainly not made.
        let mut asked = steps.clone();
        let StepWork::ToolCall { links, .. } = &mut asked[1].work else { panic!("not a call") };
        links.approval = Some(ApprovalId::new());
        let settled = settle(&input, &asked, RunState::Cancelled, 2, at);
        assert_eq!(settled.iter().map(status).collect::<Vec<_>>(), [CallStatus::Cancelled; 2]);
        let settled = settle(&input, &steps, RunState::Cancelled, 2, at);
        assert_eq!(
            settled.iter().map(status).collect::<Vec<_>>(),
            [CallStatus::Interrupted, CallStatus::Cancelled]
        );
        assert_eq!((settled[0].id, settled[0].epoch, settled[1].index), (steps[1].id, 1, 2));
    }
}
