//! Agents that give work to others.

use remuda_domain::{
    EventBody, Run, RunState, SessionId,
    page::PageRequest,
    permission::{PermissionMode, SessionPermissions},
    run::ParkReason,
};
use remuda_store::RunFilter;

use crate::{lab::Lab, look::verdicts};

/// Delegates `width` times in one answer.
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

pub(crate) async fn lab(frontmatter: &str, turns: &str) -> Lab {
    let lab = Lab::new("turns: []").await;
    lab.write_other("lead", frontmatter, turns);
    lab.write(".openharness/settings.yaml", "default_agent: lead\n");
    lab
}

pub(crate) async fn all_runs(lab: &Lab) -> Vec<Run> {
    let page = PageRequest { size: 500, token: None };
    lab.store.list_runs(lab.tenant, &RunFilter::default(), &page).await.unwrap().items
}

pub(crate) async fn children(lab: &Lab, session: SessionId) -> Vec<remuda_domain::session::Session> {
    let page = PageRequest { size: 100, token: None };
    lab.store.list_child_sessions(lab.tenant, session, &page).await.unwrap().items
}

#[tokio::test]
async fn a_child_works_in_a_session_of_its_own_and_its_answer_comes_back() {
    let lab = lab("subagents: [helper]", &leader(1, "helper", "")).await;
    lab.write_other(
        "helper",
        "mode: subagent\ntools: { native: [Read] }",
        "otherwise: { say: \"Found it.\" }",
    );
    let id = lab.submit("please").await;
    let grant = lab.claim().await;
    let execution = lab.engine.execute(&grant, &remuda_engine::RunControl::default()).await;
    let remuda_engine::Execution::Parked(_, parking) = &execution else {
        panic!("not parked: {execution:?}")
    };
    assert_eq!((parking.reason, parking.children.len(), parking.needed), (ParkReason::Children, 1, 1));
    lab.leave(&grant, execution).await;
    assert_eq!(lab.run(id).await.state, RunState::Parked);

    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert!(run.answer.unwrap().contains("Found it."));
    let children = children(&lab, lab.session).await;
    assert_eq!(children.len(), 1);
    let child = &children[0];
    assert_eq!((child.agent.as_deref(), child.depth), (Some("helper"), 1));
    let runs = all_runs(&lab).await;
    let below = runs.iter().find(|run| run.session == child.id).unwrap();
    assert_eq!(below.parent, Some(id));
    let names: Vec<&str> = lab.events().await.iter().map(|event| event.body.name()).collect();
    let place =
        |name: &str| names.iter().position(|it| *it == name).unwrap_or_else(|| panic!("{name} in {names:?}"));
    let order = ["subagent.started", "run.parked", "run.resumed", "subagent.ended", "run.completed"];
    assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])), "{names:?}");
    lab.assert_complete().await;
}

/// The tree of the issue: one worker, one slot, three levels, ten wide.
#[tokio::test]
async fn one_slot_completes_a_tree_of_depth_3_and_width_10() {
    let wide = "policy: { max_concurrent_subagents: 10 }";
    let lab = lab(&format!("subagents: [middle]\n{wide}"), &leader(10, "middle", "")).await;
    lab.write_other("middle", &format!("mode: subagent\nsubagents: [leaf]\n{wide}"), &leader(10, "leaf", ""));
    lab.write_other("leaf", "mode: subagent", "otherwise: { say: leaf }");
    let id = lab.submit("grow").await;
    let turns = lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let runs = all_runs(&lab).await;
    assert_eq!(runs.len(), 111);
    assert!(runs.iter().all(|run| run.state == RunState::Completed));
    // Leaves take one turn each, everyone else two: a parent is woken once, when all of its children are done.
    assert_eq!(turns, 100 + 2 * 11);
    assert_eq!(run.outcomes.len(), 10);
}

