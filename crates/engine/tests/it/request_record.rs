//! The record of a model call equals what was sent.

use remuda_domain::message::{Part, Role, text_of};
use serde_json::{Value, json};

use crate::{
    harness::Harness,
    inspect::{SentMessage, assert_results_complete, results, tool_calls},
    model_server::{ModelServer, call, say},
};

const SCENARIO: &str = r#"
turns:
  - think: Where to begin?
    say: I look.
    call:
      - { tool: Bash, arguments: { command: echo one } }
      - { tool: Read, arguments: { file_path: missing } }
  - call: [{ tool: Glob, arguments: { pattern: "*.none" } }]
  - say: "Done: {{last_tool_result}}"
"#;

#[tokio::test]
async fn every_model_request_can_be_rebuilt() {
    let harness = Harness::new(SCENARIO).await;
    harness.write("AGENTS.md", "All of it.\n");
    for text in ["first", "second"] {
        let run = harness.run_message(text).await;
        let transcript = harness.messages().await;
        let steps = harness.model_steps(run.id).await;
        assert_eq!(steps.len(), 3);
        for (request, outcome) in steps {
            // Everything before the response, and nothing else.
            let response = transcript.iter().position(|message| message.id == request.message).unwrap();
            let rebuilt = harness.sent_messages(&request).await;
            let expected = transcript[..response].iter();
            let expected: Vec<SentMessage> = expected
                .map(|it| SentMessage { role: it.role, parts: it.parts.clone(), inserted: false })
                .collect();
            assert_eq!(rebuilt, expected);
            assert_results_complete(rebuilt.iter().map(|message| (message.role, message.parts.as_slice())));
            // The recorded outcome is the stored message.
            let outcome = outcome.unwrap();
            assert_eq!(outcome.parts, transcript[response].parts);
            assert_eq!(outcome.attempts, 1);
            assert!(outcome.usage.output_tokens > 0 && !outcome.response_id.is_empty());
            assert!(harness.content(request.system).await.contains("All of it."));
            let definitions: Value =
                serde_json::from_str(&harness.content(request.definitions).await).unwrap();
            assert_eq!(definitions["agents"]["tested"]["prompt"], "You are tested.");
            assert!(harness.offered(&request).await.contains(&"Bash".to_owned()));
        }
    }
}

/// A recorded message as it appears on the wire: texts, calls and results.
fn wire_lines_of(message: &SentMessage) -> Vec<(String, String)> {
    let role = match message.role {
        Role::Assistant => "assistant",
        Role::User | Role::System | Role::Tool => "user",
    };
    let mut lines: Vec<(String, String)> =
        results(&message.parts).iter().map(|outcome| ("tool".to_owned(), outcome.id.to_string())).collect();
    let text = text_of(&message.parts);
    let calls = tool_calls(&message.parts);
    let calls: Vec<String> =
        calls.iter().map(|call| format!("{} {} {}", call.id, call.tool, call.arguments)).collect();
    let content = [text].into_iter().chain(calls).filter(|content| !content.is_empty()).collect::<Vec<_>>();
    if !content.is_empty() {
        lines.push((role.to_owned(), content.join("\n")));
    }
    lines
}

fn wire_lines(body: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let messages = body["messages"].as_array().unwrap().iter().skip(1);
    let lines = messages.map(|message| {
        let role = text(&message["role"]);
        if role == "tool" {
            return (role, text(&message["tool_call_id"]));
        }
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        let calls = calls.iter().map(|call| {
            let function = &call["function"];
            format!("{} {} {}", text(&call["id"]), text(&function["name"]), text(&function["arguments"]))
        });
        let content =
            [text(&message["content"])].into_iter().chain(calls).filter(|content| !content.is_empty());
        (role, content.collect::<Vec<_>>().join("\n"))
    });
    lines.collect()
}

#[tokio::test]
async fn recorded_request_equals_the_request_on_the_wire() {
    let harness = Harness::new("turns: [{ say: unused }]").await;
    let command = json!({ "command": "echo seen" });
    let server =
        ModelServer::start(&harness, vec![call("Bash", &command), say("It said seen."), say("Goodbye.")])
            .await;
    harness.write_agent(
        "temperature: 0.25\nmax_tokens: 77\npolicy: { max_steps: 2, parallel_tool_calls: false }",
    );
    let first = harness.run_message("look").await;
    assert_eq!(first.answer.as_deref(), Some("It said seen."), "{:?}", first.failure);
    let second = harness.run_message("bye").await;
    let mut requests = harness.requests(first.id).await;
    requests.extend(harness.requests(second.id).await);
    let received = server.requests();
    assert_eq!(received.len(), 3);
    for (request, body) in requests.iter().zip(&received) {
        assert_eq!(body["model"], request.model_name);
        assert_eq!(
            body["messages"][0],
            json!({ "role": "system", "content": harness.content(request.system).await })
        );
        let rebuilt = harness.sent_messages(request).await;
        let expected: Vec<_> = rebuilt.iter().flat_map(wire_lines_of).collect();
        assert_eq!(wire_lines(body), expected);
        let tools: Vec<Value> = serde_json::from_str(&harness.content(request.tools).await).unwrap();
        let offered = body["tools"].as_array().unwrap();
        assert_eq!(offered.len(), tools.len());
        for (offered, tool) in offered.iter().zip(&tools) {
            let function = &offered["function"];
            assert_eq!(
                (&function["name"], &function["description"], &function["parameters"]),
                (&tool["name"], &tool["description"], &tool["schema"])
            );
        }
        assert_eq!((&body["temperature"], &body["max_tokens"]), (&json!(0.25), &json!(77)));
        assert_eq!((request.parameters.temperature, request.parameters.max_tokens), (Some(0.25), Some(77)));
        assert_eq!(body["parallel_tool_calls"], false);
        let choice = if request.concluding { json!("none") } else { Value::Null };
        assert_eq!(body["tool_choice"], choice);
        // The key is not in the record.
        let record = format!("{request:?}{}", harness.content(request.definitions).await);
        assert!(!record.contains("sk-hidden"));
    }
    let result = received[1]["messages"].as_array().unwrap().iter().find(|it| it["role"] == "tool").unwrap();
    assert!(result["content"].as_str().unwrap().contains("seen"));
    assert_eq!(
        received[1]["messages"].as_array().unwrap().last().unwrap()["role"],
        "user",
        "the instruction"
    );
    assert!(matches!(harness.messages().await.last().unwrap().parts[..], [Part::Text { .. }]));
}
