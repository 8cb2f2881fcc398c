//! The exact requests that are sent.

use remuda_domain::{
    message::{Image, Reasoning},
    model::{ModelDefinition, ModelParameters, ProviderKind, Secret},
};
use remuda_models::{ChatMessage, ChatRole, Content, Models, Request, ToolChoice, ToolSpec};
use serde_json::{Value, json};

use crate::{
    fixtures::{KEY, Wire, call_model, model, options, request, user},
    test_server::{ReceivedRequest, Reply, Server},
};

async fn sent(wire: Wire, request: &Request, change: impl FnOnce(&mut ModelDefinition)) -> ReceivedRequest {
    let server = Server::start([Reply::stream(&wire.full_stream())]).await;
    let mut definition = model(wire, &server);
    change(&mut definition);
    call_model(&Models::new(options()), &definition, request).await.0.unwrap();
    server.requests().remove(0)
}

fn message(role: ChatRole, content: Vec<Content>) -> ChatMessage {
    ChatMessage { role, content }
}

fn text(text: &str) -> Content {
    Content::Text(text.to_owned())
}

fn call(id: &str, arguments: Value) -> Content {
    Content::ToolUse { id: id.to_owned(), name: "Read".to_owned(), arguments }
}

fn result(id: &str, text: &str, is_error: bool) -> Content {
    Content::ToolResult { id: id.to_owned(), text: text.to_owned(), is_error }
}

/// A request with every kind of content.
fn full_request() -> Request {
    let inline = Image::Inline { media_type: "image/png".to_owned(), data: "aW1n".to_owned() };
    let url = Image::Url { url: "https://host/a.png".to_owned() };
    let signed =
        Reasoning { text: "hm".to_owned(), signature: Some("c2ln".to_owned()), ..Reasoning::default() };
    let hidden = Reasoning { redacted: Some("b3Bh".to_owned()), ..Reasoning::default() };
    let unsigned = Reasoning { text: "of another".to_owned(), ..Reasoning::default() };
    let tool = |name: &str| ToolSpec {
        name: name.to_owned(),
        description: format!("{name}s."),
        schema: json!({"type": "object", "properties": {}}),
    };
    Request {
        system: "Be brief.".to_owned(),
        messages: vec![
            message(ChatRole::User, vec![text("Look:"), Content::Image(inline), Content::Image(url)]),
            message(ChatRole::User, vec![text("Now.")]),
            message(
                ChatRole::Assistant,
                vec![
                    Content::Reasoning(signed),
                    Content::Reasoning(hidden),
                    Content::Reasoning(unsigned),
                    text("I read."),
                    call("c1", json!({"path": "a"})),
                    call("c2", json!({})),
                ],
            ),
            message(ChatRole::User, vec![result("c1", "content of a", false)]),
            message(ChatRole::User, vec![text("Hurry."), result("c2", "no such file", true)]),
            message(ChatRole::Assistant, vec![text("  ")]),
            message(ChatRole::User, vec![text("Well?")]),
        ],
        tools: [tool("Read"), tool("Grep")].into(),
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: false,
        parameters: ModelParameters { temperature: Some(0.5), top_p: None, max_tokens: None },
        trace: None,
    }
}

