//! What the record of a question says is what was sent.

use remuda_domain::message::{Part, Role, text_of};
use serde_json::{Value, json};

use crate::{
    lab::Lab,
    look::{Rebuilt, assert_complete, results, uses},
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
async fn every_question_can_be_rebuilt() {
    let lab = Lab::new(SCENARIO).await;
    lab.write("AGENTS.md", "All of it.\n");
    for text in ["first", "second"] {
        let run = lab.ask(text).await;
        let transcript = lab.messages().await;
        let steps = lab.model_steps(run.id).await;
        assert_eq!(steps.len(), 3);
        for (request, outcome) in steps {
            // All that was said before the answer, and nothing else.
            let answer = transcript.iter().position(|message| message.id == request.message).unwrap();
            let rebuilt = lab.rebuild(&request).await;
            let said = transcript[..answer].iter();
            let said: Vec<Rebuilt> =
                said.map(|it| Rebuilt { role: it.role, parts: it.parts.clone(), given: false }).collect();
            assert_eq!(rebuilt, said);
            assert_complete(rebuilt.iter().map(|message| (message.role, message.parts.as_slice())));
            // What came back is what was said.
            let outcome = outcome.unwrap();
            assert_eq!(outcome.parts, transcript[answer].parts);
            assert_eq!(outcome.attempts, 1);
            assert!(outcome.usage.output_tokens > 0 && !outcome.response_id.is_empty());
            assert!(lab.content(request.system).await.contains("All of it."));
            let definitions: Value = serde_json::from_str(&lab.content(request.definitions).await).unwrap();
            assert_eq!(definitions["agents"]["tested"]["prompt"], "You are tested.");
            assert!(lab.offered(&request).await.contains(&"Bash".to_owned()));
        }
    }
}

/// A recorded message in the words of the wire, as far as texts, calls and results go.
fn on_the_wire(message: &Rebuilt) -> Vec<(String, String)> {
    let role = match message.role {
        Role::Assistant => "assistant",
        Role::User | Role::System | Role::Tool => "user",
    };
    let mut lines: Vec<(String, String)> =
        results(&message.parts).iter().map(|outcome| ("tool".to_owned(), outcome.id.to_string())).collect();
    let text = text_of(&message.parts);
    let calls = uses(&message.parts);
    let calls: Vec<String> =
        calls.iter().map(|call| format!("{} {} {}", call.id, call.tool, call.arguments)).collect();
    let said = [text].into_iter().chain(calls).filter(|said| !said.is_empty()).collect::<Vec<_>>();
    if !said.is_empty() {
        lines.push((role.to_owned(), said.join("\n")));
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
        let said = [text(&message["content"])].into_iter().chain(calls).filter(|said| !said.is_empty());
        (role, said.collect::<Vec<_>>().join("\n"))
    });
    lines.collect()
}

#[tokio::test]
async fn the_record_is_what_went_over_the_wire() {
    let lab = Lab::new("turns: [{ say: unused }]").await;
    let command = json!({ "command": "echo seen" });
    let server =
        ModelServer::start(&lab, vec![call("Bash", &command), say("It said seen."), say("Goodbye.")]).await;
    lab.write_agent(
        "temperature: 0.25\nmax_tokens: 77\npolicy: { max_steps: 2, parallel_tool_calls: false }",
    );
    let first = lab.ask("look").await;
    assert_eq!(first.answer.as_deref(), Some("It said seen."), "{:?}", first.failure);
    let second = lab.ask("bye").await;
    let mut requests = lab.requests(first.id).await;
    requests.extend(lab.requests(second.id).await);
    let asked = server.asked();
    assert_eq!(asked.len(), 3);
    for (request, body) in requests.iter().zip(&asked) {
        assert_eq!(body["model"], request.model_name);
        assert_eq!(
            body["messages"][0],
            json!({ "role": "system", "content": lab.content(request.system).await })
        );
        let rebuilt = lab.rebuild(request).await;
        let expected: Vec<_> = rebuilt.iter().flat_map(on_the_wire).collect();
        assert_eq!(wire_lines(body), expected);
        let tools: Vec<Value> = serde_json::from_str(&lab.content(request.tools).await).unwrap();
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
        // The key is nowhere in the record.
        let record = format!("{request:?}{}", lab.content(request.definitions).await);
        assert!(!record.contains("sk-hidden"));
    }
    let result = asked[1]["messages"].as_array().unwrap().iter().find(|it| it["role"] == "tool").unwrap();
    assert!(result["content"].as_str().unwrap().contains("seen"));
    assert_eq!(asked[1]["messages"].as_array().unwrap().last().unwrap()["role"], "user", "the instruction");
    assert!(matches!(lab.messages().await.last().unwrap().parts[..], [Part::Text { .. }]));
}
