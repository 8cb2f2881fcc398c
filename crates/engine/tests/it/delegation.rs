//! Delegation to sub-agents.

use remuda_domain::{
    EventBody, Run, RunState, SessionId,
    page::PageRequest,
    permission::{PermissionMode, SessionPermissions},
    run::ParkReason,
};
use remuda_store::RunFilter;

use crate::{harness::Harness, inspect::statuses_and_codes};

/// Delegates `width` times in one response.
pub(crate) fn leader(width: usize, targets: &str, more: &str) -> String {
    let call = |index: usize| {
        format!(
            "{{ tool: SubAgent, arguments: {{ subagent_type: {targets}, description: part {index}, prompt: do part {index}{more} }} }}"
        )
    };
    let calls: Vec<String> = (0..width).map(call).collect();
    format!(
        "turns:\n  - {{ when: {{ turn: 1 }}, say: \"Go.\", call: [{}] }}\notherwise: {{ say: \"All done: {{{{last_tool_result}}}}\" }}",
        calls.join(", ")
    )
}

pub(crate) async fn harness(frontmatter: &str, turns: &str) -> Harness {
    let harness = Harness::new("turns: []").await;
    harness.write_agent_with_model("lead", frontmatter, turns);
    harness.write(".openharness/settings.yaml", "default_agent: lead\n");
    harness
}

pub(crate) async fn all_runs(harness: &Harness) -> Vec<Run> {
    let page = PageRequest { size: 500, token: None };
    harness.store.list_runs(harness.tenant, &RunFilter::default(), &page).await.unwrap().items
}

pub(crate) async fn children(harness: &Harness, session: SessionId) -> Vec<remuda_domain::session::Session> {
    let page = PageRequest { size: 100, token: None };
    harness.store.list_child_sessions(harness.tenant, session, &page).await.unwrap().items
}

#[tokio::test]
async fn child_runs_in_its_own_session_and_returns_its_result() {
    let harness = harness("subagents: [helper]", &leader(1, "helper", "")).await;
    harness.write_agent_with_model(
        "helper",
        "mode: subagent\ntools: { native: [Read] }",
        "otherwise: { say: \"Found it.\" }",
    );
    let id = harness.submit("please").await;
    let grant = harness.claim().await;
    let execution = harness.engine.execute(&grant, &remuda_engine::RunControl::default()).await;
    let remuda_engine::Execution::Parked(_, parking) = &execution else {
        panic!("not parked: {execution:?}")
    };
    assert_eq!((parking.reason, parking.children.len(), parking.needed), (ParkReason::Children, 1, 1));
    harness.commit_execution(&grant, execution).await;
    assert_eq!(harness.run(id).await.state, RunState::Parked);

    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert!(run.answer.unwrap().contains("Found it."));
    let children = children(&harness, harness.session).await;
    assert_eq!(children.len(), 1);
    let child = &children[0];
    assert_eq!((child.agent.as_deref(), child.depth), (Some("helper"), 1));
    let runs = all_runs(&harness).await;
    let below = runs.iter().find(|run| run.session == child.id).unwrap();
    assert_eq!(below.parent, Some(id));
    let names: Vec<&str> = harness.events().await.iter().map(|event| event.body.name()).collect();
    let place =
        |name: &str| names.iter().position(|it| *it == name).unwrap_or_else(|| panic!("{name} in {names:?}"));
    let order = ["subagent.started", "run.parked", "run.resumed", "subagent.ended", "run.completed"];
    assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])), "{names:?}");
    harness.assert_results_complete().await;
}

/// One worker with one slot executes a tree of three levels, ten wide.
#[tokio::test]
async fn one_slot_completes_a_tree_of_depth_3_and_width_10() {
    let wide = "policy: { max_concurrent_subagents: 10 }";
    let harness = harness(&format!("subagents: [middle]\n{wide}"), &leader(10, "middle", "")).await;
    harness.write_agent_with_model(
        "middle",
        &format!("mode: subagent\nsubagents: [leaf]\n{wide}"),
        &leader(10, "leaf", ""),
    );
    harness.write_agent_with_model("leaf", "mode: subagent", "otherwise: { say: leaf }");
    let id = harness.submit("grow").await;
    let turns = harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let runs = all_runs(&harness).await;
    assert_eq!(runs.len(), 111);
    assert!(runs.iter().all(|run| run.state == RunState::Completed));
    // Leaves take one execution each, all others two: a parent resumes once, when all its children have ended.
    assert_eq!(turns, 100 + 2 * 11);
    assert_eq!(run.outcomes.len(), 10);
}

