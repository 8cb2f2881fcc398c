//! An answer in Anthropic's words, event by event.

use remuda_domain::{
    message::Reasoning,
    model::{FinishReason, Usage},
};
use serde_json::Value;

use crate::{
    AttemptError, Delta, OnDelta, Response, ToolRequest,
    failure::Faults,
    tool_input::{self, MAX_TOOL_CALLS, ToolInput},
};

type Result<T> = std::result::Result<T, AttemptError>;

/// What has come so far.
pub(super) struct Gathering<'a> {
    faults: &'a Faults,
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
        /// What stood there from the beginning: some send all of it so.
        given: Value,
    },
    /// Of a kind that was not asked for.
    Other,
}

/// Each event with usage has the newest numbers, but not always all of them.
#[derive(Default)]
struct Tokens {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
}

impl<'a> Gathering<'a> {
    pub(super) fn new(faults: &'a Faults, on_delta: OnDelta<'a>) -> Self {
        Self {
            faults,
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

    /// Takes an event of a stream.
    pub(super) fn take(&mut self, name: &str, value: &Value) -> Result<()> {
        let index = value["index"].as_u64();
        match value["type"].as_str().unwrap_or(name) {
            "message_start" => self.begin(&value["message"]),
            "content_block_start" => self.open(index, &value["content_block"])?,
            "content_block_delta" => self.extend(index, &value["delta"])?,
            "message_delta" => {
                self.stop(&value["delta"]["stop_reason"]);
                self.usage.take(&value["usage"]);
            }
            "message_stop" => self.ended = true,
            "error" => return Err(self.faults.reported(value)),
            _ if value["error"].is_object() => return Err(self.faults.reported(value)),
            // Pings, ends of blocks, and what may be invented yet.
            _ => {}
        }
        Ok(())
    }

    /// Takes an answer that was not streamed.
    pub(super) fn take_whole(&mut self, value: &Value) -> Result<()> {
        if value["type"] == "error" || value["error"].is_object() {
            return Err(self.faults.reported(value));
        }
        let Some(blocks) = value["content"].as_array() else {
            return Err(self.faults.nonsense("something that holds no answer"));
        };
        self.begin(value);
        for (block, index) in blocks.iter().zip(0..) {
            self.open(Some(index), block)?;
        }
        self.stop(&value["stop_reason"]);
        self.ended = true;
        Ok(())
    }

    fn begin(&mut self, message: &Value) {
        if let Some(id) = message["id"].as_str() {
            self.id = tool_input::name(id);
        }
        self.usage.take(&message["usage"]);
    }

    fn stop(&mut self, reason: &Value) {
        if let Some(reason) = reason.as_str().filter(|reason| !reason.is_empty()) {
            self.finish = Some(finish(reason));
        }
    }

    fn open(&mut self, index: Option<u64>, block: &Value) -> Result<()> {
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        let content = match block["type"].as_str().unwrap_or_default() {
            "text" => {
                self.tell(Delta::Text, &text("text"));
                BlockContent::Text(text("text"))
            }
            "thinking" => {
                self.tell(Delta::Reasoning, &text("thinking"));
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
                return Err(self.faults.nonsense("a tool call without a name"));
            }
            "tool_use" => {
                let name = tool_input::name(&text("name"));
                (self.on_delta)(Delta::ToolRequested { name: name.clone() });
                BlockContent::Tool { name, input: ToolInput::default(), given: block["input"].clone() }
            }
            _ => BlockContent::Other,
        };
        self.push(index, content)
    }

    fn push(&mut self, index: Option<u64>, content: BlockContent) -> Result<()> {
        // Thoughts and texts lie between calls.
        if self.blocks.len() >= 4 * MAX_TOOL_CALLS {
            return Err(self.faults.nonsense("too many parts"));
        }
        self.blocks.push(Block { index, content });
        Ok(())
    }

    fn extend(&mut self, index: Option<u64>, delta: &Value) -> Result<()> {
        let piece = |name: &str| delta[name].as_str().unwrap_or_default();
        let kind = delta["type"].as_str().unwrap_or_default();
        let place = match index {
            Some(_) => self.blocks.iter().rposition(|block| block.index == index),
            None => self.blocks.len().checked_sub(1),
        };
        let Some(place) = place else {
            // Somebody left out where it begins.
            let content = match kind {
                "text_delta" => BlockContent::Text(String::new()),
                "thinking_delta" => BlockContent::Reasoning(Reasoning::default()),
                "input_json_delta" => return Err(self.faults.nonsense("a tool call without a name")),
                _ => return Ok(()),
            };
            self.push(Some(index.unwrap_or_default()), content)?;
            return self.extend(Some(index.unwrap_or_default()), delta);
        };
        match (&mut self.blocks[place].content, kind) {
            (BlockContent::Text(text), "text_delta") => {
                text.push_str(piece("text"));
                self.tell(Delta::Text, piece("text"));
            }
            (BlockContent::Reasoning(thought), "thinking_delta") => {
                thought.text.push_str(piece("thinking"));
                self.tell(Delta::Reasoning, piece("thinking"));
            }
            (BlockContent::Reasoning(thought), "signature_delta") => {
                thought.signature.get_or_insert_default().push_str(piece("signature"));
            }
            (BlockContent::Tool { input, .. }, "input_json_delta") => input.push(piece("partial_json")),
            _ => {}
        }
        Ok(())
    }

    fn tell(&self, delta: impl FnOnce(String) -> Delta, piece: &str) {
        if !piece.is_empty() {
            (self.on_delta)(delta(piece.to_owned()));
        }
    }

    pub(super) fn finish(self, model: &str) -> Result<Response> {
        if !self.ended && self.finish.is_none() {
            return Err(self.faults.truncated());
        }
        let (mut reasoning, mut text, mut tool_requests) = (Vec::new(), String::new(), Vec::new());
        for block in self.blocks {
            match block.content {
                BlockContent::Text(piece) => text.push_str(&piece),
                BlockContent::Reasoning(thought) => {
                    reasoning.push(Reasoning { model: model.to_owned(), ..thought })
                }
                BlockContent::Tool { name, mut input, given } => {
                    if input.is_empty() && !given.is_null() {
                        input.push(&given.to_string());
                    }
                    tool_requests.push(ToolRequest { name, arguments: input.finish() });
                }
                BlockContent::Other => {}
            }
        }
        if tool_requests.len() > MAX_TOOL_CALLS {
            return Err(self.faults.nonsense("too many tool calls"));
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
    fn take(&mut self, usage: &Value) {
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

    /// Input that went through the cache is counted apart there, and with the rest here.
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
