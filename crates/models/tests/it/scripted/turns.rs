//! Selection and playback of turns.

use std::time::Duration;

use remuda_domain::{
    error::Code,
    model::{FinishReason, Usage},
};
use remuda_models::{ChatMessage, ChatRole, Content, Delta, Models, Request, ToolChoice, ToolSpec};
use serde_json::{Value, json};

use super::{ScenarioFile, assistant, definition, result};
use crate::fixtures::{call_model, options, request, user};

const REPAIR: &str = r#"
log: calls.jsonl
turns:
  - say: "I will read the file."
    think: "Where else to begin?"
    call: [{ tool: Read, arguments: { file_path: src/main.py, lines: [1, 2], deep: { all: true } } }]
  - when: { tool_result_contains: "1 failed" }
    say: "I repair it."
    call: [{ tool: Edit }]
  - say: "Done."
    usage: { input: 10, output: 5, cached_input: 3, cache_write: 2, reasoning: 1 }
otherwise: { say: "I have nothing more to say." }
"#;

#[tokio::test]
async fn conditional_turns_are_played_between_the_ordered_ones() {
    let scenario_file = ScenarioFile::new(REPAIR);
    let mut messages = vec![user("Repair it")];
    let steps = [
        ("I will read the file.", "fine"),
        ("Done.", "1 failed"),
        ("I repair it.", "1 failed"),
        ("I repair it.", "2 passed"),
        ("I have nothing more to say.", "2 passed"),
        ("I have nothing more to say.", ""),
    ];
    for (message, then) in steps {
        // Called twice with new clients: there is no state between calls.
        for _ in 0..2 {
            assert_eq!(scenario_file.text(&messages).await, message);
        }
        messages.extend([assistant(message), result(then)]);
    }
    let log = scenario_file.log("calls.jsonl");
    assert_eq!(log.len(), 12);
    assert_eq!(log[2], json!({"turn": 2, "messages": 3, "attempt": 1}));
}

#[tokio::test]
async fn response_has_reasoning_text_calls_and_usage() {
    let scenario_file = ScenarioFile::new(REPAIR);
    let (response, received) = scenario_file.call_model(&request(vec![user("Repair it")])).await;
    let response = response.unwrap();
    assert_eq!(response.reasoning[0].text, "Where else to begin?");
    assert_eq!(response.reasoning[0].model, "workspace/demo");
    let arguments = json!({"file_path": "src/main.py", "lines": [1, 2], "deep": {"all": true}});
    assert_eq!(Value::from(response.tool_requests[0].arguments.clone().unwrap()), arguments);
    assert_eq!((response.finish, response.attempts), (FinishReason::ToolCalls, 1));
    assert!(
        response.usage.input_tokens > 0 && response.usage.output_tokens > response.usage.reasoning_tokens
    );
    assert_eq!(received.text(), "I will read the file.");
    let deltas = received.deltas();
    assert_eq!(deltas[0], Delta::Reasoning("Where ".to_owned()), "word by word");
    assert_eq!(deltas[4], Delta::Text("I ".to_owned()));
    assert_eq!(deltas.last(), Some(&Delta::ToolRequested { name: "Read".to_owned() }));

    let (response, _) =
        scenario_file.call_model(&request(vec![user("Repair it"), assistant("…"), result("fine")])).await;
    let response = response.unwrap();
    let usage = Usage {
        input_tokens: 10,
        output_tokens: 5,
        cached_input_tokens: 3,
        cache_write_tokens: 2,
        reasoning_tokens: 1,
    };
    assert_eq!((response.usage, response.finish), (usage, FinishReason::Stop));
}

#[tokio::test]
async fn same_request_gives_the_same_response() {
    let scenario_file = ScenarioFile::new(REPAIR);
    let request = request(vec![user("Repair it"), assistant("…"), result("1 failed")]);
    let first = scenario_file.call_model(&request).await;
    let models = Models::new(options());
    for _ in 0..3 {
        let again = call_model(&models, &definition(&scenario_file.file()), &request).await;
        assert_eq!(
            (again.0.unwrap(), again.1.deltas()),
            (first.0.as_ref().unwrap().clone(), first.1.deltas())
        );
    }
}