#[tokio::test]
async fn more_than_may_work_at_once_wait_for_their_turn() {
    let lab = lab(
        "subagents: [helper]\npolicy: { max_concurrent_subagents: 2, max_subagents: 5 }",
        &leader(7, "helper", ""),
    )
    .await;
    lab.write_other("helper", "mode: subagent", "otherwise: { say: ok }");
    let id = lab.submit("please").await;
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let mut verdicts = verdicts(&run);
    verdicts.sort();
    let mut expected = vec!["completed".to_owned(); 5];
    expected.extend(["failed delegation_limit".to_owned(), "failed delegation_limit".to_owned()]);
    assert_eq!(verdicts, expected);
    assert_eq!(children(&lab, lab.session).await.len(), 5);
}

#[tokio::test]
async fn delegation_ends_at_the_deepest_level() {
    let endless = "turns:\n  - { when: { tool_offered: SubAgent, turn: 1 }, call: [{ tool: SubAgent, arguments: { prompt: deeper } }] }\n\
                   otherwise: { say: \"as deep as it goes\" }";
    let lab = lab("mode: all\nsubagents: [again]", endless).await;
    lab.write_other("again", "mode: all\nsubagents: [lead]", endless);
    let id = lab.submit("dig").await;
    lab.drive().await;
    assert_eq!(lab.run(id).await.state, RunState::Completed);
    assert_eq!(all_runs(&lab).await.len(), 6, "the first, and five below each other");
}

#[tokio::test]
async fn what_is_wrong_with_a_delegation_is_a_result() {
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
        let lab = lab("subagents: [helper, missing]", &turns).await;
        lab.write_other("helper", "mode: subagent", "otherwise: { say: ok }");
        lab.write_other("boss", "mode: primary", "otherwise: { say: ok }");
        let id = lab.submit("please").await;
        lab.drive().await;
        let run = lab.run(id).await;
        assert_eq!(run.state, RunState::Completed, "{arguments}: {:?}", run.failure);
        assert_eq!(verdicts(&run), [format!("failed {code}")], "{arguments}");
        assert!(children(&lab, lab.session).await.is_empty(), "{arguments}");
    }
}

#[tokio::test]
async fn a_child_that_fails_or_is_cancelled_is_a_result() {
    let lab = lab("subagents: [helper]", &leader(1, "helper", "")).await;
    lab.write_other("helper", "mode: subagent", "turns:\n  - fail: { status: 400, message: broken }\n");
    let id = lab.submit("please").await;
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!((run.state, verdicts(&run)), (RunState::Completed, vec!["failed tool_failed".to_owned()]));
    assert!(run.answer.unwrap().contains("broken"));

    let lab = self::lab("subagents: [helper]", &leader(1, "helper", "")).await;
    lab.write_other("helper", "mode: subagent", "otherwise: { say: never }");
    let id = lab.submit("please").await;
    let grant = lab.claim().await;
    let execution = lab.engine.execute(&grant, &remuda_engine::RunControl::default()).await;
    lab.leave(&grant, execution).await;
    let child = all_runs(&lab).await.into_iter().find(|run| run.parent == Some(id)).unwrap();
    lab.store.request_cancel(lab.tenant, child.id, "not needed").await.unwrap();
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!((run.state, verdicts(&run)), (RunState::Completed, vec!["failed tool_failed".to_owned()]));
    assert!(run.answer.unwrap().contains("not needed"));
}

#[tokio::test]
async fn dying_after_any_commit_makes_no_second_child() {
    async fn start() -> (Lab, remuda_domain::RunId) {
        let lab = lab("subagents: [helper]", &leader(3, "helper", "")).await;
        lab.write_other("helper", "mode: subagent", "otherwise: { say: ok }");
        let id = lab.submit("please").await;
        (lab, id)
    }
    for commit in 1..=4 {
        let (lab, id) = start().await;
        lab.die_or_leave_after(commit).await;
        lab.drive().await;
        let run = lab.run(id).await;
        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        assert_eq!(verdicts(&run), ["completed"; 3], "after commit {commit}");
        assert_eq!(children(&lab, lab.session).await.len(), 3, "after commit {commit}");
        let started =
            lab.events().await.into_iter().filter(|it| matches!(it.body, EventBody::SubagentStarted { .. }));
        assert_eq!(started.count(), 3, "after commit {commit}");
        lab.assert_complete().await;
    }
}

