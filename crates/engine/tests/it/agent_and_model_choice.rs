//! Which agent and which model a run uses.

use remuda_domain::{Run, RunState};

use crate::{
    harness::{Harness, OperatorSettings},
    inspect::{code, statuses_and_codes},
};

/// Each agent responds with its name.
const WHO: &str = r#"
turns:
  - { when: { system_contains: You are tested. }, say: tested }
  - { when: { system_contains: You are second. }, say: second }
  - { when: { system_contains: You help with whatever }, say: assistant }
"#;

async fn harness() -> Harness {
    let harness = Harness::new(WHO).await;
    harness.write(".openharness/agents/second.md", "---\nmodel: workspace/m\n---\nYou are second.\n");
    harness
        .write(".openharness/agents/helper.md", "---\nmodel: workspace/m\nmode: subagent\n---\nYou help.\n");
    harness.write(
        ".openharness/agents/broken.md",
        "---\nmodel: workspace/m\nmode: leader\n---\nYou are broken.\n",
    );
    harness
}

async fn run_with_agent(harness: &Harness, agent: Option<&str>) -> Run {
    harness.submit_to(agent, "who are you?").await;
    harness.execute().await
}

#[tokio::test]
async fn agent_of_the_message_overrides_session_and_workspace() {
    let harness = harness().await;
    for (message, session, expected) in [
        (None, None, "tested"),
        (None, Some("second"), "second"),
        (Some("tested"), Some("second"), "tested"),
        (Some("second"), None, "second"),
        (Some("assistant"), Some("second"), "assistant"),
    ] {
        let harness = harness.with_session(session, None).await;
        let run = run_with_agent(&harness, message).await;
        assert_eq!(run.answer.as_deref(), Some(expected), "{message:?} {session:?}: {:?}", run.failure);
        // The agent that responded leads the session from now on.
        assert_eq!(harness.session().await.agent.as_deref(), Some(expected));
        assert_eq!(run_with_agent(&harness, None).await.answer.as_deref(), Some(expected));
        let agents: Vec<_> =
            harness.messages().await.into_iter().map(|message| message.agent.unwrap()).collect();
        assert_eq!(agents, [expected; 4]);
    }
    harness.write(".openharness/settings.yaml", "{}\n");
    assert_eq!(
        run_with_agent(&harness, None).await.answer.as_deref(),
        Some("assistant"),
        "without a default agent"
    );
}

#[tokio::test]
async fn agent_that_cannot_lead_is_refused_with_a_reason() {
    let harness = harness().await;
    for (agent, expected, hint) in [
        ("nobody", "agent_not_found", "tested"),
        ("helper", "agent_not_allowed", "subagent"),
        ("explore", "agent_not_allowed", "subagent"),
        ("broken", "agent_not_found", ".openharness/agents/broken.md:3"),
    ] {
        let run = run_with_agent(&harness, Some(agent)).await;
        assert_eq!((run.state, code(&run)), (RunState::Failed, expected), "{agent}");
        let message = run.failure.clone().unwrap().message;
        assert!(message.contains(agent) && message.contains(hint), "{message}");
        let names = harness.event_names(run.id).await;
        assert_eq!(names, ["run.queued", "run.started", "message.completed", "run.failed"], "{agent}");
        // The refused agent does not lead the session, and the session continues.
        assert_eq!(run_with_agent(&harness, None).await.answer.as_deref(), Some("tested"));
    }
    assert_eq!(harness.model_call_count(), 4);
    let transcript = harness.transcript().await;
    assert_eq!(transcript.len(), 12, "what the user said is kept: {transcript:?}");
}

/// Three models, each of which responds with its name.
async fn three_models(default_model: Option<&str>) -> Harness {
    let harness = Harness::with_settings(
        "turns: [{ say: unused }]",
        OperatorSettings { default_model, ..Default::default() },
    )
    .await;
    let mut models = String::new();
    for name in ["a", "b", "c"] {
        harness.write(&format!(".openharness/{name}.yaml"), &format!("turns: [{{ say: {name} }}]\n"));
        models.push_str(&format!("{name}: {{ provider: scripted, name: ../{name}.yaml }}\n"));
    }
    harness.write(".openharness/models/m.yaml", &models);
    harness
}

fn write_model(harness: &Harness, model: Option<&str>) {
    let model = model.map_or_else(String::new, |model| format!("model: {model}\n"));
    harness.write(
        ".openharness/agents/tested.md",
        &format!("---\n{model}description: x\n---\nYou are tested.\n"),
    );
}