#[tokio::test]
async fn turns_start_again_with_each_user_message() {
    let scenario_file = ScenarioFile::new(
        r#"
conversations:
  - on: { user_contains: weather }
    turns: [{ say: It rains. }, { say: It still rains. }]
    otherwise: { say: Look outside. }
  - on: { question: 3 }
    turns: [{ say: The third. }]
  - on: { system_contains: "You plan" }
    turns: [{ say: A plan. }]
turns: [{ say: Hello. }, { say: Hello again. }]
otherwise: { say: Enough. }
"#,
    );
    let mut messages = vec![user("Hi")];
    for (message, then) in [
        ("Hello.", user("The weather?")),
        ("It rains.", result("x")),
        ("It still rains.", result("x")),
        ("Look outside.", user("And?")),
        ("The third.", result("x")),
        ("Enough.", user("Bye")),
    ] {
        assert_eq!(scenario_file.text(&messages).await, message);
        messages.extend([assistant(message), then]);
    }
    assert_eq!(scenario_file.text(&messages).await, "Hello.");
    let planning = Request { system: "You plan.".to_owned(), ..request(vec![user("Hi")]) };
    assert_eq!(scenario_file.call_model(&planning).await.0.unwrap().text, "A plan.");
    // Two consecutive user messages count as one.
    assert_eq!(scenario_file.text(&[user("Hi"), user("The weather?")]).await, "It rains.");
    assert_eq!(
        scenario_file.text(&[user("The weather?"), assistant("It rains."), result("x"), user("Oh")]).await,
        "Hello."
    );
}

#[tokio::test]
async fn text_beside_results_continues_the_exchange() {
    let scenario_file = ScenarioFile::new(
        "turns:\n  - when: { user_contains: stop }\n    say: I stop.\n  - say: First of {{question}}\n  - say: \"Second of {{question}}, now {{user}}\"\n",
    );
    let beside = |text: &str| {
        let mut message = result("x");
        message.content.push(Content::Text(text.to_owned()));
        message
    };
    let start = [user("counting"), assistant("First of counting")];
    let with = |message: ChatMessage| [start.as_slice(), &[message]].concat();
    assert_eq!(scenario_file.text(&with(result("x"))).await, "Second of counting, now counting");
    assert_eq!(scenario_file.text(&with(beside("hurry"))).await, "Second of counting, now hurry");
    assert_eq!(scenario_file.text(&with(beside("please stop"))).await, "I stop.");
}

#[tokio::test]
async fn every_condition_selects_its_turn() {
    let scenario_file = ScenarioFile::new(
        r#"
turns:
  - { when: { tool_failed: true }, say: failed }
  - { when: { turn: 3 }, say: third }
  - { when: { system_contains: "You plan" }, say: planning }
  - { when: { may_call: false }, say: concluding }
  - { when: { tool_offered: Grep }, say: grep }
  - { when: { user_contains: "both", tool_result_contains: "too" }, say: both }
otherwise: { say: none }
"#,
    );
    let failed = ChatMessage {
        role: ChatRole::User,
        content: vec![Content::ToolResult { id: "c".to_owned(), text: String::new(), is_error: true }],
    };
    let base = request(vec![user("Hi")]);
    assert_eq!(scenario_file.text(&[user("Hi")]).await, "none");
    assert_eq!(scenario_file.text(&[user("Hi"), assistant("a"), failed.clone()]).await, "failed");
    assert_eq!(
        scenario_file.text(&[user("Hi"), assistant("a"), failed, assistant("b"), result("x")]).await,
        "third"
    );
    let call_model = async |request: Request| scenario_file.call_model(&request).await.0.unwrap().text;
    assert_eq!(call_model(Request { system: "You plan".to_owned(), ..base.clone() }).await, "planning");
    assert_eq!(call_model(Request { tool_choice: ToolChoice::None, ..base.clone() }).await, "concluding");
    assert_eq!(call_model(Request { tools: [].into(), ..base.clone() }).await, "concluding");
    let mut grep = base.clone();
    grep.tools = [ToolSpec { name: "Grep".to_owned(), ..grep.tools[0].clone() }].into();
    assert_eq!(call_model(grep).await, "grep");
    assert_eq!(scenario_file.text(&[user("both"), assistant("a"), result("too")]).await, "both");
    assert_eq!(scenario_file.text(&[user("both"), assistant("a"), result("one")]).await, "none");
}

#[tokio::test]
async fn turns_are_repeated_up_to_their_limit() {
    let scenario_file = ScenarioFile::new(
        "turns:\n  - { when: { tool_result_contains: x }, repeat: 1, say: once }\n  - { say: twice, repeat: 2 }\n  - { say: last, repeat: 1000 }\n",
    );
    let mut messages = vec![user("Hi")];
    for message in ["twice", "once", "twice", "last", "last", "last"] {
        assert_eq!(scenario_file.text(&messages).await, message);
        messages.extend([assistant(message), result("x")]);
    }
}

