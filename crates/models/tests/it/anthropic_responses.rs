//! Responses of the Anthropic format.

use remuda_domain::{
    error::Code,
    message::Reasoning,
    model::{FinishReason, Usage},
};
use remuda_models::{Delta, Response};
use serde_json::{Value, json};

use crate::{
    fixtures::{ReceivedDeltas, Wire, assert_usual_response, call_with_replies},
    test_server::Reply,
};

const WIRE: Wire = Wire::Anthropic;

/// Calls the model with these events between the usual first and last ones.
async fn respond_with(events: &[Value], stop_reason: &str) -> (Response, ReceivedDeltas) {
    let mut all =
        vec![json!({"type": "message_start", "message": {"id": "a", "usage": {"input_tokens": 3}}})];
    all.extend_from_slice(events);
    all.push(json!({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": {"output_tokens": 2}}));
    all.push(json!({"type": "message_stop"}));
    let (result, received, _) = call_with_replies(WIRE, [Reply::stream(&WIRE.encode(&all))]).await;
    (result.unwrap(), received)
}

fn start(index: impl Into<Option<u64>>, block: impl Into<Value>) -> Value {
    json!({"type": "content_block_start", "index": index.into(), "content_block": block.into()})
}

fn delta(index: impl Into<Option<u64>>, delta: impl Into<Value>) -> Value {
    json!({"type": "content_block_delta", "index": index.into(), "delta": delta.into()})
}

fn input(index: impl Into<Option<u64>>, json: &str) -> Value {
    delta(index, json!({"type": "input_json_delta", "partial_json": json}))
}

fn text(index: impl Into<Option<u64>>, text: &str) -> Value {
    delta(index, json!({"type": "text_delta", "text": text}))
}

fn tool(id: &str, name: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": {}})
}

fn calls(response: &Response) -> Vec<(String, Value)> {
    let shown = |request: &remuda_models::ToolRequest| {
        (request.name.clone(), json!(request.arguments.clone().unwrap()))
    };
    response.tool_requests.iter().map(shown).collect()
}

#[tokio::test]
async fn interleaved_fragments_of_several_calls_are_assembled() {
    // Repeated or missing ids make no difference.
    for (first, second) in [("x", "y"), ("x", "x"), ("", "")] {
        let events = [
            start(0, tool(first, "Read")),
            start(1, tool(second, "Grep")),
            input(1, "{\"for\": "),
            input(0, "{\"path\""),
            input(1, "\"世界\"}"),
            input(0, ":1}"),
            json!({"type": "content_block_stop", "index": 0}),
        ];
        let (response, _) = respond_with(&events, "tool_use").await;
        let expected = [("Read".to_owned(), json!({"path": 1})), ("Grep".to_owned(), json!({"for": "世界"}))];
        assert_eq!(calls(&response), expected);
        assert_eq!(response.finish, FinishReason::ToolCalls);
    }
}

#[tokio::test]
async fn blocks_without_an_index_belong_to_the_last_block() {
    let events = [
        start(None, json!({"type": "text", "text": "a"})),
        text(None, "b"),
        start(None, tool("x", "Read")),
        input(None, "{\"path\""),
        input(None, ":1}"),
        start(None, tool("y", "Read")),
        input(None, "{\"path\":2}"),
    ];
    let (response, received) = respond_with(&events, "end_turn").await;
    assert_eq!((response.text.as_str(), received.text().as_str()), ("ab", "ab"));
    assert_eq!(calls(&response).iter().map(|(_, input)| input["path"].clone()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(response.finish, FinishReason::ToolCalls, "derived from the calls");
}

#[tokio::test]
async fn text_without_a_start_event_is_accepted_and_input_is_not() {
    let (response, received) = respond_with(&[text(0, "Hel"), text(0, "lo")], "end_turn").await;
    assert_eq!((response.text.as_str(), received.text().as_str()), ("Hello", "Hello"));
    let stream = WIRE.encode(&[input(0, "{}")]);
    let (result, _, _) = call_with_replies(WIRE, [Reply::stream(&stream)]).await;
    assert_eq!(result.unwrap_err().code(), Code::ModelAnswerInvalid, "the block of the input is unknown");
}

#[tokio::test]
async fn invalid_input_is_kept_verbatim_and_initial_input_is_used() {
    for bad in ["{\"path\": ", "[1]", "read main.py"] {
        let (response, _) = respond_with(&[start(0, tool("x", "Read")), input(0, bad)], "tool_use").await;
        assert_eq!(response.tool_requests[0].arguments, Err(bad.to_owned()));
    }
    let whole = json!({"type": "tool_use", "id": "x", "name": "Read", "input": {"path": 1}});
    let (response, _) = respond_with(&[start(0, whole), start(1, tool("y", "Stop"))], "tool_use").await;
    assert_eq!(calls(&response), [("Read".to_owned(), json!({"path": 1})), ("Stop".to_owned(), json!({}))]);
}

#[tokio::test]
async fn reasoning_keeps_its_signature() {
    let events = [
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "I "})),
        delta(0, json!({"type": "thinking_delta", "thinking": "think"})),
        delta(0, json!({"type": "signature_delta", "signature": "c2ln"})),
        delta(0, json!({"type": "signature_delta", "signature": "bmVk"})),
        start(1, json!({"type": "redacted_thinking", "data": "b3BhcXVl"})),
        start(2, json!({"type": "text", "text": ""})),
        text(2, "so"),
    ];
    let (response, received) = respond_with(&events, "end_turn").await;
    let model = || "platform/tested".to_owned();
    let thought = Reasoning {
        text: "I think".to_owned(),
        signature: Some("c2lnbmVk".to_owned()),
        redacted: None,
        model: model(),
    };
    let hidden = Reasoning {
        text: String::new(),
        signature: None,
        redacted: Some("b3BhcXVl".to_owned()),
        model: model(),
    };
    assert_eq!(response.reasoning, [thought, hidden]);
    assert_eq!((response.text.as_str(), response.finish), ("so", FinishReason::Stop));
    let thoughts = [
        Delta::Reasoning("I ".to_owned()),
        Delta::Reasoning("think".to_owned()),
        Delta::Text("so".to_owned()),
    ];
    assert_eq!(received.deltas(), thoughts);
}

#[tokio::test]
async fn finish_reasons_are_mapped() {
    let table = [
        ("end_turn", FinishReason::Stop),
        ("stop_sequence", FinishReason::Stop),
        ("tool_use", FinishReason::Stop),
        ("max_tokens", FinishReason::Length),
        ("refusal", FinishReason::ContentFilter),
        ("pause_turn", FinishReason::Other),
    ];
    for (reason, expected) in table {
        assert_eq!(respond_with(&[text(0, "a")], reason).await.0.finish, expected, "{reason}");
    }
    // A stop reason with each event: the last one counts, and the response does not end early.
    let stop = |reason: &str| json!({"type": "message_delta", "delta": {"stop_reason": reason}});
    let (response, _) = respond_with(
        &[text(0, "a"), stop("end_turn"), text(0, "b"), stop("end_turn"), text(0, "c")],
        "max_tokens",
    )
    .await;
    assert_eq!((response.text.as_str(), response.finish), ("abc", FinishReason::Length));
}

#[tokio::test]
async fn response_is_complete_with_either_end_marker() {
    let events = WIRE.events();
    let without_stop = WIRE.encode(&events[..events.len() - 1]);
    let translated = format!("{without_stop}data: [DONE]\n\n");
    let without_names =
        WIRE.full_stream().lines().filter(|line| !line.starts_with("event:")).collect::<Vec<_>>().join("\n");
    for stream in [&without_stop, &translated, &without_names] {
        let (result, _, _) = call_with_replies(WIRE, [Reply::stream(stream)]).await;
        assert_usual_response(&result.unwrap());
    }
    // Anything after the end is ignored, even a broken connection.
    for reply in [Reply::stream(&WIRE.full_stream()).breaks(), Reply::stream(&WIRE.full_stream()).stalls()] {
        let (result, _, _) = call_with_replies(WIRE, [reply]).await;
        assert_eq!(result.unwrap().attempts, 1);
    }
}

#[tokio::test]
async fn usage_is_read_from_every_known_place() {
    let (response, _) = respond_with(&[text(0, "a")], "end_turn").await;
    assert_eq!(response.usage, Usage { input_tokens: 3, output_tokens: 2, ..Usage::default() });
    let late = json!({"type": "message_delta", "delta": {}, "usage": {"input_tokens": 9, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 1, "output_tokens": null}});
    let (response, _) = respond_with(&[text(0, "a"), late], "end_turn").await;
    let expected = Usage {
        input_tokens: 15,
        output_tokens: 2,
        cached_input_tokens: 5,
        cache_write_tokens: 1,
        reasoning_tokens: 0,
    };
    assert_eq!(response.usage, expected);
    let stream = WIRE.encode(&[text(0, "a"), json!({"type": "message_stop"})]);
    let (result, _, _) = call_with_replies(WIRE, [Reply::stream(&stream)]).await;
    assert_eq!(result.unwrap().usage, Usage::default(), "none at all");
}

#[tokio::test]
async fn pings_empty_deltas_and_unknown_kinds_are_ignored() {
    let events = [
        json!({"type": "ping"}),
        start(0, json!({"type": "text", "text": ""})),
        text(0, ""),
        delta(0, json!({"type": "citations_delta", "citation": {}})),
        json!({"type": "of_tomorrow", "index": 0}),
        start(1, json!({"type": "server_tool_use", "name": "web_search", "input": {}})),
        input(1, "{\"query\": 1}"),
        text(0, "a"),
    ];
    let (response, received) = respond_with(&events, "end_turn").await;
    assert_eq!((response.text.as_str(), response.tool_requests.len(), received.deltas().len()), ("a", 0, 1));
}

#[tokio::test]
async fn response_that_is_not_streamed_is_decoded() {
    let answer = json!({
        "id": "answer-1", "type": "message", "role": "assistant", "stop_reason": "tool_use",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "text", "text": "Grüß dich, Welt"},
            {"type": "tool_use", "id": "x", "name": "Read", "input": {"path": "ü.txt"}},
        ],
        "usage": {"input_tokens": 3, "output_tokens": 2},
    });
    let (result, received, _) = call_with_replies(WIRE, [Reply::json("200 OK", &answer).cut(3)]).await;
    let response = result.unwrap();
    assert_usual_response(&response);
    assert_eq!((response.reasoning[0].signature.as_deref(), response.usage.input_tokens), (Some("c2ln"), 3));
    assert_eq!((received.text().as_str(), response.finish), ("Grüß dich, Welt", FinishReason::ToolCalls));
}
