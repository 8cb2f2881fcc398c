//! Encodes a request for the Chat Completions API.

use remuda_domain::{
    error::{Error, Result},
    message::Image,
    model::{ModelDefinition, ModelParameters, ProviderKind},
};
use serde_json::{Map, Value, json};

use crate::{ChatMessage, ChatRole, Content, Request, ToolChoice};

/// What differs between servers.
#[derive(Debug)]
pub(super) struct RequestEncoder {
    model: String,
    parameters: ModelParameters,
    max_tokens_field: &'static str,
    send_reasoning: bool,
    extra: Map<String, Value>,
}

impl RequestEncoder {
    pub(super) fn of(model: &ModelDefinition) -> Result<Self> {
        Ok(Self {
            model: model.name.clone(),
            parameters: model.parameters,
            // OpenAI rejects the old name for newer models; most other servers know only that one.
            max_tokens_field: match model.provider {
                ProviderKind::OpenAi => "max_completion_tokens",
                _ => "max_tokens",
            },
            send_reasoning: model.metadata.get("send_reasoning").and_then(Value::as_bool).unwrap_or_default(),
            extra: extra_body(model)?,
        })
    }

    pub(super) fn body(&self, request: &Request) -> Value {
        let mut messages = Vec::new();
        if !request.system.is_empty() {
            messages.push(json!({"role": "system", "content": request.system}));
        }
        for message in &request.messages {
            match message.role {
                ChatRole::User => user(message, &mut messages),
                ChatRole::Assistant => messages.extend(self.assistant(message)),
            }
        }
        let mut body = json!({
            "model": self.model,
            "messages": messages,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let parameters = request.parameters.or(self.parameters);
        for (name, value) in [("temperature", parameters.temperature), ("top_p", parameters.top_p)] {
            if let Some(value) = value {
                body[name] = json!(value);
            }
        }
        if let Some(max_tokens) = parameters.max_tokens {
            body[self.max_tokens_field] = json!(max_tokens);
        }
        if !request.tools.is_empty() {
            body["tools"] = request.tools.iter().map(|tool| {
                json!({"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema}})
            }).collect();
            if request.tool_choice == ToolChoice::None {
                body["tool_choice"] = json!("none");
            }
            // Parallel calls are the default, and some models reject the explicit option.
            if !request.parallel_tool_calls {
                body["parallel_tool_calls"] = json!(false);
            }
        }
        for (name, value) in &self.extra {
            body[name] = value.clone();
        }
        body
    }

    /// `None` if the message has no text and no calls.
    fn assistant(&self, message: &ChatMessage) -> Option<Value> {
        let (mut text, mut reasoning, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for content in &message.content {
            match content {
                Content::Text(piece) => text.push(piece.as_str()),
                Content::Reasoning(piece) => reasoning.push(piece.text.as_str()),
                Content::ToolUse { id, name, arguments } => calls.push(json!({
                    "id": id,
                    "type": "function",
                    "function": {"name": name, "arguments": arguments.to_string()},
                })),
                Content::Image(_) | Content::ToolResult { .. } => {}
            }
        }
        if text.is_empty() && calls.is_empty() {
            return None;
        }
        let content = if text.is_empty() { Value::Null } else { json!(text.join("\n")) };
        let mut assistant_message = json!({"role": "assistant", "content": content});
        if self.send_reasoning && !reasoning.is_empty() {
            assistant_message["reasoning_content"] = json!(reasoning.join("\n"));
        }
        if !calls.is_empty() {
            assistant_message["tool_calls"] = json!(calls);
        }
        Some(assistant_message)
    }
}

/// The definition's additions to every request.
pub(crate) fn extra_body(model: &ModelDefinition) -> Result<Map<String, Value>> {
    match model.metadata.get("extra_body") {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(extra)) => {
            match ["messages", "stream"].iter().find(|name| extra.contains_key(**name)) {
                Some(name) => {
                    Err(Error::invalid(format!("metadata.extra_body.{name}"), "expected to be left out"))
                }
                None => Ok(extra.clone()),
            }
        }
        Some(_) => Err(Error::invalid("metadata.extra_body", "expected an object")),
    }
}

/// Tool results become separate messages, followed by the user's content.
fn user(message: &ChatMessage, messages: &mut Vec<Value>) {
    let (mut texts, mut parts) = (Vec::new(), Vec::new());
    for content in &message.content {
        match content {
            Content::Text(text) => {
                texts.push(text.as_str());
                parts.push(json!({"type": "text", "text": text}));
            }
            Content::Image(image) => {
                parts.push(json!({"type": "image_url", "image_url": {"url": url(image)}}))
            }
            Content::ToolResult { id, text, .. } => {
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
            }
            Content::Reasoning(_) | Content::ToolUse { .. } => {}
        }
    }
    if parts.len() > texts.len() {
        messages.push(json!({"role": "user", "content": parts}));
    } else if !texts.is_empty() {
        // Servers without support for parts understand plain text.
        messages.push(json!({"role": "user", "content": texts.join("\n")}));
    }
}

fn url(image: &Image) -> String {
    match image {
        Image::Inline { media_type, data } => format!("data:{media_type};base64,{data}"),
        Image::Url { url } => url.clone(),
    }
}