#[tokio::test]
async fn cancelling_the_root_leaves_nobody_at_work() {
    let lab = lab("subagents: [middle]", &leader(3, "middle", "")).await;
    lab.write_other("middle", "mode: subagent\nsubagents: [leaf]", &leader(3, "leaf", ""));
    lab.write_other("leaf", "mode: subagent", "otherwise: { say: leaf }");
    let id = lab.submit("grow").await;
    // The root and one of the middle ones have delegated and wait; the rest has not begun.
    for _ in 0..2 {
        let next = lab.store.runnable_sessions(None, 1).await.unwrap().pop().unwrap();
        let grant = lab.claim_session(next.session).await;
        let execution = lab.engine.execute(&grant, &remuda_engine::RunControl::default()).await;
        lab.leave(&grant, execution).await;
    }
    assert_eq!(all_runs(&lab).await.len(), 7);
    lab.store.request_cancel(lab.tenant, id, "enough").await.unwrap();
    assert_eq!(lab.drive().await, 0);
    assert!(all_runs(&lab).await.iter().all(|run| run.state == RunState::Cancelled));
}

#[tokio::test]
async fn a_child_may_do_no_more_than_its_parents_session() {
    let plan = SessionPermissions { mode: Some(PermissionMode::Plan), ..SessionPermissions::default() };
    let lab = lab("subagents: [helper]", &leader(1, "helper", "")).await.with_permissions(plan).await;
    lab.write_other("helper", "mode: subagent", "turns:\n  - { when: { turn: 1 }, call: [{ tool: Write, arguments: { file_path: made, content: x } }] }\notherwise: { say: tried }");
    let id = lab.submit("please").await;
    lab.drive().await;
    assert_eq!(lab.run(id).await.state, RunState::Completed);
    let child = all_runs(&lab).await.into_iter().find(|run| run.parent == Some(id)).unwrap();
    let child = lab.run(child.id).await;
    assert_eq!(verdicts(&child), ["failed call_denied"]);
    assert_eq!(lab.read("made"), "");
}

#[tokio::test]
async fn a_child_brings_its_model_or_takes_that_of_its_parent() {
    let lab = lab("subagents: [helper, plain]", "turns:\n  - { when: { turn: 1 }, call: [{ tool: SubAgent, arguments: { subagent_type: helper, prompt: a } }, { tool: SubAgent, arguments: { subagent_type: plain, prompt: b } }] }\notherwise: { say: done }").await;
    lab.write_other("helper", "mode: subagent", "otherwise: { say: helped }");
    lab.write(".openharness/agents/plain.md", "---\nmode: subagent\n---\nYou are plain.\n");
    let id = lab.submit("please").await;
    lab.drive().await;
    assert_eq!(lab.run(id).await.state, RunState::Completed);
    let mut models = Vec::new();
    for child in all_runs(&lab).await.into_iter().filter(|run| run.parent == Some(id)) {
        let request = lab.requests(child.id).await.remove(0);
        models.push((request.agent, request.model.to_string()));
    }
    models.sort();
    let expected = [("helper", "workspace/helper"), ("plain", "workspace/lead")];
    assert_eq!(models, expected.map(|(agent, model)| (agent.to_owned(), model.to_owned())));
}

/// A child that never ends has no more time than its parent.
#[tokio::test]
async fn the_time_of_a_parent_ends_that_of_its_children() {
    let lab = lab("subagents: [helper]", &leader(1, "helper", "")).await;
    lab.write_other(
        "helper",
        "mode: subagent",
        "turns:\n  - { when: { turn: 1 }, call: [{ tool: Bash, arguments: { command: \"sleep 600\" } }] }",
    );
    let id = lab.submit_for(std::time::Duration::from_secs(2), "please").await;
    lab.drive().await;
    let runs = all_runs(&lab).await;
    let states: Vec<RunState> = runs.iter().map(|run| run.state).collect();
    assert_eq!(states, [RunState::TimedOut; 2], "{runs:?}");
    let child = runs.iter().find(|run| run.parent == Some(id)).unwrap();
    assert!(child.timeout < std::time::Duration::from_secs(2), "{:?}", child.timeout);
}
