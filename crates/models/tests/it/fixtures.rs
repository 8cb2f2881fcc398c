//! Fixtures shared by the tests of both wire formats.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use remuda_domain::{
    error::Result,
    model::{ModelDefinition, ProviderKind, Secret},
};
use remuda_models::{
    ChatMessage, ChatRole, Content, Delta, ModelOptions, Models, Request, Response, ToolChoice, ToolSpec,
};
use serde_json::{Value, json};

use crate::test_server::{Reply, Server};

pub(crate) const KEY: &str = "sk-very-secret-0123456789";

/// The wire formats, each with a usual response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wire {
    OpenAi,
    Anthropic,
}

impl Wire {
    pub(crate) const BOTH: [Self; 2] = [Self::OpenAi, Self::Anthropic];

    fn provider(self) -> ProviderKind {
        match self {
            Self::OpenAi => ProviderKind::OpenAiCompatible,
            Self::Anthropic => ProviderKind::Anthropic,
        }
    }

    /// The events of a response with the text `Grüß dich, Welt` in two pieces and a call of the tool `Read`.
    pub(crate) fn events(self) -> Vec<Value> {
        match self {
            Self::OpenAi => vec![
                json!({"id": "answer-1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}),
                json!({"id": "answer-1", "choices": [{"index": 0, "delta": {"content": "Grüß dich,"}}]}),
                json!({"id": "answer-1", "choices": [{"index": 0, "delta": {"content": " Welt"}}]}),
                json!({"id": "answer-1", "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "Read", "arguments": ""}}]}}]}),
                json!({"id": "answer-1", "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{\"path\": \"ü"}}]}}]}),
                json!({"id": "answer-1", "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": ".txt\"}"}}]}}]}),
                json!({"id": "answer-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
                json!({"id": "answer-1", "choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7,
                    "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}}),
            ],
            Self::Anthropic => vec![
                json!({"type": "message_start", "message": {"id": "answer-1", "type": "message", "role": "assistant", "content": [],
                    "usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2, "output_tokens": 1}}}),
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
                json!({"type": "ping"}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Grüß dich,"}}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " Welt"}}),
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "c1", "name": "Read", "input": {}}}),
                json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ""}}),
                json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{\"path\": \"ü"}}),
                json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ".txt\"}"}}),
                json!({"type": "content_block_stop", "index": 1}),
                json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}}),
                json!({"type": "message_stop"}),
            ],
        }
    }

    /// Encodes events as a stream.
    pub(crate) fn encode(self, events: &[Value]) -> String {
        let encode = |event: &Value| match self {
            Self::OpenAi => format!("data: {event}\n\n"),
            Self::Anthropic => format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap()),
        };
        events.iter().map(encode).collect()
    }

    /// The complete usual response.
    pub(crate) fn full_stream(self) -> String {
        let end = if self == Self::OpenAi { "data: [DONE]\n\n" } else { "" };
        self.encode(&self.events()) + end
    }

    /// The usual response up to its first text.
    pub(crate) fn partial_stream(self) -> String {
        let until = self.events().iter().position(|event| event.to_string().contains("Grüß")).unwrap();
        self.encode(&self.events()[..=until])
    }
}

/// Checks that a response is the usual one.
pub(crate) fn assert_usual_response(response: &Response) {
    assert_eq!(response.text, "Grüß dich, Welt");
    assert_eq!(response.id, "answer-1");
    let [call] = response.tool_requests.as_slice() else { panic!("{:?}", response.tool_requests) };
    assert_eq!(call.name, "Read");
    assert_eq!(json!(call.arguments.as_ref().unwrap()), json!({"path": "ü.txt"}));
}

/// Short delays, for fast tests.
pub(crate) fn options() -> ModelOptions {
    ModelOptions {
        base_delay: Duration::from_millis(1),
        max_delay: Duration::from_millis(5),
        max_attempts: 3,
        breaker_failures: 100,
        ..ModelOptions::default()
    }
}

pub(crate) fn model(wire: Wire, server: &Server) -> ModelDefinition {
    ModelDefinition {
        reference: "platform/tested".parse().unwrap(),
        provider: wire.provider(),
        name: "model-1".to_owned(),
        url: Some(server.url("/v1")),
        key: Some(Secret::new(KEY)),
        headers: Default::default(),
        parameters: Default::default(),
        metadata: Default::default(),
        context_window: None,
        max_output_tokens: None,
        price: None,
    }
}

pub(crate) fn user(text: &str) -> ChatMessage {
    ChatMessage { role: ChatRole::User, content: vec![Content::Text(text.to_owned())] }
}

pub(crate) fn request(messages: Vec<ChatMessage>) -> Request {
    let read = ToolSpec {
        name: "Read".to_owned(),
        description: "Reads.".to_owned(),
        schema: json!({"type": "object"}),
    };
    Request {
        system: "Be brief.".to_owned(),
        messages,
        tools: [read].into(),
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: true,
        parameters: Default::default(),
        trace: None,
    }
}

/// The deltas that a call passed to its callback.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedDeltas(Arc<Mutex<Vec<Delta>>>);

impl ReceivedDeltas {
    pub(crate) fn deltas(&self) -> Vec<Delta> {
        self.0.lock().unwrap().clone()
    }

    /// The text that a client shows in the end.
    pub(crate) fn text(&self) -> String {
        self.deltas().into_iter().fold(String::new(), |text, delta| match delta {
            Delta::Text(piece) => text + &piece,
            Delta::Restarted => String::new(),
            Delta::Reasoning(_) | Delta::ToolRequested { .. } | Delta::Retrying { .. } => text,
        })
    }

    pub(crate) fn restarts(&self) -> usize {
        self.deltas().iter().filter(|delta| **delta == Delta::Restarted).count()
    }
}

pub(crate) async fn call_model(
    models: &Models,
    model: &ModelDefinition,
    request: &Request,
) -> (Result<Response>, ReceivedDeltas) {
    let received = ReceivedDeltas::default();
    let deltas = Arc::clone(&received.0);
    let result = models.generate(model, request, &move |delta| deltas.lock().unwrap().push(delta)).await;
    (result, received)
}

/// Starts a server with these replies and calls the model once.
pub(crate) async fn call_with_replies(
    wire: Wire,
    replies: impl Into<Vec<Reply>>,
) -> (Result<Response>, ReceivedDeltas, Server) {
    call_with_options(wire, replies, options()).await
}

pub(crate) async fn call_with_options(
    wire: Wire,
    replies: impl Into<Vec<Reply>>,
    options: ModelOptions,
) -> (Result<Response>, ReceivedDeltas, Server) {
    let server = Server::start(replies).await;
    let (result, received) =
        call_model(&Models::new(options), &model(wire, &server), &request(vec![user("Hi")])).await;
    (result, received, server)
}