#[tokio::test]
async fn full_request_is_encoded_for_openai() {
    let received = sent(Wire::OpenAi, &full_request(), |model| {
        model.parameters =
            ModelParameters { temperature: Some(0.9), top_p: Some(0.25), max_tokens: Some(100) };
        model.headers.insert("X-Team".to_owned(), Secret::new("blue"));
    })
    .await;
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "Read", "arguments": arguments}});
    let tool = |name: &str| {
        json!({"type": "function", "function": {
        "name": name, "description": format!("{name}s."), "parameters": {"type": "object", "properties": {}}}})
    };
    let expected = json!({
        "model": "model-1",
        "stream": true,
        "stream_options": {"include_usage": true},
        "temperature": 0.5,
        "top_p": 0.25,
        "max_tokens": 100,
        "parallel_tool_calls": false,
        "tools": [tool("Read"), tool("Grep")],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1n"}},
                {"type": "image_url", "image_url": {"url": "https://host/a.png"}},
            ]},
            {"role": "user", "content": "Now."},
            {"role": "assistant", "content": "I read.", "tool_calls": [call("c1", "{\"path\":\"a\"}"), call("c2", "{}")]},
            {"role": "tool", "tool_call_id": "c1", "content": "content of a"},
            {"role": "tool", "tool_call_id": "c2", "content": "no such file"},
            {"role": "user", "content": "Hurry."},
            {"role": "assistant", "content": "  "},
            {"role": "user", "content": "Well?"},
        ],
    });
    assert_eq!(received.body, expected);
    assert!(received.head.starts_with("post /v1/chat/completions http/1.1\r\n"), "{}", received.head);
    for line in [&format!("authorization: bearer {KEY}"), "x-team: blue", "content-type: application/json"] {
        assert!(received.head.lines().any(|it| it == line), "{line} in {}", received.head);
    }
    assert!(!received.head.contains("accept-encoding"), "{}", received.head);
}

#[tokio::test]
async fn full_request_is_encoded_for_anthropic() {
    let received = sent(Wire::Anthropic, &full_request(), |model| {
        model.parameters = ModelParameters { temperature: None, top_p: Some(0.25), max_tokens: None };
    })
    .await;
    let cache = json!({"type": "ephemeral"});
    let tool = |name: &str| json!({"name": name, "description": format!("{name}s."), "input_schema": {"type": "object", "properties": {}}});
    let mut last = tool("Grep");
    last["cache_control"] = cache.clone();
    let expected = json!({
        "model": "model-1",
        "stream": true,
        "max_tokens": 8192,
        "temperature": 0.5,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": cache}],
        "tools": [tool("Read"), last],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aW1n"}},
                {"type": "image", "source": {"type": "url", "url": "https://host/a.png"}},
                {"type": "text", "text": "Now."},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "b3Bh"},
                {"type": "text", "text": "I read."},
                {"type": "tool_use", "id": "c1", "name": "Read", "input": {"path": "a"}},
                {"type": "tool_use", "id": "c2", "name": "Read", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "content of a"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "no such file", "is_error": true},
                {"type": "text", "text": "Hurry."},
                {"type": "text", "text": "Well?", "cache_control": cache},
            ]},
        ],
    });
    assert_eq!(received.body, expected);
    assert!(received.head.starts_with("post /v1/messages http/1.1\r\n"), "{}", received.head);
    for line in
        [&format!("x-api-key: {KEY}"), "anthropic-version: 2023-06-01", "content-type: application/json"]
    {
        assert!(received.head.lines().any(|it| it == line), "{line} in {}", received.head);
    }
    assert!(!received.head.contains("authorization"));
}

#[tokio::test]
async fn minimal_request_has_no_optional_fields() {
    let bare = Request { system: String::new(), tools: [].into(), ..request(vec![user("Hi")]) };
    let received = sent(Wire::OpenAi, &bare, |model| model.key = None).await;
    let expected = json!({
        "model": "model-1", "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "Hi"}],
    });
    assert_eq!(received.body, expected);
    assert!(!received.head.contains("authorization"));
    let received = sent(Wire::Anthropic, &bare, |_| {}).await;
    let expected = json!({
        "model": "model-1", "stream": true, "max_tokens": 8192,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}],
    });
    assert_eq!(received.body, expected);
}

#[tokio::test]
async fn tool_choice_none_is_encoded() {
    let request = Request { tool_choice: ToolChoice::None, ..request(vec![user("Hi")]) };
    let body = sent(Wire::OpenAi, &request, |_| {}).await.body;
    assert_eq!((&body["tool_choice"], &body["parallel_tool_calls"]), (&json!("none"), &Value::Null));
    assert_eq!(body["tools"].as_array().unwrap().len(), 1);
    let body = sent(Wire::Anthropic, &request, |_| {}).await.body;
    assert_eq!(body["tool_choice"], json!({"type": "none"}));
}

