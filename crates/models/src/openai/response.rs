//! Decodes responses of the Chat Completions API, chunk by chunk.

mod tool_calls;

use remuda_domain::{
    message::Reasoning,
    model::{FinishReason, Usage},
};
use serde_json::Value;

use tool_calls::ToolCallFragments;

use crate::{AttemptError, Delta, OnDelta, Response, provider_error::ErrorMapper, tool_input::name};

type Result<T> = std::result::Result<T, AttemptError>;

/// A response that is being received. Takes chunks of a stream and whole responses alike.
pub(super) struct ResponseBuilder<'a> {
    errors: &'a ErrorMapper,
    on_delta: OnDelta<'a>,
    id: String,
    text: String,
    reasoning: String,
    calls: ToolCallFragments,
    finish: Option<FinishReason>,
    usage: Usage,
    /// The server marked the end of the stream.
    ended: bool,
    /// At least one chunk had choices.
    has_choices: bool,
}

impl<'a> ResponseBuilder<'a> {
    pub(super) fn new(errors: &'a ErrorMapper, on_delta: OnDelta<'a>) -> Self {
        Self {
            errors,
            on_delta,
            id: String::new(),
            text: String::new(),
            reasoning: String::new(),
            calls: ToolCallFragments::default(),
            finish: None,
            usage: Usage::default(),
            ended: false,
            has_choices: false,
        }
    }

    /// Applies a chunk, or a whole response.
    pub(super) fn apply(&mut self, value: &Value) -> Result<()> {
        if value.get("error").is_some_and(|error| !error.is_null()) {
            return Err(self.errors.stream_error(value));
        }
        if self.id.is_empty()
            && let Some(id) = value["id"].as_str()
        {
            self.id = name(id);
        }
        if value["usage"].is_object() {
            self.usage = usage(&value["usage"]);
        }
        let Some(choices) = value["choices"].as_array() else { return Ok(()) };
        self.has_choices = true;
        let first = choices.iter().find(|choice| choice["index"].as_u64().unwrap_or_default() == 0);
        let Some(choice) = first else { return Ok(()) };
        // One compatible server sends usage here.
        if choice["usage"].is_object() {
            self.usage = usage(&choice["usage"]);
        }
        for part in [&choice["delta"], &choice["message"]] {
            self.apply_part(part)?;
        }
        // The last one counts: some servers send one with every chunk.
        if let Some(reason) = choice["finish_reason"].as_str().filter(|reason| !reason.is_empty()) {
            self.finish = Some(finish(reason));
        }
        Ok(())
    }

    fn apply_part(&mut self, part: &Value) -> Result<()> {
        // Servers that are renaming the field send both.
        let reasoning = [&part["reasoning_content"], &part["reasoning"]]
            .map(text)
            .into_iter()
            .find(|text| !text.is_empty());
        let thought = reasoning.unwrap_or_default() + &thinking(&part["content"]);
        if !thought.is_empty() {
            self.reasoning.push_str(&thought);
            (self.on_delta)(Delta::Reasoning(thought));
        }
        for piece in [text(&part["content"]), text(&part["refusal"])] {
            if !piece.is_empty() {
                self.text.push_str(&piece);
                (self.on_delta)(Delta::Text(piece));
            }
        }
        for call in part["tool_calls"].as_array().into_iter().flatten() {
            let started = self.calls.apply(call).map_err(|what| self.errors.invalid_response(what))?;
            if let Some(name) = started {
                (self.on_delta)(Delta::ToolRequested { name });
            }
        }
        Ok(())
    }

    /// Marks the end of the stream.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    pub(super) fn finish(self, model: &str) -> Result<Response> {
        if !self.ended && self.finish.is_none() {
            return Err(self.errors.truncated());
        }
        if !self.has_choices {
            return Err(self.errors.invalid_response("something that holds no answer"));
        }
        let tool_requests = self.calls.finish().map_err(|what| self.errors.invalid_response(what))?;
        let finish = match self.finish {
            Some(FinishReason::Stop | FinishReason::ToolCalls) | None => match tool_requests.is_empty() {
                true => FinishReason::Stop,
                false => FinishReason::ToolCalls,
            },
            Some(other) => other,
        };
        let thought = Reasoning { text: self.reasoning, model: model.to_owned(), ..Reasoning::default() };
        Ok(Response {
            reasoning: Some(thought).filter(|thought| !thought.text.is_empty()).into_iter().collect(),
            text: self.text,
            tool_requests,
            finish,
            usage: self.usage,
            id: self.id,
            attempts: 1,
        })
    }
}

/// A text, or the texts among a list of parts.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// The reasoning among the parts of a content.
fn thinking(content: &Value) -> String {
    content.as_array().into_iter().flatten().map(|part| text(&part["thinking"])).collect()
}

fn finish(reason: &str) -> FinishReason {
    match reason {
        "stop" | "eos" | "end_turn" => FinishReason::Stop,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "length" | "max_tokens" => FinishReason::Length,
        "content_filter" => FinishReason::ContentFilter,
        _ => FinishReason::Other,
    }
}

fn usage(value: &Value) -> Usage {
    let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_u64);
    Usage {
        input_tokens: number("/prompt_tokens").unwrap_or_default(),
        output_tokens: number("/completion_tokens").unwrap_or_default(),
        cached_input_tokens: number("/prompt_tokens_details/cached_tokens")
            .or_else(|| number("/prompt_cache_hit_tokens"))
            .unwrap_or_default(),
        cache_write_tokens: 0,
        reasoning_tokens: number("/completion_tokens_details/reasoning_tokens").unwrap_or_default(),
    }
}
