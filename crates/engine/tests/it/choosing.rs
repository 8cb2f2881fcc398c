//! Who answers, and with which model.

use remuda_domain::{Run, RunState};

use crate::{
    lab::{Installation, Lab},
    look::{code, verdicts},
};

/// Says which agent was asked.
const WHO: &str = r#"
turns:
  - { when: { system_contains: You are tested. }, say: tested }
  - { when: { system_contains: You are second. }, say: second }
  - { when: { system_contains: You help with whatever }, say: assistant }
"#;

async fn lab() -> Lab {
    let lab = Lab::new(WHO).await;
    lab.write(".openharness/agents/second.md", "---\nmodel: workspace/m\n---\nYou are second.\n");
    lab.write(".openharness/agents/helper.md", "---\nmodel: workspace/m\nmode: subagent\n---\nYou help.\n");
    lab.write(
        ".openharness/agents/broken.md",
        "---\nmodel: workspace/m\nmode: leader\n---\nYou are broken.\n",
    );
    lab
}

async fn ask(lab: &Lab, agent: Option<&str>) -> Run {
    lab.submit_to(agent, "who are you?").await;
    lab.execute().await
}

#[tokio::test]
async fn the_message_beats_the_session_and_that_the_workspace() {
    let lab = lab().await;
    for (message, session, expected) in [
        (None, None, "tested"),
        (None, Some("second"), "second"),
        (Some("tested"), Some("second"), "tested"),
        (Some("second"), None, "second"),
        (Some("assistant"), Some("second"), "assistant"),
    ] {
        let lab = lab.with_session(session, None).await;
        let run = ask(&lab, message).await;
        assert_eq!(run.answer.as_deref(), Some(expected), "{message:?} {session:?}: {:?}", run.failure);
        // Whoever answered leads the session from here on.
        assert_eq!(lab.session().await.agent.as_deref(), Some(expected));
        assert_eq!(ask(&lab, None).await.answer.as_deref(), Some(expected));
        let agents: Vec<_> = lab.messages().await.into_iter().map(|message| message.agent.unwrap()).collect();
        assert_eq!(agents, [expected; 4]);
    }
    lab.write(".openharness/settings.yaml", "{}\n");
    assert_eq!(ask(&lab, None).await.answer.as_deref(), Some("assistant"), "without a default agent");
}

#[tokio::test]
async fn who_cannot_lead_is_refused_with_a_reason() {
    let lab = lab().await;
    for (agent, expected, hint) in [
        ("nobody", "agent_not_found", "tested"),
        ("helper", "agent_not_allowed", "subagent"),
        ("explore", "agent_not_allowed", "subagent"),
        ("broken", "agent_not_found", ".openharness/agents/broken.md:3"),
    ] {
        let run = ask(&lab, Some(agent)).await;
        assert_eq!((run.state, code(&run)), (RunState::Failed, expected), "{agent}");
        let message = run.failure.clone().unwrap().message;
        assert!(message.contains(agent) && message.contains(hint), "{message}");
        let names = lab.event_names(run.id).await;
        assert_eq!(names, ["run.queued", "run.started", "message.completed", "run.failed"], "{agent}");
        // It leads nothing, and the session goes on.
        assert_eq!(ask(&lab, None).await.answer.as_deref(), Some("tested"));
    }
    assert_eq!(lab.questions(), 4);
    let said = lab.transcript().await;
    assert_eq!(said.len(), 12, "what the user said is kept: {said:?}");
}

/// Three models, each of which says its name.
async fn three_models(default_model: Option<&str>) -> Lab {
    let lab =
        Lab::installed("turns: [{ say: unused }]", Installation { default_model, ..Default::default() })
            .await;
    let mut models = String::new();
    for name in ["a", "b", "c"] {
        lab.write(&format!(".openharness/{name}.yaml"), &format!("turns: [{{ say: {name} }}]\n"));
        models.push_str(&format!("{name}: {{ provider: scripted, name: ../{name}.yaml }}\n"));
    }
    lab.write(".openharness/models/m.yaml", &models);
    lab
}

fn write_model(lab: &Lab, model: Option<&str>) {
    let model = model.map_or_else(String::new, |model| format!("model: {model}\n"));
    lab.write(
        ".openharness/agents/tested.md",
        &format!("---\n{model}description: x\n---\nYou are tested.\n"),
    );
}

