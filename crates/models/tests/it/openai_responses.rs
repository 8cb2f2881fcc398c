//! Responses of the OpenAI format, with the deviations of compatible servers.

use remuda_domain::model::{FinishReason, Usage};
use remuda_models::{Delta, Response};
use serde_json::{Value, json};

use crate::{
    fixtures::{ReceivedDeltas, Wire, assert_usual_response, call_with_replies},
    test_server::Reply,
};

/// Calls the model with chunks of these deltas and a finish reason.
async fn deltas(deltas: &[Value], finish: &str) -> (Response, ReceivedDeltas) {
    let chunk = |delta: &Value| json!({"id": "a", "choices": [{"index": 0, "delta": delta}]});
    let mut events: Vec<_> = deltas.iter().map(chunk).collect();
    events.push(json!({"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}));
    chunks(&events).await
}

async fn chunks(events: &[Value]) -> (Response, ReceivedDeltas) {
    let stream = Wire::OpenAi.encode(events) + "data: [DONE]\n\n";
    let (result, received, _) = call_with_replies(Wire::OpenAi, [Reply::stream(&stream)]).await;
    (result.unwrap(), received)
}

fn call(index: Option<u64>, id: &str, name: &str, arguments: &str) -> Value {
    json!({"index": index, "id": id, "function": {"name": name, "arguments": arguments}})
}

fn calls(response: &Response) -> Vec<(String, Value)> {
    let shown = |request: &remuda_models::ToolRequest| {
        (request.name.clone(), json!(request.arguments.clone().unwrap()))
    };
    response.tool_requests.iter().map(shown).collect()
}

#[tokio::test]
async fn interleaved_fragments_of_several_calls_are_assembled() {
    let fragments = [
        json!({"tool_calls": [call(Some(0), "x", "Read", "")]}),
        json!({"tool_calls": [call(Some(1), "y", "Grep", "{"), call(Some(0), "", "", "{\"path\":")]}),
        json!({"content": null, "tool_calls": [call(Some(1), "", "", "\"for\": \"世界\"}"), call(Some(0), "", "", " 1}")]}),
        json!({"tool_calls": null}),
        json!({}),
    ];
    let (response, received) = deltas(&fragments, "tool_calls").await;
    let expected = [("Read".to_owned(), json!({"path": 1})), ("Grep".to_owned(), json!({"for": "世界"}))];
    assert_eq!(calls(&response), expected);
    let named = |name: &str| Delta::ToolRequested { name: name.to_owned() };
    assert_eq!(received.deltas(), [named("Read"), named("Grep")]);
}

#[tokio::test]
async fn fragments_without_index_and_id_are_assembled() {
    let fragments = [
        json!({"tool_calls": [call(None, "", "Read", "{\"a\"")]}),
        json!({"tool_calls": [call(None, "", "", ":1}")]}),
        json!({"tool_calls": [call(None, "", "Read", "{\"a\":2}")]}),
    ];
    let (response, _) = deltas(&fragments, "stop").await;
    assert_eq!(calls(&response).iter().map(|(_, input)| input["a"].clone()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(response.finish, FinishReason::ToolCalls, "derived from the calls");
}

#[tokio::test]
async fn invalid_arguments_are_kept_verbatim() {
    for bad in ["{\"path\": ", "[1]", "read main.py", "{}{}"] {
        let (response, _) =
            deltas(&[json!({"tool_calls": [call(Some(0), "x", "Read", bad)]})], "tool_calls").await;
        assert_eq!(response.tool_requests[0].arguments, Err(bad.to_owned()));
    }
    let (response, _) =
        deltas(&[json!({"tool_calls": [call(Some(0), "x", "Read", "")]})], "tool_calls").await;
    assert_eq!(response.tool_requests[0].arguments, Ok(Default::default()));
}

#[tokio::test]
async fn last_finish_reason_counts() {
    let chunk = |text: &str, reason: &str| json!({"choices": [{"delta": {"content": text}, "finish_reason": reason}]});
    let (response, _) =
        chunks(&[chunk("a", "stop"), chunk("b", "stop"), chunk("c", "length"), chunk("", "")]).await;
    assert_eq!((response.text.as_str(), response.finish), ("abc", FinishReason::Length));
}

#[tokio::test]
async fn finish_reasons_are_mapped() {
    let table = [
        ("stop", FinishReason::Stop),
        ("tool_calls", FinishReason::Stop),
        ("length", FinishReason::Length),
        ("content_filter", FinishReason::ContentFilter),
        ("exhaustion", FinishReason::Other),
    ];
    for (reason, expected) in table {
        assert_eq!(deltas(&[json!({"content": "a"})], reason).await.0.finish, expected, "{reason}");
    }
}

#[tokio::test]
async fn response_is_complete_with_either_end_marker() {
    // A finish reason suffices without `[DONE]`, and `[DONE]` suffices without a finish reason.
    let finished = Wire::OpenAi.encode(&Wire::OpenAi.events());
    let (result, _, _) = call_with_replies(Wire::OpenAi, [Reply::stream(&finished)]).await;
    assert_usual_response(&result.unwrap());
    let done =
        Wire::OpenAi.full_stream().replace("\"finish_reason\":\"tool_calls\"", "\"finish_reason\":null");
    let (result, _, _) = call_with_replies(Wire::OpenAi, [Reply::stream(&done)]).await;
    assert_usual_response(&result.unwrap());
    // Anything after the end is ignored, even a broken connection.
    let (result, _, _) =
        call_with_replies(Wire::OpenAi, [Reply::stream(&Wire::OpenAi.full_stream()).breaks()]).await;
    assert_eq!(result.unwrap().attempts, 1);
    let (result, _, _) =
        call_with_replies(Wire::OpenAi, [Reply::stream(&Wire::OpenAi.full_stream()).stalls()]).await;
    assert_eq!(result.unwrap().attempts, 1);
}

#[tokio::test]
async fn usage_is_read_from_every_known_place() {
    let say = json!({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]});
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 2});
    let expected = Usage { input_tokens: 3, output_tokens: 2, ..Usage::default() };
    let table = [
        (vec![say.clone()], Usage::default()),
        (vec![say.clone(), json!({"choices": [], "usage": usage})], expected),
        (vec![say.clone(), json!({"usage": usage})], expected),
        (
            vec![
                json!({"usage": {"prompt_tokens": 3, "completion_tokens": 1}, "choices": []}),
                say.clone(),
                json!({"usage": usage}),
                json!({"usage": null}),
            ],
            expected,
        ),
        (
            vec![json!({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop", "usage": usage}]})],
            expected,
        ),
        (
            vec![
                say.clone(),
                json!({"usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_cache_hit_tokens": 1}}),
            ],
            Usage { cached_input_tokens: 1, ..expected },
        ),
    ];
    for (events, expected) in table {
        assert_eq!(chunks(&events).await.0.usage, expected, "{events:?}");
    }
}

#[tokio::test]
async fn reasoning_is_read_from_all_known_fields() {
    for name in ["reasoning_content", "reasoning"] {
        let (response, received) = deltas(
            &[json!({name: "I "}), json!({name: "think", "content": ""}), json!({"content": "so"})],
            "stop",
        )
        .await;
        assert_eq!(response.reasoning.len(), 1);
        assert_eq!(
            (response.reasoning[0].text.as_str(), response.reasoning[0].model.as_str()),
            ("I think", "platform/tested")
        );
        assert_eq!(response.text, "so");
        assert_eq!(received.deltas()[0], Delta::Reasoning("I ".to_owned()));
    }
    let (response, _) = deltas(&[json!({"reasoning": "once", "reasoning_content": "once"})], "stop").await;
    assert_eq!(response.reasoning[0].text, "once");
    let parts = json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"}]});
    let (response, _) = deltas(&[parts], "stop").await;
    assert_eq!((response.reasoning[0].text.as_str(), response.text.as_str()), ("hm", "yes"));
}

#[tokio::test]
async fn empty_deltas_and_other_choices_are_ignored_and_refusals_are_text() {
    let events = [
        json!({"choices": []}),
        json!({"choices": [{"index": 0, "delta": null}]}),
        json!({"choices": [{"index": 1, "delta": {"content": "another"}}]}),
        json!({"choices": [{"index": 0, "delta": {"content": null, "refusal": "I will not."}}]}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
    ];
    assert_eq!(chunks(&events).await.0.text, "I will not.");
}

#[tokio::test]
async fn response_that_is_not_streamed_is_decoded() {
    let answer = json!({
        "id": "answer-1",
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": "Grüß dich, Welt", "reasoning_content": "hm",
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": "Read", "arguments": "{\"path\": \"ü.txt\"}"}}],
        }}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    });
    for content_type in ["application/json", "text/event-stream"] {
        let reply = Reply::new("200 OK", content_type, &format!("\n {answer}")).cut(3);
        let (result, received, _) = call_with_replies(Wire::OpenAi, [reply]).await;
        let response = result.unwrap();
        assert_usual_response(&response);
        assert_eq!((response.reasoning[0].text.as_str(), response.usage.input_tokens), ("hm", 3));
        assert_eq!(received.text(), "Grüß dich, Welt");
    }
}
