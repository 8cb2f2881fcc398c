//! What an agent may use.

use std::time::Duration;

use remuda_domain::{
    RunInput, RunState, ToolCallId, execution::BackendKind, run::ToolsInput, tool::ToolCall,
};
use serde_json::json;

use crate::{
    lab::Lab,
    look::verdicts,
    model_server::{ModelServer, call, say},
};

const CALLS_BASH: &str = r#"
turns:
  - { when: { turn: 1 }, call: [{ tool: Bash, arguments: { command: echo x >> made } }] }
  - say: done
"#;

#[tokio::test]
async fn an_agent_has_the_tools_that_its_definition_gives() {
    let lab = Lab::new(CALLS_BASH).await;
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
        ("disallowed: [Bash]", without(&["Bash"])),
        (
            "disallowed: { native: ['Bash*', 'Web*ch'] }",
            without(&["Bash", "BashOutput", "WebFetch", "WebSearch"]),
        ),
        ("disallowed: { native: ['*'] }", vec![]),
        ("tools: { native: [Read, Bash] }\ndisallowed: { native: [Bash] }", vec!["Read"]),
    ];
    for (frontmatter, expected) in cases {
        lab.write_agent(frontmatter);
        let before = lab.read("made").len();
        let run = lab.ask("go").await;
        assert_eq!(run.state, RunState::Completed, "{frontmatter}: {:?}", run.failure);
        let request = lab.requests(run.id).await.remove(0);
        assert_eq!(lab.offered(&request).await, expected, "{frontmatter}");
        // What is not offered is not made, even if it is asked for.
        let may = expected.contains(&"Bash");
        assert_eq!(verdicts(&run), [if may { "completed" } else { "failed unknown_tool" }], "{frontmatter}");
        assert_eq!(lab.read("made").len() > before, may, "{frontmatter}");
    }
}

#[tokio::test]
async fn where_nothing_is_executed_there_are_no_tools() {
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
        let mut lab = Lab::new(CALLS_BASH).await;
        lab.write(".openharness/settings.yaml", &format!("default_agent: tested\n{settings}\n"));
        lab.write(".openharness/skills/greet/SKILL.md", "Say hello.\n");
        lab.session = lab.new_session(session).await;
        let run = lab.ask("go").await;
        assert_eq!(run.state, RunState::Completed, "{settings} {session:?}: {:?}", run.failure);
        let request = lab.requests(run.id).await.remove(0);
        assert_eq!(!lab.offered(&request).await.is_empty(), expected, "{settings} {session:?}");
        assert_eq!(lab.read("made").is_empty(), !expected, "{settings} {session:?}");
        assert_eq!(lab.content(request.system).await.contains("greet"), expected, "{settings} {session:?}");
    }
}

#[tokio::test]
async fn a_backend_that_the_worker_does_not_have_ends_the_run() {
    let lab = Lab::new(CALLS_BASH).await;
    lab.write(".openharness/settings.yaml", "default_agent: tested\nexecution: { backend: docker }\n");
    let run = lab.ask("go").await;
    assert_eq!(run.state, RunState::Failed);
    assert_eq!(lab.questions(), 0);
    assert_eq!(lab.transcript().await, ["user: go"]);
}

#[tokio::test]
async fn a_picture_that_was_read_is_seen() {
    let lab = Lab::new("turns: [{ say: unused }]").await;
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";
    std::fs::write(lab.directory.path().join("dot.png"), png).unwrap();
    let read = json!({ "file_path": "dot.png" });
    let server = ModelServer::start(&lab, vec![call("Read", &read), say("A dot."), say("Goodbye.")]).await;
    let run = lab.ask("what is it?").await;
    assert_eq!(run.answer.as_deref(), Some("A dot."), "{:?}", run.failure);
    lab.ask("bye").await;
    for body in &server.asked()[1..] {
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
async fn calls_that_the_user_made_are_told_as_a_story() {
    let lab = Lab::new("turns: [{ say: '{{question}}' }]").await;
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
        lab.submit_input(input, Duration::from_secs(60)).await;
        assert_eq!(lab.execute().await.state, RunState::Completed);
    }
    let run = lab.ask("what did I do?").await;
    let answer = run.answer.unwrap();
    assert!(answer.contains("called outside of this conversation"), "{answer}");
    assert_eq!(answer.matches("\nfrom the user").count(), 1, "only what was recorded: {answer}");
    assert!(answer.contains("exit_code: 4") && answer.ends_with("what did I do?"), "{answer}");
    lab.assert_complete().await;
}
