//! The tools of an agent.

use std::time::Duration;

use remuda_domain::{
    RunInput, RunState, ToolCallId, execution::BackendKind, run::ToolsInput, tool::ToolCall,
};
use serde_json::json;

use crate::{
    harness::Harness,
    inspect::statuses_and_codes,
    model_server::{ModelServer, call, say},
};

const CALLS_BASH: &str = r#"
turns:
  - { when: { turn: 1 }, call: [{ tool: Bash, arguments: { command: echo x >> made } }] }
  - say: done
"#;

#[tokio::test]
async fn agent_has_the_tools_of_its_definition() {
    let harness = Harness::new(CALLS_BASH).await;
    let everything = [
        "Bash",
        "BashOutput",
        "Edit",
        "Glob",
        "Grep",
        "KillBash",
        "Read",
        "TodoWrite",
        "WebFetch",
        "WebSearch",
        "Write",
    ];
    let without =
        |gone: &[&str]| -> Vec<&str> { everything.into_iter().filter(|name| !gone.contains(name)).collect() };
    let cases = [
        ("description: x", everything.to_vec()),
        ("tools: { native: [Read, Glob] }", vec!["Glob", "Read"]),
        ("tools: { native: [] }", vec![]),
        ("tools: { skills: ['*'] }", vec![]),
        ("tools: { native: ['Web*', Read] }", vec!["Read", "WebFetch", "WebSearch"]),
        ("disallowed: [Bash]", without(&["Bash"])),
        (
            "disallowed: { native: ['Bash*', 'Web*ch'] }",
            without(&["Bash", "BashOutput", "WebFetch", "WebSearch"]),
        ),
        ("disallowed: { native: ['*'] }", vec![]),
        ("tools: { native: [Read, Bash] }\ndisallowed: { native: [Bash] }", vec!["Read"]),
    ];
    for (frontmatter, expected) in cases {
        harness.write_agent(frontmatter);
        let before = harness.read("made").len();
        let run = harness.run_message("go").await;
        assert_eq!(run.state, RunState::Completed, "{frontmatter}: {:?}", run.failure);
        let request = harness.requests(run.id).await.remove(0);
        assert_eq!(harness.offered(&request).await, expected, "{frontmatter}");
        // A tool that is not offered is not executed, even if the model calls it.
        let may = expected.contains(&"Bash");
        assert_eq!(
            statuses_and_codes(&run),
            [if may { "completed" } else { "failed unknown_tool" }],
            "{frontmatter}"
        );
        assert_eq!(harness.read("made").len() > before, may, "{frontmatter}");
    }
}

#[tokio::test]
async fn session_without_execution_has_no_tools() {
    let cases = [
        ("kind: chat", None, false),
        ("kind: chat", Some(BackendKind::Local), false),
        ("kind: project", None, true),
        ("kind: project", Some(BackendKind::None), false),
        ("execution: { backend: none }", None, false),
        ("execution: { backend: none }", Some(BackendKind::Local), true),
        ("execution: { backend: local }", None, true),
    ];
    for (settings, session, expected) in cases {
        let mut harness = Harness::new(CALLS_BASH).await;
        harness.write(".openharness/settings.yaml", &format!("default_agent: tested\n{settings}\n"));
        harness.write(".openharness/skills/greet/SKILL.md", "Say hello.\n");
        harness.session = harness.new_session(session).await;
        let run = harness.run_message("go").await;
        assert_eq!(run.state, RunState::Completed, "{settings} {session:?}: {:?}", run.failure);
        let request = harness.requests(run.id).await.remove(0);
        assert_eq!(!harness.offered(&request).await.is_empty(), expected, "{settings} {session:?}");
        assert_eq!(harness.read("made").is_empty(), !expected, "{settings} {session:?}");
        assert_eq!(
            harness.content(request.system).await.contains("greet"),
            expected,
            "{settings} {session:?}"
        );
    }
}

#[tokio::test]
async fn missing_backend_fails_the_run() {
    let harness = Harness::new(CALLS_BASH).await;
    harness.write(".openharness/settings.yaml", "default_agent: tested\nexecution: { backend: docker }\n");
    let run = harness.run_message("go").await;
    assert_eq!(run.state, RunState::Failed);
    assert_eq!(harness.model_call_count(), 0);
    assert_eq!(harness.transcript().await, ["user: go"]);
}

#[tokio::test]
async fn image_result_is_sent_as_an_image() {
    let harness = Harness::new("turns: [{ say: unused }]").await;
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";
    std::fs::write(harness.directory.path().join("dot.png"), png).unwrap();
    let read = json!({ "file_path": "dot.png" });
    let server =
        ModelServer::start(&harness, vec![call("Read", &read), say("A dot."), say("Goodbye.")]).await;
    let run = harness.run_message("what is it?").await;
    assert_eq!(run.answer.as_deref(), Some("A dot."), "{:?}", run.failure);
    harness.run_message("bye").await;
    for body in &server.requests()[1..] {
        let messages = body["messages"].as_array().unwrap();
        let result = messages.iter().position(|message| message["role"] == "tool").unwrap();
        let text = messages[result]["content"].as_str().unwrap();
        assert!(text.contains("image/png") && !text.contains("iVBORw0KGgo"), "{text}");
        let image = &messages[result + 1]["content"][0];
        let url = image["image_url"]["url"].as_str().unwrap();
        assert!(url.starts_with("data:image/png;base64,iVBORw0KGgo"), "{image}");
    }
}

#[tokio::test]
async fn recorded_tool_calls_of_the_user_are_sent_as_text() {
    let harness = Harness::new("turns: [{ say: '{{question}}' }]").await;
    let call = |command: &str| ToolCall {
        id: ToolCallId::new(),
        tool: "Bash".into(),
        arguments: json!({ "command": command }),
        parallel: false,
        timeout: None,
    };
    for record in [true, false] {
        let calls = vec![call("echo from the user"), call("exit 4")];
        let input = RunInput::Tools(ToolsInput { calls, continue_on_error: true, record });
        harness.submit_input(input, Duration::from_secs(60)).await;
        assert_eq!(harness.execute().await.state, RunState::Completed);
    }
    let run = harness.run_message("what did I do?").await;
    let answer = run.answer.unwrap();
    assert!(answer.contains("called outside of this conversation"), "{answer}");
    assert_eq!(answer.matches("\nfrom the user").count(), 1, "only what was recorded: {answer}");
    assert!(answer.contains("exit_code: 4") && answer.ends_with("what did I do?"), "{answer}");
    harness.assert_results_complete().await;
}
