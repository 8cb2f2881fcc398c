//! Decodes responses of the Messages API, event by event.

use remuda_domain::{
    message::Reasoning,
    model::{FinishReason, Usage},
};
use serde_json::Value;

use crate::{
    AttemptError, Delta, OnDelta, Response, ToolRequest,
    provider_error::ErrorMapper,
    tool_input::{self, MAX_TOOL_CALLS, ToolInput},
};

type Result<T> = std::result::Result<T, AttemptError>;

/// A response that is being received.
pub(super) struct ResponseBuilder<'a> {
    errors: &'a ErrorMapper,
    on_delta: OnDelta<'a>,
    id: String,
    blocks: Vec<Block>,
    finish: Option<FinishReason>,
    usage: Tokens,
    ended: bool,
}

struct Block {
    index: Option<u64>,
    content: BlockContent,
}

enum BlockContent {
    Text(String),
    Reasoning(Reasoning),
    Tool {
        name: String,
        input: ToolInput,
        /// The input in the start event: some servers send all of it there.
        initial: Value,
    },
    /// A kind of block that was not requested.
    Other,
}

/// Each event with usage has the latest counts, but not always all of them.
#[derive(Default)]
struct Tokens {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
}

impl<'a> ResponseBuilder<'a> {
    pub(super) fn new(errors: &'a ErrorMapper, on_delta: OnDelta<'a>) -> Self {
        Self {
            errors,
            on_delta,
            id: String::new(),
            blocks: Vec::new(),
            finish: None,
            usage: Tokens::default(),
            ended: false,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Applies an event of a stream.
    pub(super) fn apply(&mut self, name: &str, value: &Value) -> Result<()> {
        let index = value["index"].as_u64();
        match value["type"].as_str().unwrap_or(name) {
            "message_start" => self.start_message(&value["message"]),
            "content_block_start" => self.start_block(index, &value["content_block"])?,
            "content_block_delta" => self.extend_block(index, &value["delta"])?,
            "message_delta" => {
                self.set_finish(&value["delta"]["stop_reason"]);
                self.usage.apply(&value["usage"]);
            }
            "message_stop" => self.ended = true,
            "error" => return Err(self.errors.stream_error(value)),
            _ if value["error"].is_object() => return Err(self.errors.stream_error(value)),
            // Pings, ends of blocks, and kinds of events that are not known yet.
            _ => {}
        }
        Ok(())
    }

    /// Applies a response that was not streamed.
    pub(super) fn apply_whole(&mut self, value: &Value) -> Result<()> {
        if value["type"] == "error" || value["error"].is_object() {
            return Err(self.errors.stream_error(value));
        }
        let Some(blocks) = value["content"].as_array() else {
            return Err(self.errors.invalid_response("something that holds no answer"));
        };
        self.start_message(value);
        for (block, index) in blocks.iter().zip(0..) {
            self.start_block(Some(index), block)?;
        }
        self.set_finish(&value["stop_reason"]);
        self.ended = true;
        Ok(())
    }

    fn start_message(&mut self, message: &Value) {
        if let Some(id) = message["id"].as_str() {
            self.id = tool_input::name(id);
        }
        self.usage.apply(&message["usage"]);
    }

    fn set_finish(&mut self, reason: &Value) {
        if let Some(reason) = reason.as_str().filter(|reason| !reason.is_empty()) {
            self.finish = Some(finish(reason));
        }
    }

    fn start_block(&mut self, index: Option<u64>, block: &Value) -> Result<()> {
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        let content = match block["type"].as_str().unwrap_or_default() {
            "text" => {
                self.emit(Delta::Text, &text("text"));
                BlockContent::Text(text("text"))
            }
            "thinking" => {
                self.emit(Delta::Reasoning, &text("thinking"));
                let signature = Some(text("signature")).filter(|signature| !signature.is_empty());
                BlockContent::Reasoning(Reasoning {
                    text: text("thinking"),
                    signature,
                    ..Reasoning::default()
                })
            }
            "redacted_thinking" => {
                BlockContent::Reasoning(Reasoning { redacted: Some(text("data")), ..Reasoning::default() })
            }
            "tool_use" if text("name").is_empty() => {
                return Err(self.errors.invalid_response("a tool call without a name"));
            }
            "tool_use" => {
                let name = tool_input::name(&text("name"));
                (self.on_delta)(Delta::ToolRequested { name: name.clone() });
                BlockContent::Tool { name, input: ToolInput::default(), initial: block["input"].clone() }
            }
            _ => BlockContent::Other,
        };
        self.push(index, content)
    }

    fn push(&mut self, index: Option<u64>, content: BlockContent) -> Result<()> {
        // Thinking and text blocks lie between calls.
        if self.blocks.len() >= 4 * MAX_TOOL_CALLS {
            return Err(self.errors.invalid_response("too many parts"));
        }
        self.blocks.push(Block { index, content });
        Ok(())
    }

    fn extend_block(&mut self, index: Option<u64>, delta: &Value) -> Result<()> {
        let piece = |name: &str| delta[name].as_str().unwrap_or_default();
        let kind = delta["type"].as_str().unwrap_or_default();
        let position = match index {
            Some(_) => self.blocks.iter().rposition(|block| block.index == index),
            None => self.blocks.len().checked_sub(1),
        };
        let Some(position) = position else {
            // The server omitted the start event.
            let content = match kind {
                "text_delta" => BlockContent::Text(String::new()),
                "thinking_delta" => BlockContent::Reasoning(Reasoning::default()),
                "input_json_delta" => return Err(self.errors.invalid_response("a tool call without a name")),
                _ => return Ok(()),
            };
            self.push(Some(index.unwrap_or_default()), content)?;
            return self.extend_block(Some(index.unwrap_or_default()), delta);
        };
        match (&mut self.blocks[position].content, kind) {
            (BlockContent::Text(text), "text_delta") => {
                text.push_str(piece("text"));
                self.emit(Delta::Text, piece("text"));
            }
            (BlockContent::Reasoning(reasoning_block), "thinking_delta") => {
                reasoning_block.text.push_str(piece("thinking"));
                self.emit(Delta::Reasoning, piece("thinking"));
            }
            (BlockContent::Reasoning(reasoning_block), "signature_delta") => {
                reasoning_block.signature.get_or_insert_default().push_str(piece("signature"));
            }
            (BlockContent::Tool { input, .. }, "input_json_delta") => input.push(piece("partial_json")),
            _ => {}
        }
        Ok(())
    }

    fn emit(&self, delta: impl FnOnce(String) -> Delta, piece: &str) {
        if !piece.is_empty() {
            (self.on_delta)(delta(piece.to_owned()));
        }
    }

    pub(super) fn finish(self, model: &str) -> Result<Response> {
        if !self.ended && self.finish.is_none() {
            return Err(self.errors.truncated());
        }
        let (mut reasoning, mut text, mut tool_requests) = (Vec::new(), String::new(), Vec::new());
        for block in self.blocks {
            match block.content {
                BlockContent::Text(piece) => text.push_str(&piece),
                BlockContent::Reasoning(reasoning_block) => {
                    reasoning.push(Reasoning { model: model.to_owned(), ..reasoning_block })
                }
                BlockContent::Tool { name, mut input, initial } => {
                    if input.is_empty() && !initial.is_null() {
                        input.push(&initial.to_string());
                    }
                    tool_requests.push(ToolRequest { name, arguments: input.finish() });
                }
                BlockContent::Other => {}
            }
        }
        if tool_requests.len() > MAX_TOOL_CALLS {
            return Err(self.errors.invalid_response("too many tool calls"));
        }
        let finish = match self.finish {
            Some(FinishReason::Stop | FinishReason::ToolCalls) | None => match tool_requests.is_empty() {
                true => FinishReason::Stop,
                false => FinishReason::ToolCalls,
            },
            Some(other) => other,
        };
        let usage = self.usage.sum();
        Ok(Response { reasoning, text, tool_requests, finish, usage, id: self.id, attempts: 1 })
    }
}

impl Tokens {
    fn apply(&mut self, usage: &Value) {
        let numbers = [
            (&mut self.input, "input_tokens"),
            (&mut self.output, "output_tokens"),
            (&mut self.cache_read, "cache_read_input_tokens"),
            (&mut self.cache_write, "cache_creation_input_tokens"),
        ];
        for (number, name) in numbers {
            *number = usage[name].as_u64().unwrap_or(*number);
        }
    }

    /// Anthropic counts cached input separately; [`Usage`] counts it as input.
    fn sum(&self) -> Usage {
        Usage {
            input_tokens: self.input.saturating_add(self.cache_read).saturating_add(self.cache_write),
            output_tokens: self.output,
            cached_input_tokens: self.cache_read,
            cache_write_tokens: self.cache_write,
            reasoning_tokens: 0,
        }
    }
}

fn finish(reason: &str) -> FinishReason {
    match reason {
        "end_turn" | "stop_sequence" => FinishReason::Stop,
        "tool_use" => FinishReason::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
        "refusal" => FinishReason::ContentFilter,
        _ => FinishReason::Other,
    }
}