#[tokio::test]
async fn placeholders_are_expanded_once() {
    let scenario_file = ScenarioFile::new(
        r#"
turns:
  - say: "{{user}} {{{turn}}} ${{ secrets.X }} {{"
    call: [{ tool: Write, arguments: { content: "{{last_tool_result}}!", list: ["{{user}}", 1] } }, { tool: Odd, raw: "{{turn" }]
    repeat: 2
"#,
    );
    let (text, calls) = scenario_file
        .response_to(&[user("{{turn}}"), assistant("a"), result("first"), result("é {{user}}")])
        .await;
    assert_eq!(text, "{{turn}} {2} ${{ secrets.X }} {{");
    assert_eq!(
        Value::from(calls[0].arguments.clone().unwrap()),
        json!({"content": "é {{user}}!", "list": ["{{turn}}", 1]})
    );
    assert_eq!(calls[1].arguments, Err("{{turn".to_owned()));
    let long = "x".repeat(600_000);
    let scenario_file = ScenarioFile::new("turns:\n  - say: \"{{user}}{{user}}\"\n");
    let (result, _) = scenario_file.call_model(&request(vec![user(&long)])).await;
    assert_eq!(result.unwrap_err().code(), Code::ModelAnswerInvalid);
}

#[tokio::test]
async fn failure_ends_after_the_given_attempts() {
    let scenario_file = ScenarioFile::new(
        "log: calls\nturns:\n  - fail: { status: 503, times: 2, after_words: 2 }\n    say: It rains all day.\n",
    );
    let (response, received) = scenario_file.call_model(&request(vec![user("Hi")])).await;
    let response = response.unwrap();
    assert_eq!((response.text.as_str(), response.attempts), ("It rains all day.", 3));
    assert_eq!((received.restarts(), received.text().as_str()), (2, "It rains all day."));
    assert_eq!(
        received.deltas()[..3],
        [Delta::Text("It ".to_owned()), Delta::Text("rains ".to_owned()), Delta::Restarted]
    );
    let attempts: Vec<_> = scenario_file.log("calls").iter().map(|line| line["attempt"].clone()).collect();
    assert_eq!(attempts, [1, 2, 3]);
}

#[tokio::test]
async fn failures_are_classified_like_server_errors() {
    let table = [
        ("{ status: 503, message: overloaded }", Code::ModelUnavailable, 3),
        ("{}", Code::ModelUnavailable, 3),
        ("{ status: 401, message: no }", Code::ModelKeyRefused, 1),
        ("{ status: 429 }", Code::ModelOverloaded, 3),
        ("{ status: 429, retry_after: 5m }", Code::ModelOverloaded, 1),
        ("{ status: 503, retry: false }", Code::ModelUnavailable, 1),
        ("{ status: 400, retry: true }", Code::ModelRequestRefused, 3),
        ("{ status: 400, message: prompt is too long }", Code::ContextTooLong, 1),
    ];
    for (fail, code, attempts) in table {
        let scenario_file = ScenarioFile::new(&format!("log: calls\nturns:\n  - fail: {fail}\n"));
        let error = scenario_file.call_model(&request(vec![user("Hi")])).await.0.unwrap_err();
        assert_eq!((error.code(), scenario_file.log("calls").len()), (code, attempts), "{fail}");
        if fail.contains("5m") {
            assert_eq!(error.retry_delay(), Some(Duration::from_secs(300)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pace_and_delay_are_respected() {
    let scenario_file = ScenarioFile::new(
        "pace: 100ms\nturns:\n  - { delay: 30s, think: a b, say: c d e, finish: length }\n",
    );
    let start = tokio::time::Instant::now();
    let response = scenario_file.call_model(&request(vec![user("Hi")])).await.0.unwrap();
    assert_eq!(response.finish, FinishReason::Length);
    assert!(start.elapsed() >= Duration::from_millis(30_500), "{:?}", start.elapsed());
}

#[tokio::test]
async fn scenario_edits_take_effect_immediately() {
    let scenario_file = ScenarioFile::new("turns:\n  - say: before\n");
    let (models, model) = (Models::new(options()), definition(&scenario_file.file()));
    assert_eq!(call_model(&models, &model, &request(vec![user("Hi")])).await.0.unwrap().text, "before");
    std::fs::write(scenario_file.file(), "turns:\n  - say: after\n").unwrap();
    assert_eq!(call_model(&models, &model, &request(vec![user("Hi")])).await.0.unwrap().text, "after");
}
