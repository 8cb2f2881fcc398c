//! Spans of steps: names and attributes.

use std::borrow::Cow;

use opentelemetry::{Array, KeyValue, StringValue, Value};
use remuda_domain::{
    budget::Micros,
    model::{FinishReason, ModelParameters},
    run::Failure,
    step::{ModelOutcome, ModelRequest, Step, StepWork},
    tool::{CallStatus, ToolOutcome},
};
use remuda_telemetry::spans::{Span, SpanKind};

use crate::attributes as name;

/// Whether the step was executed. Skipped calls have no duration and no span.
pub(crate) fn was_executed(step: &Step) -> bool {
    match &step.work {
        StepWork::ToolCall { outcome, .. } => {
            outcome.as_ref().is_some_and(|it| it.status != CallStatus::Skipped)
        }
        StepWork::ModelCall { outcome, .. } => outcome.is_some(),
    }
}

pub(crate) fn title(step: &Step) -> Cow<'static, str> {
    match &step.work {
        StepWork::ToolCall { call, .. } => format!("execute_tool {}", call.tool).into(),
        StepWork::ModelCall { request, .. } => format!("chat {}", request.model_name).into(),
    }
}

/// Adds the attributes of a step.
pub(crate) fn describe(span: Span, step: &Step) -> Span {
    let span = span.with([KeyValue::new(name::STEP_INDEX, i64::from(step.index))]);
    match &step.work {
        StepWork::ToolCall { call, outcome, links } => {
            let span = span.with([
                KeyValue::new(name::OPERATION_NAME, "execute_tool"),
                KeyValue::new(name::TOOL_NAME, call.tool.clone()),
                KeyValue::new(name::TOOL_CALL_ID, call.id.to_string()),
                KeyValue::new(name::TOOL_TYPE, "function"),
            ]);
            let child =
                links.child.as_ref().map(|child| KeyValue::new(name::CHILD_RUN_ID, child.run.to_string()));
            let span = span.with(child);
            match outcome {
                Some(outcome) => tool_outcome(span, outcome),
                None => span,
            }
        }
        StepWork::ModelCall { request, outcome } => {
            let span = model_request(span.kind(SpanKind::Client), request);
            match outcome {
                Some(outcome) => model_outcome(span, outcome),
                None => span,
            }
        }
    }
}

fn tool_outcome(span: Span, outcome: &ToolOutcome) -> Span {
    let site = outcome.place.as_ref();
    let exit = outcome.output.get("exit_code").and_then(serde_json::Value::as_i64);
    let bytes = i64::try_from(text_bytes(&outcome.output)).unwrap_or(i64::MAX);
    let span = span
        .with([
            KeyValue::new(name::STATUS, outcome.status.as_str()),
            KeyValue::new(name::OUTPUT_BYTES, bytes),
        ])
        .with(exit.map(|code| KeyValue::new(name::EXIT_CODE, code)))
        .with(site.into_iter().flat_map(|site| {
            [
                KeyValue::new(name::BACKEND, site.backend.as_str()),
                KeyValue::new(name::SANDBOX_ID, site.sandbox.to_string()),
                KeyValue::new(name::IMAGE, site.image.clone()),
            ]
        }));
    failed(span, outcome.status, outcome.failure.as_ref())
}

fn model_request(span: Span, request: &ModelRequest) -> Span {
    let ModelParameters { temperature, top_p, max_tokens } = request.parameters;
    span.with([
        KeyValue::new(name::OPERATION_NAME, "chat"),
        KeyValue::new(name::REQUEST_MODEL, request.model_name.clone()),
        KeyValue::new(name::MODEL_REF, request.model.to_string()),
        KeyValue::new(name::AGENT_NAME, request.agent.clone()),
    ])
    .with(request.provider.map(|provider| KeyValue::new(name::PROVIDER_NAME, provider.as_str())))
    .with(temperature.map(|number| KeyValue::new(name::REQUEST_TEMPERATURE, number)))
    .with(top_p.map(|number| KeyValue::new(name::REQUEST_TOP_P, number)))
    .with(max_tokens.map(|number| KeyValue::new(name::REQUEST_MAX_TOKENS, i64::from(number))))
    .with((!request.purpose.is_answer()).then(|| KeyValue::new(name::PURPOSE, "summary")))
}

fn model_outcome(span: Span, outcome: &ModelOutcome) -> Span {
    let usage = &outcome.usage;
    let counts = [
        (name::USAGE_INPUT_TOKENS, usage.input_tokens),
        (name::USAGE_OUTPUT_TOKENS, usage.output_tokens),
        (name::USAGE_CACHED_TOKENS, usage.cached_input_tokens),
    ];
    let reason = outcome.finish.map(|finish| {
        let reasons = Array::String(vec![StringValue::from(finish_reason(finish))]);
        KeyValue::new(name::FINISH_REASONS, Value::Array(reasons))
    });
    let first_token = outcome.first_token_ms.map(|ms| KeyValue::new(name::TIME_TO_FIRST_TOKEN, seconds(ms)));
    let id = (!outcome.response_id.is_empty())
        .then(|| KeyValue::new(name::RESPONSE_ID, outcome.response_id.clone()));
    let span = span
        .with(counts.into_iter().map(|(name, count)| KeyValue::new(name, count.cast_signed())))
        .with([
            KeyValue::new(name::STATUS, outcome.status.as_str()),
            KeyValue::new(name::MODEL_REQUESTS, i64::from(outcome.attempts)),
        ])
        .with(reason)
        .with(first_token)
        .with(id)
        .with(outcome.cost.map(dollars));
    failed(span, outcome.status, outcome.failure.as_ref())
}

fn failed(span: Span, status: CallStatus, failure: Option<&Failure>) -> Span {
    if status == CallStatus::Completed {
        return span;
    }
    let kind = failure.map_or(status.as_str(), |failure| failure.code.as_str());
    let message = failure.map_or_else(|| status.as_str().to_owned(), |failure| failure.message.clone());
    span.with([KeyValue::new(name::ERROR_TYPE, kind.to_owned())]).failed(Some(message))
}

/// The names of finish reasons in OpenTelemetry.
const fn finish_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::ToolCalls => "tool_call",
        FinishReason::Length => "length",
        FinishReason::ContentFilter => "content_filter",
        FinishReason::Other => "other",
    }
}

pub(crate) fn dollars(micros: Micros) -> KeyValue {
    #[expect(
        clippy::cast_precision_loss,
        reason = "money of one trace is far below what a float holds exactly"
    )]
    let dollars = micros as f64 / 1e6;
    KeyValue::new(name::COST, dollars)
}

#[expect(clippy::cast_precision_loss, reason = "no call takes so long")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

/// How much text a result holds, without serializing it.
fn text_bytes(output: &serde_json::Value) -> usize {
    match output {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(items) => items.iter().map(text_bytes).sum(),
        serde_json::Value::Object(fields) => fields.values().map(text_bytes).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