#[tokio::test]
async fn model_of_the_session_overrides_agent_and_default() {
    for (session, agent, default, expected) in [
        (Some("workspace/b"), Some("workspace/a"), Some("workspace/c"), "b"),
        (Some("b"), Some("workspace/a"), None, "b"),
        (None, Some("workspace/a"), Some("workspace/c"), "a"),
        (None, Some("a"), None, "a"),
        (None, None, Some("workspace/c"), "c"),
    ] {
        let harness = three_models(default).await;
        write_model(&harness, agent);
        let harness = harness.with_session(None, session).await;
        let run = harness.run_message("hello").await;
        assert_eq!(
            run.answer.as_deref(),
            Some(expected),
            "{session:?} {agent:?} {default:?}: {:?}",
            run.failure
        );
        let request = harness.requests(run.id).await.remove(0);
        assert_eq!(request.model.to_string(), format!("workspace/{expected}"));
    }
}

#[tokio::test]
async fn run_without_a_model_fails() {
    let harness = three_models(None).await;
    write_model(&harness, None);
    let run = harness.run_message("several, and nothing says which").await;
    assert_eq!(code(&run), "missing_model");
    let run = harness.with_session(None, Some("workspace/d")).await.run_message("an unknown one").await;
    assert_eq!(code(&run), "model_not_found");
    let message = run.failure.unwrap().message;
    assert!(message.contains("workspace/d") && message.contains("workspace/a, workspace/b"), "{message}");
    harness.write(".openharness/models/m.yaml", "b: { provider: scripted, name: ../b.yaml }\n");
    assert_eq!(harness.run_message("the only one").await.answer.as_deref(), Some("b"));
    harness.remove(".openharness/models/m.yaml");
    let run = harness.run_message("none").await;
    assert_eq!(code(&run), "missing_model");
    assert!(run.failure.unwrap().message.contains(".openharness/models"));
}

#[tokio::test]
async fn model_alias_sets_its_parameters() {
    let harness = three_models(None).await;
    let settings = "default_agent: tested\nmodels:\n  quick: { model_ref: workspace/b, temperature: 0.5, max_tokens: 9 }\n";
    harness.write(".openharness/settings.yaml", settings);
    for (session, agent, temperature) in [
        (None, "model: quick", 0.5),
        (Some("quick"), "model: workspace/a", 0.5),
        (Some("quick"), "temperature: 0.1", 0.1),
        (None, "model: quick\ntemperature: 0.1", 0.1),
        (None, "model: { model_ref: quick, temperature: 0.2 }", 0.2),
    ] {
        harness.write(".openharness/agents/tested.md", &format!("---\n{agent}\n---\nYou are tested.\n"));
        let harness = harness.with_session(None, session).await;
        let run = harness.run_message("hello").await;
        assert_eq!(run.answer.as_deref(), Some("b"), "{session:?} {agent}: {:?}", run.failure);
        let parameters = harness.requests(run.id).await.remove(0).parameters;
        assert_eq!(
            (parameters.temperature, parameters.max_tokens),
            (Some(temperature), Some(9)),
            "{session:?} {agent}"
        );
    }
}

#[tokio::test]
async fn resumed_run_fails_if_its_model_was_removed_and_keeps_its_results() {
    let harness = Harness::new(
        "turns:\n  - call: [{ tool: Bash, arguments: { command: echo done >> made } }]\n  - say: done\n",
    )
    .await;
    let id = harness.submit("go").await;
    // Commits: model call, response, intent of the tool call, result.
    assert!(harness.killed_after_commit(4).await);
    let models = harness.read(".openharness/models/m.yaml");
    harness.remove(".openharness/models/m.yaml");
    let run = harness.execute().await;
    assert_eq!((run.id, run.state, code(&run)), (id, RunState::Failed, "model_not_found"));
    assert_eq!(statuses_and_codes(&run), ["completed"]);
    harness.write(".openharness/models/m.yaml", &models);
    let next = harness.run_message("again").await;
    assert_eq!(next.state, RunState::Completed, "{:?}", next.failure);
    let sent = harness.sent_messages(&harness.requests(next.id).await[0]).await;
    crate::inspect::assert_results_complete(
        sent.iter().map(|message| (message.role, message.parts.as_slice())),
    );
    let roles: Vec<_> = sent.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "user"], "the user is quoted once");
}