#[tokio::test]
async fn children_above_the_concurrency_limit_wait() {
    let harness = harness(
        "subagents: [helper]\npolicy: { max_concurrent_subagents: 2, max_subagents: 5 }",
        &leader(7, "helper", ""),
    )
    .await;
    harness.write_agent_with_model("helper", "mode: subagent", "otherwise: { say: ok }");
    let id = harness.submit("please").await;
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let mut statuses_and_codes = statuses_and_codes(&run);
    statuses_and_codes.sort();
    let mut expected = vec!["completed".to_owned(); 5];
    expected.extend(["failed delegation_limit".to_owned(), "failed delegation_limit".to_owned()]);
    assert_eq!(statuses_and_codes, expected);
    assert_eq!(children(&harness, harness.session).await.len(), 5);
}

#[tokio::test]
async fn delegation_ends_at_the_maximum_depth() {
    let endless = "turns:\n  - { when: { tool_offered: SubAgent, turn: 1 }, call: [{ tool: SubAgent, arguments: { prompt: deeper } }] }\n\
                   otherwise: { say: \"as deep as it goes\" }";
    let harness = harness("mode: all\nsubagents: [again]", endless).await;
    harness.write_agent_with_model("again", "mode: all\nsubagents: [lead]", endless);
    let id = harness.submit("dig").await;
    harness.run_all().await;
    assert_eq!(harness.run(id).await.state, RunState::Completed);
    assert_eq!(all_runs(&harness).await.len(), 6, "the first, and five below each other");
}

#[tokio::test]
async fn invalid_delegation_fails_the_call_only() {
    for (arguments, code) in [
        ("{ subagent_type: lead, prompt: x }", "agent_not_allowed"),
        ("{ subagent_type: boss, prompt: x }", "agent_not_allowed"),
        ("{ subagent_type: nobody, prompt: x }", "agent_not_allowed"),
        ("{ subagent_type: missing, prompt: x }", "agent_not_found"),
        ("{ prompt: x }", "invalid_argument"),
        ("{ subagent_type: helper, prompt: ' ' }", "invalid_argument"),
        ("{ subagent_type: helper }", "invalid_argument"),
        ("{ subagent_type: helper, prompt: x, task_id: nonsense }", "task_not_found"),
        ("{ subagent_type: helper, prompt: x, task_id: ses_01h455vb4pex5vsknk084sn02q }", "task_not_found"),
    ] {
        let turns = format!(
            "turns:\n  - {{ when: {{ turn: 1 }}, call: [{{ tool: SubAgent, arguments: {arguments} }}] }}\notherwise: {{ say: then not }}"
        );
        let harness = harness("subagents: [helper, missing]", &turns).await;
        harness.write_agent_with_model("helper", "mode: subagent", "otherwise: { say: ok }");
        harness.write_agent_with_model("boss", "mode: primary", "otherwise: { say: ok }");
        let id = harness.submit("please").await;
        harness.run_all().await;
        let run = harness.run(id).await;
        assert_eq!(run.state, RunState::Completed, "{arguments}: {:?}", run.failure);
        assert_eq!(statuses_and_codes(&run), [format!("failed {code}")], "{arguments}");
        assert!(children(&harness, harness.session).await.is_empty(), "{arguments}");
    }
}

#[tokio::test]
async fn failed_or_cancelled_child_is_a_result() {
    let harness = harness("subagents: [helper]", &leader(1, "helper", "")).await;
    harness.write_agent_with_model(
        "helper",
        "mode: subagent",
        "turns:\n  - fail: { status: 400, message: broken }\n",
    );
    let id = harness.submit("please").await;
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(
        (run.state, statuses_and_codes(&run)),
        (RunState::Completed, vec!["failed tool_failed".to_owned()])
    );
    assert!(run.answer.unwrap().contains("broken"));

    let harness = self::harness("subagents: [helper]", &leader(1, "helper", "")).await;
    harness.write_agent_with_model("helper", "mode: subagent", "otherwise: { say: never }");
    let id = harness.submit("please").await;
    let grant = harness.claim().await;
    let execution = harness.engine.execute(&grant, &remuda_engine::RunControl::default()).await;
    harness.commit_execution(&grant, execution).await;
    let child = all_runs(&harness).await.into_iter().find(|run| run.parent == Some(id)).unwrap();
    harness.store.request_cancel(harness.tenant, child.id, "not needed").await.unwrap();
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(
        (run.state, statuses_and_codes(&run)),
        (RunState::Completed, vec!["failed tool_failed".to_owned()])
    );
    assert!(run.answer.unwrap().contains("not needed"));
}

