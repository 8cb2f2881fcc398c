//! Encodes a request for the Messages API.

use remuda_domain::{
    error::Result,
    message::{Image, Reasoning},
    model::{ModelDefinition, ModelParameters},
};
use serde_json::{Map, Value, json};

use crate::{ChatMessage, ChatRole, Content, Request, ToolChoice, openai::extra_body};

/// The API requires a limit.
const DEFAULT_MAX_TOKENS: u32 = 8192;

/// The parts of a model definition that go into every request.
#[derive(Debug)]
pub(super) struct RequestEncoder {
    model: String,
    parameters: ModelParameters,
    extra: Map<String, Value>,
}

impl RequestEncoder {
    pub(super) fn of(model: &ModelDefinition) -> Result<Self> {
        Ok(Self { model: model.name.clone(), parameters: model.parameters, extra: extra_body(model)? })
    }

    pub(super) fn body(&self, request: &Request) -> Value {
        let parameters = request.parameters.or(self.parameters);
        let thinks = self.extra.get("thinking").is_some_and(|thinking| thinking["type"] != "disabled");
        let budget = self.extra.get("thinking").and_then(|thinking| thinking["budget_tokens"].as_u64());
        let max_tokens = u64::from(parameters.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS));
        let max_tokens = match budget.unwrap_or_default() {
            // Thinking counts towards the limit and has to leave space for the response.
            budget if budget >= max_tokens => budget.saturating_add(max_tokens),
            _ => max_tokens,
        };
        let mut body = json!({
            "model": self.model,
            "max_tokens": max_tokens,
            "messages": messages(&request.messages),
            "stream": true,
        });
        if !request.system.is_empty() {
            body["system"] = json!([cached(json!({"type": "text", "text": request.system}))]);
        }
        // The API takes one of them, and neither with thinking enabled.
        match (parameters.temperature, parameters.top_p) {
            _ if thinks => {}
            (Some(temperature), _) => body["temperature"] = json!(temperature),
            (None, Some(top_p)) => body["top_p"] = json!(top_p),
            (None, None) => {}
        }
        if !request.tools.is_empty() {
            body["tools"] = tools(request);
            body["tool_choice"] = match request.tool_choice {
                ToolChoice::None => json!({"type": "none"}),
                ToolChoice::Auto if request.parallel_tool_calls => json!({"type": "auto"}),
                ToolChoice::Auto => json!({"type": "auto", "disable_parallel_tool_use": true}),
            };
        }
        for (name, value) in &self.extra {
            body[name] = value.clone();
        }
        body
    }
}

/// Marks the end of a prefix that the provider should cache.
fn cached(mut block: Value) -> Value {
    block["cache_control"] = json!({"type": "ephemeral"});
    block
}

fn tools(request: &Request) -> Value {
    let last = request.tools.len() - 1;
    let tools = request.tools.iter().enumerate().map(|(at, tool)| {
        let tool = json!({"name": tool.name, "description": tool.description, "input_schema": tool.schema});
        if at == last { cached(tool) } else { tool }
    });
    tools.collect()
}

/// Strictly alternating: adjacent messages of one role are merged. In user messages, tool results come first.
fn messages(messages: &[ChatMessage]) -> Vec<Value> {
    let mut joined: Vec<(ChatRole, Vec<Value>, Vec<Value>)> = Vec::new();
    for message in messages {
        let blocks = message.content.iter().filter_map(block);
        let (results, others): (Vec<_>, Vec<_>) = blocks.partition(|block| block["type"] == "tool_result");
        if results.is_empty() && others.is_empty() {
            continue;
        }
        match joined.last_mut() {
            Some((role, first, then)) if *role == message.role => {
                first.extend(results);
                then.extend(others);
            }
            _ => joined.push((message.role, results, others)),
        }
    }
    // The conversation grows at its end, so what was sent once is a prefix of the next request.
    if let Some((ChatRole::User, results, others)) = joined.last_mut()
        && let Some(last) = others.last_mut().or(results.last_mut())
    {
        *last = cached(last.take());
    }
    let messages = joined.into_iter().map(|(role, results, others)| {
        let role = match role {
            ChatRole::User => "user",
            ChatRole::Assistant => "assistant",
        };
        json!({"role": role, "content": results.into_iter().chain(others).collect::<Vec<_>>()})
    });
    messages.collect()
}

/// `None` for content that the API rejects: empty texts, and reasoning without a signature.
fn block(content: &Content) -> Option<Value> {
    Some(match content {
        Content::Text(text) if text.trim().is_empty() => return None,
        Content::Text(text) => json!({"type": "text", "text": text}),
        Content::Image(Image::Inline { media_type, data }) => {
            json!({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}})
        }
        Content::Image(Image::Url { url }) => json!({"type": "image", "source": {"type": "url", "url": url}}),
        Content::Reasoning(Reasoning { redacted: Some(data), .. }) => {
            json!({"type": "redacted_thinking", "data": data})
        }
        Content::Reasoning(Reasoning { text, signature, .. }) => {
            json!({"type": "thinking", "thinking": text, "signature": signature.as_ref()?})
        }
        Content::ToolUse { id, name, arguments } => {
            json!({"type": "tool_use", "id": id, "name": name, "input": arguments})
        }
        Content::ToolResult { id, text, is_error } => {
            let mut result = json!({"type": "tool_result", "tool_use_id": id});
            if !text.trim().is_empty() {
                result["content"] = json!(text);
            }
            if *is_error {
                result["is_error"] = json!(true);
            }
            result
        }
    })
}
