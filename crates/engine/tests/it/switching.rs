//! Agents that hand their session over.

use remuda_domain::{EventBody, RunState};

use crate::{lab::Lab, look::verdicts};

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

async fn lab() -> Lab {
    let lab = Lab::new("turns: []").await;
    lab.write("program", "old\n");
    lab.write_other("planner", "switch: [builder]\ntools: { native: [Read] }", PLANNER);
    lab.write_other("builder", "switch: [planner]\nsystem_reminder: Now you build.", BUILDER);
    lab.write_other("helper", "mode: subagent", "otherwise: { say: hm }");
    lab.write(".openharness/settings.yaml", "default_agent: planner\n");
    lab
}

#[tokio::test]
async fn another_agent_goes_on_with_everything_that_was_said() {
    let lab = lab().await;
    let run = lab.ask("please").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Built.")),
        "{:?}",
        run.failure
    );
    assert_eq!(lab.read("built"), "built\n");
    let agents: Vec<String> = lab.requests(run.id).await.into_iter().map(|request| request.agent).collect();
    assert_eq!(agents, ["planner", "planner", "builder", "builder"]);
    let models: Vec<String> =
        lab.requests(run.id).await.iter().map(|request| request.model.to_string()).collect();
    assert_eq!(models[2], "workspace/builder", "an agent brings its model");
    let switched = lab.events().await.into_iter().filter_map(|event| match event.body {
        EventBody::AgentSwitched { from, to, .. } => Some((from, to)),
        _ => None,
    });
    assert_eq!(switched.collect::<Vec<_>>(), [("planner".to_owned(), "builder".to_owned())]);
    // The reminder comes once, with the result of the switch.
    let told = lab.transcript().await.iter().filter(|line| line.contains("Now you build.")).count();
    assert_eq!(told, 1);
    // The session is the builder's from here on.
    let next = lab.ask("and?").await;
    assert_eq!(next.answer.as_deref(), Some("The builder again."));
    lab.assert_complete().await;
}

#[tokio::test]
async fn dying_after_any_commit_keeps_who_acts() {
    let whole = lab().await;
    whole.ask("please").await;
    let (transcript, commits) = (whole.transcript().await, whole.transport.published());
    for commit in 1..=commits {
        let lab = lab().await;
        let id = lab.submit("please").await;
        assert!(lab.die_after(commit).await, "it was to die after commit {commit}");
        let run = lab.execute().await;
        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        let told = lab.transcript().await;
        if !told.iter().any(|line| line.contains("interrupted")) {
            assert_eq!(told, transcript, "after commit {commit}");
        }
        let switched = lab.events().await.iter().filter(|it| it.body.name() == "agent.switched").count();
        assert_eq!(switched, 1, "after commit {commit} of {id}");
    }
}

#[tokio::test]
async fn a_switch_that_is_not_allowed_is_a_result() {
    for (frontmatter, target, code) in [
        ("switch: [builder]", "planner", "agent_not_allowed"),
        ("switch: [builder]", "helper", "agent_not_allowed"),
        ("switch: [builder]", "nobody", "agent_not_allowed"),
        ("switch: [builder, missing]", "missing", "agent_not_found"),
        ("switch: [builder, helper]", "helper", "agent_not_allowed"),
        ("switch: [builder]\npolicy: { max_switches: 0 }", "builder", "switch_limit"),
    ] {
        let lab = lab().await;
        let scenario = format!(
            "turns:\n  - {{ when: {{ turn: 1 }}, call: [{{ tool: AgentSwitch, arguments: {{ agent: {target} }} }}] }}\n\
             otherwise: {{ say: \"I stay: {{{{last_tool_result}}}}\" }}"
        );
        lab.write_other("planner", frontmatter, &scenario);
        let run = lab.ask("please").await;
        assert_eq!(run.state, RunState::Completed, "{target}: {:?}", run.failure);
        assert_eq!(verdicts(&run), [format!("failed {code}")], "{target}");
        assert!(run.answer.unwrap().starts_with("I stay"), "{target}");
        lab.assert_complete().await;
    }
}

#[tokio::test]
async fn only_the_first_of_two_switches_counts_and_two_agents_end_their_dance() {
    let lab = lab().await;
    let twice = "turns:\n  - { when: { turn: 1 }, call: [{ tool: AgentSwitch, arguments: { agent: builder } }, \
                 { tool: AgentSwitch, arguments: { agent: tested } }] }\notherwise: { say: no }";
    lab.write_other("planner", "switch: [builder, tested]", twice);
    lab.write_other("builder", "", "otherwise: { say: I am it. }");
    let run = lab.ask("please").await;
    assert_eq!(verdicts(&run), ["completed", "failed switch_limit"]);
    assert_eq!(run.answer.as_deref(), Some("I am it."));

    let dance = self::lab().await;
    let to = |agent: &str| {
        format!(
            "turns:\n  - {{ when: {{ may_call: true, tool_failed: false }}, repeat: 100, call: [{{ tool: AgentSwitch, arguments: \
             {{ agent: {agent} }} }}] }}\n  - {{ when: {{ turn: 1 }}, call: [{{ tool: AgentSwitch, arguments: {{ agent: {agent} }} }}] }}\n\
             otherwise: {{ say: \"Enough.\" }}"
        )
    };
    dance.write_other("planner", "switch: [builder]\npolicy: { max_switches: 6 }", &to("builder"));
    dance.write_other("builder", "switch: [planner]\npolicy: { max_switches: 6 }", &to("planner"));
    let run = dance.ask("dance").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Enough.")),
        "{:?}",
        run.failure
    );
    assert_eq!(run.outcomes.len(), 7);
}

/// The one who takes over has a smaller window, so what was said is summed up first. Whoever dies in between, it is the new one who goes on.
#[tokio::test]
async fn a_switch_is_not_forgotten_when_room_has_to_be_made() {
    async fn start() -> Lab {
        let lab = lab().await;
        lab.write("program", &"A long line of an old program.\n".repeat(400));
        lab.write(".openharness/builder.yaml", "conversations:\n  - { on: { system_contains: You sum up }, turns: [], otherwise: { say: So far so good. } }\notherwise: { say: Built. }");
        lab.write(
            ".openharness/models/builder.yaml",
            "builder: { provider: scripted, name: ../builder.yaml, context_window: 3000, max_output_tokens: 200 }\n",
        );
        lab.write(
            ".openharness/agents/builder.md",
            "---\nmodel: workspace/builder\ntools: { native: [Read] }\n---\nYou build.\n",
        );
        lab
    }
    let whole = start().await;
    let run = whole.ask("please").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Built.")),
        "{:?}",
        run.failure
    );
    assert!(whole.transcript().await.iter().any(|line| line.contains("So far so good.")), "it was summed up");
    let commits = whole.transport.published();
    for commit in 1..=commits {
        let lab = start().await;
        let id = lab.submit("please").await;
        assert!(lab.die_after(commit).await, "it was to die after commit {commit}");
        let run = lab.execute().await;
        assert_eq!(run.answer.as_deref(), Some("Built."), "after commit {commit}: {:?}", run.failure);
        let agents: Vec<String> = lab.requests(id).await.into_iter().map(|request| request.agent).collect();
        let first = agents.iter().position(|agent| agent == "builder").unwrap();
        assert!(agents[first..].iter().all(|agent| agent == "builder"), "after commit {commit}: {agents:?}");
    }
}