#[tokio::test]
async fn crash_after_any_commit_starts_no_second_child() {
    async fn start() -> (Harness, remuda_domain::RunId) {
        let harness = harness("subagents: [helper]", &leader(3, "helper", "")).await;
        harness.write_agent_with_model("helper", "mode: subagent", "otherwise: { say: ok }");
        let id = harness.submit("please").await;
        (harness, id)
    }
    for commit in 1..=4 {
        let (harness, id) = start().await;
        harness.kill_or_commit_after(commit).await;
        harness.run_all().await;
        let run = harness.run(id).await;
        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        assert_eq!(statuses_and_codes(&run), ["completed"; 3], "after commit {commit}");
        assert_eq!(children(&harness, harness.session).await.len(), 3, "after commit {commit}");
        let started = harness
            .events()
            .await
            .into_iter()
            .filter(|it| matches!(it.body, EventBody::SubagentStarted { .. }));
        assert_eq!(started.count(), 3, "after commit {commit}");
        harness.assert_results_complete().await;
    }
}

#[tokio::test]
async fn cancelling_the_root_cancels_all_descendants() {
    let harness = harness("subagents: [middle]", &leader(3, "middle", "")).await;
    harness.write_agent_with_model("middle", "mode: subagent\nsubagents: [leaf]", &leader(3, "leaf", ""));
    harness.write_agent_with_model("leaf", "mode: subagent", "otherwise: { say: leaf }");
    let id = harness.submit("grow").await;
    // The root and one middle run have delegated and are parked; the rest has not begun.
    for _ in 0..2 {
        let next = harness.store.runnable_sessions(None, 1).await.unwrap().pop().unwrap();
        let grant = harness.claim_session(next.session).await;
        let execution = harness.engine.execute(&grant, &remuda_engine::RunControl::default()).await;
        harness.commit_execution(&grant, execution).await;
    }
    assert_eq!(all_runs(&harness).await.len(), 7);
    harness.store.request_cancel(harness.tenant, id, "enough").await.unwrap();
    assert_eq!(harness.run_all().await, 0);
    assert!(all_runs(&harness).await.iter().all(|run| run.state == RunState::Cancelled));
}

#[tokio::test]
async fn child_inherits_the_permissions_of_its_parents_session() {
    let plan = SessionPermissions { mode: Some(PermissionMode::Plan), ..SessionPermissions::default() };
    let harness = harness("subagents: [helper]", &leader(1, "helper", "")).await.with_permissions(plan).await;
    harness.write_agent_with_model("helper", "mode: subagent", "turns:\n  - { when: { turn: 1 }, call: [{ tool: Write, arguments: { file_path: made, content: x } }] }\notherwise: { say: tried }");
    let id = harness.submit("please").await;
    harness.run_all().await;
    assert_eq!(harness.run(id).await.state, RunState::Completed);
    let child = all_runs(&harness).await.into_iter().find(|run| run.parent == Some(id)).unwrap();
    let child = harness.run(child.id).await;
    assert_eq!(statuses_and_codes(&child), ["failed call_denied"]);
    assert_eq!(harness.read("made"), "");
}

#[tokio::test]
async fn child_uses_its_own_model_or_its_parents() {
    let harness = harness("subagents: [helper, plain]", "turns:\n  - { when: { turn: 1 }, call: [{ tool: SubAgent, arguments: { subagent_type: helper, prompt: a } }, { tool: SubAgent, arguments: { subagent_type: plain, prompt: b } }] }\notherwise: { say: done }").await;
    harness.write_agent_with_model("helper", "mode: subagent", "otherwise: { say: helped }");
    harness.write(".openharness/agents/plain.md", "---\nmode: subagent\n---\nYou are plain.\n");
    let id = harness.submit("please").await;
    harness.run_all().await;
    assert_eq!(harness.run(id).await.state, RunState::Completed);
    let mut models = Vec::new();
    for child in all_runs(&harness).await.into_iter().filter(|run| run.parent == Some(id)) {
        let request = harness.requests(child.id).await.remove(0);
        models.push((request.agent, request.model.to_string()));
    }
    models.sort();
    let expected = [("helper", "workspace/helper"), ("plain", "workspace/lead")];
    assert_eq!(models, expected.map(|(agent, model)| (agent.to_owned(), model.to_owned())));
}

/// A child's time is limited by its parent's.
#[tokio::test]
async fn timeout_of_a_parent_limits_its_children() {
    let harness = harness("subagents: [helper]", &leader(1, "helper", "")).await;
    harness.write_agent_with_model(
        "helper",
        "mode: subagent",
        "turns:\n  - { when: { turn: 1 }, call: [{ tool: Bash, arguments: { command: \"sleep 600\" } }] }",
    );
    let id = harness.submit_for(std::time::Duration::from_secs(2), "please").await;
    harness.run_all().await;
    let runs = all_runs(&harness).await;
    let states: Vec<RunState> = runs.iter().map(|run| run.state).collect();
    assert_eq!(states, [RunState::TimedOut; 2], "{runs:?}");
    let child = runs.iter().find(|run| run.parent == Some(id)).unwrap();
    assert!(child.timeout < std::time::Duration::from_secs(2), "{:?}", child.timeout);
}
