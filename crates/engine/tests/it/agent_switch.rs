//! Agent switches within a session.

use remuda_domain::{EventBody, RunState};

use crate::{harness::Harness, inspect::statuses_and_codes};

const PLANNER: &str = r#"
turns:
  - when: { turn: 1 }
    say: I plan.
    call:
      - { tool: Read, arguments: { file_path: program } }
  - when: { turn: 2 }
    say: You build.
    call: [{ tool: AgentSwitch, arguments: { agent: builder } }]
otherwise: { say: "The planner again: {{last_tool_result}}" }
"#;

const BUILDER: &str = r#"
turns:
  - when: { turn: 3 }
    say: I build.
    call: [{ tool: Bash, arguments: { command: "echo built > built" } }]
  - when: { turn: 4 }
    say: Built.
otherwise: { say: "The builder again." }
"#;

async fn harness() -> Harness {
    let harness = Harness::new("turns: []").await;
    harness.write("program", "old\n");
    harness.write_agent_with_model("planner", "switch: [builder]\ntools: { native: [Read] }", PLANNER);
    harness.write_agent_with_model("builder", "switch: [planner]\nsystem_reminder: Now you build.", BUILDER);
    harness.write_agent_with_model("helper", "mode: subagent", "otherwise: { say: hm }");
    harness.write(".openharness/settings.yaml", "default_agent: planner\n");
    harness
}

#[tokio::test]
async fn new_agent_continues_with_the_whole_transcript() {
    let harness = harness().await;
    let run = harness.run_message("please").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Built.")),
        "{:?}",
        run.failure
    );
    assert_eq!(harness.read("built"), "built\n");
    let agents: Vec<String> =
        harness.requests(run.id).await.into_iter().map(|request| request.agent).collect();
    assert_eq!(agents, ["planner", "planner", "builder", "builder"]);
    let models: Vec<String> =
        harness.requests(run.id).await.iter().map(|request| request.model.to_string()).collect();
    assert_eq!(models[2], "workspace/builder", "an agent brings its model");
    let switched = harness.events().await.into_iter().filter_map(|event| match event.body {
        EventBody::AgentSwitched { from, to, .. } => Some((from, to)),
        _ => None,
    });
    assert_eq!(switched.collect::<Vec<_>>(), [("planner".to_owned(), "builder".to_owned())]);
    // The reminder appears once, in the result of the switch.
    let reminders = harness.transcript().await.iter().filter(|line| line.contains("Now you build.")).count();
    assert_eq!(reminders, 1);
    // The builder leads the session from now on.
    let next = harness.run_message("and?").await;
    assert_eq!(next.answer.as_deref(), Some("The builder again."));
    harness.assert_results_complete().await;
}

#[tokio::test]
async fn agent_switch_survives_a_crash_after_any_commit() {
    let whole = harness().await;
    whole.run_message("please").await;
    let (transcript, commits) = (whole.transcript().await, whole.transport.published());
    for commit in 1..=commits {
        let harness = harness().await;
        let id = harness.submit("please").await;
        assert!(harness.killed_after_commit(commit).await, "expected a crash after commit {commit}");
        let run = harness.execute().await;
        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        let lines = harness.transcript().await;
        if !lines.iter().any(|line| line.contains("interrupted")) {
            assert_eq!(lines, transcript, "after commit {commit}");
        }
        let switched = harness.events().await.iter().filter(|it| it.body.name() == "agent.switched").count();
        assert_eq!(switched, 1, "after commit {commit} of {id}");
    }
}

#[tokio::test]
async fn forbidden_switch_fails_the_call_only() {
    for (frontmatter, target, code) in [
        ("switch: [builder]", "planner", "agent_not_allowed"),
        ("switch: [builder]", "helper", "agent_not_allowed"),
        ("switch: [builder]", "nobody", "agent_not_allowed"),
        ("switch: [builder, missing]", "missing", "agent_not_found"),
        ("switch: [builder, helper]", "helper", "agent_not_allowed"),
        ("switch: [builder]\npolicy: { max_switches: 0 }", "builder", "switch_limit"),
    ] {
        let harness = harness().await;
        let scenario = format!(
            "turns:\n  - {{ when: {{ turn: 1 }}, call: [{{ tool: AgentSwitch, arguments: {{ agent: {target} }} }}] }}\n\
             otherwise: {{ say: \"I stay: {{{{last_tool_result}}}}\" }}"
        );
        harness.write_agent_with_model("planner", frontmatter, &scenario);
        let run = harness.run_message("please").await;
        assert_eq!(run.state, RunState::Completed, "{target}: {:?}", run.failure);
        assert_eq!(statuses_and_codes(&run), [format!("failed {code}")], "{target}");
        assert!(run.answer.unwrap().starts_with("I stay"), "{target}");
        harness.assert_results_complete().await;
    }
}

