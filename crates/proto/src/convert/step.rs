//! Conversions of steps and model calls.

use remuda_domain::{
    model::{FinishReason, Usage},
    step::{ModelOutcome, ModelRequest, Step, StepWork},
};
use serde::Serialize;

use super::timestamp;
use crate::v1;

impl From<Step> for v1::Step {
    fn from(step: Step) -> Self {
        let kind = step.work.kind().to_owned();
        let links = step.links().cloned().unwrap_or_default();
        let (call, outcome, model_call) = match step.work {
            StepWork::ToolCall { call, outcome, .. } => (Some(call.into()), outcome.map(Into::into), None),
            StepWork::ModelCall { request, outcome } => {
                (None, None, Some(model_call(*request, outcome.map(|outcome| *outcome))))
            }
        };
        Self {
            id: step.id.to_string(),
            index: step.index,
            kind,
            call,
            outcome,
            started_at: Some(timestamp(step.started_at)),
            finished_at: step.finished_at.map(timestamp),
            model_call,
            approval_id: links.approval.map(|id| id.to_string()).unwrap_or_default(),
            child_run_id: links.child.as_ref().map(|child| child.run.to_string()).unwrap_or_default(),
            child_session_id: links.child.map(|child| child.session.to_string()).unwrap_or_default(),
            edited_arguments: links.edited.map(|arguments| arguments.to_string()).unwrap_or_default(),
        }
    }
}

fn model_call(request: ModelRequest, outcome: Option<ModelOutcome>) -> v1::ModelCall {
    let asked = v1::ModelCall {
        message_id: request.message.to_string(),
        agent: request.agent,
        model: request.model.to_string(),
        model_name: request.model_name,
        parameters: json(&request.parameters),
        definitions_hash: request.definitions.to_string(),
        system_hash: request.system.to_string(),
        tools_hash: request.tools.to_string(),
        messages: json(&request.messages),
        purpose: if request.purpose.is_answer() { "answer" } else { "summary" }.to_owned(),
        ..v1::ModelCall::default()
    };
    let Some(outcome) = outcome else { return asked };
    v1::ModelCall {
        status: outcome.status.as_str().to_owned(),
        parts: json(&outcome.parts),
        finish: outcome.finish.map(finish).unwrap_or_default().to_owned(),
        usage: Some(outcome.usage.into()),
        failure: outcome.failure.map(Into::into),
        duration_ms: i64::try_from(outcome.duration_ms).unwrap_or(i64::MAX),
        attempts: outcome.attempts,
        cost_micros: outcome.cost,
        ..asked
    }
}

/// Serializes a domain type, which cannot fail.
fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

pub(super) const fn finish(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Length => "length",
        FinishReason::ContentFilter => "content_filter",
        FinishReason::Other => "other",
    }
}

impl From<Usage> for v1::Usage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cached_input_tokens: usage.cached_input_tokens,
            cache_write_tokens: usage.cache_write_tokens,
            reasoning_tokens: usage.reasoning_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::{
        MessageId, StepId, Timestamp,
        content::ContentHash,
        message::Part,
        model::ModelParameters,
        step::{Purpose, SentMessages},
        tool::CallStatus,
    };

    use super::*;

    fn step(outcome: Option<ModelOutcome>) -> v1::Step {
        let message = MessageId::new();
        let request = ModelRequest {
            message,
            agent: "build".to_owned(),
            definitions: ContentHash::of("definitions"),
            model: "platform/small".parse().unwrap(),
            provider: None,
            model_name: "small-1".to_owned(),
            parameters: ModelParameters { max_tokens: Some(7), ..ModelParameters::default() },
            system: ContentHash::of("system"),
            tools: ContentHash::of("tools"),
            messages: vec![SentMessages::Stored { first: message, last: message, count: 1 }],
            concluding: false,
            purpose: Purpose::Answer,
            reported: Vec::new(),
            cleared: None,
            retry: None,
        };
        let work = StepWork::ModelCall { request: Box::new(request), outcome: outcome.map(Box::new) };
        let at = Timestamp::UNIX_EPOCH;
        Step { id: StepId::new(), index: 3, work, started_at: at, finished_at: None, epoch: 1 }.into()
    }

    #[test]
    fn model_call_contains_request_and_response() {
        let asked = step(None);
        assert_eq!((asked.kind.as_str(), asked.call, asked.outcome), ("model_call", None, None));
        let call = asked.model_call.unwrap();
        assert_eq!((call.model.as_str(), call.status.as_str(), call.usage), ("platform/small", "", None));
        assert_eq!(call.parameters, r#"{"max_tokens":7}"#);
        assert_eq!(call.system_hash, ContentHash::of("system").to_string());

        let usage = Usage { input_tokens: 5, reasoning_tokens: 2, ..Usage::default() };
        let outcome = ModelOutcome {
            parts: vec![Part::text("done")],
            finish: Some(FinishReason::ToolCalls),
            usage,
            attempts: 2,
            ..ModelOutcome::without_answer(CallStatus::Completed, None)
        };
        let call = step(Some(outcome)).model_call.unwrap();
        assert_eq!(
            (call.status.as_str(), call.finish.as_str(), call.attempts),
            ("completed", "tool_calls", 2)
        );
        assert_eq!(call.parts, r#"[{"type":"text","text":"done"}]"#);
        assert_eq!(call.usage, Some(usage.into()));
    }

    #[test]
    fn finish_reasons_are_named_as_in_events() {
        for reason in [
            FinishReason::Stop,
            FinishReason::ToolCalls,
            FinishReason::Length,
            FinishReason::ContentFilter,
            FinishReason::Other,
        ] {
            assert_eq!(json(&reason), format!("\"{}\"", finish(reason)));
        }
    }
}