#[tokio::test]
async fn the_session_s_model_beats_the_agent_s_and_that_the_installation_s() {
    for (session, agent, default, expected) in [
        (Some("workspace/b"), Some("workspace/a"), Some("workspace/c"), "b"),
        (Some("b"), Some("workspace/a"), None, "b"),
        (None, Some("workspace/a"), Some("workspace/c"), "a"),
        (None, Some("a"), None, "a"),
        (None, None, Some("workspace/c"), "c"),
    ] {
        let lab = three_models(default).await;
        write_model(&lab, agent);
        let lab = lab.with_session(None, session).await;
        let run = lab.ask("hello").await;
        assert_eq!(
            run.answer.as_deref(),
            Some(expected),
            "{session:?} {agent:?} {default:?}: {:?}",
            run.failure
        );
        let request = lab.requests(run.id).await.remove(0);
        assert_eq!(request.model.to_string(), format!("workspace/{expected}"));
    }
}

#[tokio::test]
async fn without_a_model_there_is_no_answer() {
    let lab = three_models(None).await;
    write_model(&lab, None);
    let run = lab.ask("several, and nothing says which").await;
    assert_eq!(code(&run), "missing_model");
    let run = lab.with_session(None, Some("workspace/d")).await.ask("an unknown one").await;
    assert_eq!(code(&run), "model_not_found");
    let message = run.failure.unwrap().message;
    assert!(message.contains("workspace/d") && message.contains("workspace/a, workspace/b"), "{message}");
    lab.write(".openharness/models/m.yaml", "b: { provider: scripted, name: ../b.yaml }\n");
    assert_eq!(lab.ask("the only one").await.answer.as_deref(), Some("b"));
    lab.remove(".openharness/models/m.yaml");
    let run = lab.ask("none").await;
    assert_eq!(code(&run), "missing_model");
    assert!(run.failure.unwrap().message.contains(".openharness/models"));
}

#[tokio::test]
async fn an_alias_brings_its_parameters() {
    let lab = three_models(None).await;
    let settings = "default_agent: tested\nmodels:\n  quick: { model_ref: workspace/b, temperature: 0.5, max_tokens: 9 }\n";
    lab.write(".openharness/settings.yaml", settings);
    for (session, agent, temperature) in [
        (None, "model: quick", 0.5),
        (Some("quick"), "model: workspace/a", 0.5),
        (Some("quick"), "temperature: 0.1", 0.1),
        (None, "model: quick\ntemperature: 0.1", 0.1),
        (None, "model: { model_ref: quick, temperature: 0.2 }", 0.2),
    ] {
        lab.write(".openharness/agents/tested.md", &format!("---\n{agent}\n---\nYou are tested.\n"));
        let lab = lab.with_session(None, session).await;
        let run = lab.ask("hello").await;
        assert_eq!(run.answer.as_deref(), Some("b"), "{session:?} {agent}: {:?}", run.failure);
        let parameters = lab.requests(run.id).await.remove(0).parameters;
        assert_eq!(
            (parameters.temperature, parameters.max_tokens),
            (Some(temperature), Some(9)),
            "{session:?} {agent}"
        );
    }
}

#[tokio::test]
async fn a_model_that_is_gone_ends_the_run_with_what_was_done() {
    let lab = Lab::new(
        "turns:\n  - call: [{ tool: Bash, arguments: { command: echo done >> made } }]\n  - say: done\n",
    )
    .await;
    let id = lab.submit("go").await;
    // The question, the answer, the call announced, and its result.
    assert!(lab.die_after(4).await);
    let models = lab.read(".openharness/models/m.yaml");
    lab.remove(".openharness/models/m.yaml");
    let run = lab.execute().await;
    assert_eq!((run.id, run.state, code(&run)), (id, RunState::Failed, "model_not_found"));
    assert_eq!(verdicts(&run), ["completed"]);
    lab.write(".openharness/models/m.yaml", &models);
    let next = lab.ask("again").await;
    assert_eq!(next.state, RunState::Completed, "{:?}", next.failure);
    let sent = lab.rebuild(&lab.requests(next.id).await[0]).await;
    crate::look::assert_complete(sent.iter().map(|message| (message.role, message.parts.as_slice())));
    let roles: Vec<_> = sent.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "user"], "the user is quoted once");
}