#[tokio::test]
async fn only_the_first_of_two_switches_counts_and_switches_are_limited() {
    let harness = harness().await;
    let twice = "turns:\n  - { when: { turn: 1 }, call: [{ tool: AgentSwitch, arguments: { agent: builder } }, \
                 { tool: AgentSwitch, arguments: { agent: tested } }] }\notherwise: { say: no }";
    harness.write_agent_with_model("planner", "switch: [builder, tested]", twice);
    harness.write_agent_with_model("builder", "", "otherwise: { say: I am it. }");
    let run = harness.run_message("please").await;
    assert_eq!(statuses_and_codes(&run), ["completed", "failed switch_limit"]);
    assert_eq!(run.answer.as_deref(), Some("I am it."));

    let switching = self::harness().await;
    let to = |agent: &str| {
        format!(
            "turns:\n  - {{ when: {{ may_call: true, tool_failed: false }}, repeat: 100, call: [{{ tool: AgentSwitch, arguments: \
             {{ agent: {agent} }} }}] }}\n  - {{ when: {{ turn: 1 }}, call: [{{ tool: AgentSwitch, arguments: {{ agent: {agent} }} }}] }}\n\
             otherwise: {{ say: \"Enough.\" }}"
        )
    };
    switching.write_agent_with_model(
        "planner",
        "switch: [builder]\npolicy: { max_switches: 6 }",
        &to("builder"),
    );
    switching.write_agent_with_model(
        "builder",
        "switch: [planner]\npolicy: { max_switches: 6 }",
        &to("planner"),
    );
    let run = switching.run_message("dance").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Enough.")),
        "{:?}",
        run.failure
    );
    assert_eq!(run.outcomes.len(), 7);
}

/// The new agent has a smaller window, so the transcript is compacted first. After a crash in between, the new agent
/// still takes over.
#[tokio::test]
async fn agent_switch_survives_a_crash_during_compaction() {
    async fn start() -> Harness {
        let harness = harness().await;
        harness.write("program", &"A long line of an old program.\n".repeat(400));
        harness.write(".openharness/builder.yaml", "conversations:\n  - { on: { system_contains: You sum up }, turns: [], otherwise: { say: So far so good. } }\notherwise: { say: Built. }");
        harness.write(
            ".openharness/models/builder.yaml",
            "builder: { provider: scripted, name: ../builder.yaml, context_window: 3000, max_output_tokens: 200 }\n",
        );
        harness.write(
            ".openharness/agents/builder.md",
            "---\nmodel: workspace/builder\ntools: { native: [Read] }\n---\nYou build.\n",
        );
        harness
    }
    let whole = start().await;
    let run = whole.run_message("please").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Built.")),
        "{:?}",
        run.failure
    );
    assert!(
        whole.transcript().await.iter().any(|line| line.contains("So far so good.")),
        "the transcript was summarized"
    );
    let commits = whole.transport.published();
    for commit in 1..=commits {
        let harness = start().await;
        let id = harness.submit("please").await;
        assert!(harness.killed_after_commit(commit).await, "expected a crash after commit {commit}");
        let run = harness.execute().await;
        assert_eq!(run.answer.as_deref(), Some("Built."), "after commit {commit}: {:?}", run.failure);
        let agents: Vec<String> =
            harness.requests(id).await.into_iter().map(|request| request.agent).collect();
        let first = agents.iter().position(|agent| agent == "builder").unwrap();
        assert!(agents[first..].iter().all(|agent| agent == "builder"), "after commit {commit}: {agents:?}");
    }
}
