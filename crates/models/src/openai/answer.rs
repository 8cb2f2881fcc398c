//! An answer in OpenAI's words, piece by piece.

mod calls;

use remuda_domain::{
    message::Reasoning,
    model::{FinishReason, Usage},
};
use serde_json::Value;

use calls::Calls;

use crate::{AttemptError, Delta, OnDelta, Response, failure::Faults, tool_input::name};

type Result<T> = std::result::Result<T, AttemptError>;

/// What has come so far. Takes chunks of a stream and whole answers alike.
pub(super) struct Gathering<'a> {
    faults: &'a Faults,
    on_delta: OnDelta<'a>,
    id: String,
    text: String,
    reasoning: String,
    calls: Calls,
    finish: Option<FinishReason>,
    usage: Usage,
    /// The server said that it is done.
    ended: bool,
    /// Something came that is part of an answer.
    answered: bool,
}

impl<'a> Gathering<'a> {
    pub(super) fn new(faults: &'a Faults, on_delta: OnDelta<'a>) -> Self {
        Self {
            faults,
            on_delta,
            id: String::new(),
            text: String::new(),
            reasoning: String::new(),
            calls: Calls::default(),
            finish: None,
            usage: Usage::default(),
            ended: false,
            answered: false,
        }
    }

    /// Takes a chunk, or a whole answer.
    pub(super) fn take(&mut self, value: &Value) -> Result<()> {
        if value.get("error").is_some_and(|error| !error.is_null()) {
            return Err(self.faults.reported(value));
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
        self.answered = true;
        let first = choices.iter().find(|choice| choice["index"].as_u64().unwrap_or_default() == 0);
        let Some(choice) = first else { return Ok(()) };
        // One of the compatible servers puts it here.
        if choice["usage"].is_object() {
            self.usage = usage(&choice["usage"]);
        }
        for part in [&choice["delta"], &choice["message"]] {
            self.take_part(part)?;
        }
        // The last one counts: some servers send one with every chunk.
        if let Some(reason) = choice["finish_reason"].as_str().filter(|reason| !reason.is_empty()) {
            self.finish = Some(finish(reason));
        }
        Ok(())
    }

    fn take_part(&mut self, part: &Value) -> Result<()> {
        // Servers that are changing names send both.
        let reasoning = [&part["reasoning_content"], &part["reasoning"]]
            .map(text)
            .into_iter()
            .find(|text| !text.is_empty());
        let thought = reasoning.unwrap_or_default() + &thinking(&part["content"]);
        if !thought.is_empty() {
            self.reasoning.push_str(&thought);
            (self.on_delta)(Delta::Reasoning(thought));
        }
        for said in [text(&part["content"]), text(&part["refusal"])] {
            if !said.is_empty() {
                self.text.push_str(&said);
                (self.on_delta)(Delta::Text(said));
            }
        }
        for call in part["tool_calls"].as_array().into_iter().flatten() {
            let begun = self.calls.take(call).map_err(|what| self.faults.nonsense(what))?;
            if let Some(name) = begun {
                (self.on_delta)(Delta::ToolRequested { name });
            }
        }
        Ok(())
    }

    /// Nothing more will come.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    pub(super) fn finish(self, model: &str) -> Result<Response> {
        if !self.ended && self.finish.is_none() {
            return Err(self.faults.truncated());
        }
        if !self.answered {
            return Err(self.faults.nonsense("something that holds no answer"));
        }
        let tool_requests = self.calls.finish().map_err(|what| self.faults.nonsense(what))?;
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

/// A text, or a list of parts of which some are texts.
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