#[tokio::test]
async fn openai_gets_max_completion_tokens() {
    let received = sent(Wire::OpenAi, &request(vec![user("Hi")]), |model| {
        model.provider = ProviderKind::OpenAi;
        model.parameters.max_tokens = Some(5);
    })
    .await;
    assert_eq!(
        (&received.body["max_completion_tokens"], &received.body["max_tokens"]),
        (&json!(5), &Value::Null)
    );
}

#[tokio::test]
async fn extra_body_and_send_reasoning_are_encoded() {
    let metadata = |value: Value| value.as_object().unwrap().clone();
    let reasoning = Content::Reasoning(Reasoning { text: "hm".to_owned(), ..Reasoning::default() });
    let messages = vec![
        user("Hi"),
        message(ChatRole::Assistant, vec![reasoning, call("c1", json!({}))]),
        message(ChatRole::User, vec![result("c1", "", false)]),
    ];
    let received = sent(Wire::OpenAi, &request(messages.clone()), |model| {
        model.metadata =
            metadata(json!({"extra_body": {"reasoning_effort": "high"}, "send_reasoning": true, "other": 1}));
    })
    .await;
    assert_eq!(received.body["reasoning_effort"], "high");
    assert_eq!(
        (&received.body["messages"][2]["reasoning_content"], &received.body["messages"][2]["content"]),
        (&json!("hm"), &Value::Null)
    );
    let received = sent(Wire::Anthropic, &request(messages), |model| {
        model.parameters =
            ModelParameters { temperature: Some(0.1), top_p: Some(0.1), max_tokens: Some(1000) };
        model.metadata =
            metadata(json!({"extra_body": {"thinking": {"type": "enabled", "budget_tokens": 2000}}}));
    })
    .await;
    assert_eq!(received.body["thinking"]["budget_tokens"], 2000);
    assert_eq!(
        (&received.body["max_tokens"], &received.body["temperature"], &received.body["top_p"]),
        (&json!(3000), &Value::Null, &Value::Null)
    );
    let empty = json!({"type": "tool_result", "tool_use_id": "c1", "cache_control": {"type": "ephemeral"}});
    assert_eq!(received.body["messages"][2]["content"], json!([empty]));
}

#[tokio::test]
async fn anthropic_gets_temperature_rather_than_top_p() {
    let parameters = ModelParameters { temperature: Some(0.5), top_p: Some(0.5), max_tokens: Some(9) };
    let body = sent(Wire::Anthropic, &Request { parameters, ..request(vec![user("Hi")]) }, |_| {}).await.body;
    assert_eq!(
        (&body["temperature"], &body["top_p"], &body["max_tokens"]),
        (&json!(0.5), &Value::Null, &json!(9))
    );
    let parameters = ModelParameters { top_p: Some(0.5), ..ModelParameters::default() };
    let body = sent(Wire::Anthropic, &Request { parameters, ..request(vec![user("Hi")]) }, |_| {}).await.body;
    assert_eq!(body["top_p"], 0.5);
}

#[tokio::test]
async fn definition_headers_override_default_headers() {
    let received = sent(Wire::Anthropic, &request(vec![user("Hi")]), |model| {
        model.headers.insert("anthropic-version".to_owned(), Secret::new("2030-01-01"));
        model.headers.insert("anthropic-beta".to_owned(), Secret::new("x"));
        model.url = model.url.as_ref().map(|url| format!("{url}/?tenant=1"));
    })
    .await;
    assert!(received.head.starts_with("post /v1/messages?tenant=1 http/1.1\r\n"), "{}", received.head);
    assert!(
        received.head.contains("anthropic-version: 2030-01-01\r\n")
            && received.head.contains("anthropic-beta: x\r\n")
    );
}
