//! Delegated tasks that are continued with `task_id`.

use remuda_domain::{
    RunState, SessionId,
    permission::{PermissionAction, PermissionMode, PermissionRule, SessionPermissions},
};
use remuda_store::SessionUpdate;

use crate::{
    delegation::{children, harness, leader},
    harness::Harness,
    inspect::statuses_and_codes,
};

/// A scenario that continues a task.
fn continuing(task: SessionId, more: &str) -> String {
    format!(
        "turns:\n  - {{ when: {{ turn: 1 }}, call: [{{ tool: SubAgent, arguments: {{ prompt: go on, task_id: {task}{more} }} }}] }}\n\
         otherwise: {{ say: \"{{{{last_tool_result}}}}\" }}"
    )
}

/// A task that has completed once.
async fn completed_task(frontmatter: &str) -> (Harness, SessionId) {
    let harness = harness(frontmatter, &leader(1, "helper", "")).await;
    harness.write_agent_with_model("helper", "mode: all\nswitch: [other]", "otherwise: { say: begun }");
    harness.write_agent_with_model("other", "mode: all", "otherwise: { say: I am the other one }");
    harness.submit("please").await;
    harness.run_all().await;
    let task = children(&harness, harness.session).await[0].id;
    (harness, task)
}

/// Continues the task. Returns the run's state and the outcome of the call.
async fn continue_task(harness: &Harness, task: SessionId, more: &str) -> (RunState, Vec<String>) {
    harness.write(".openharness/lead.yaml", &continuing(task, more));
    let id = harness.submit("more").await;
    harness.run_all().await;
    let run = harness.run(id).await;
    (run.state, statuses_and_codes(&run))
}

#[tokio::test]
async fn task_continues_in_its_session() {
    let turns = "turns:\n  - { when: { turn: 1 }, call: [{ tool: SubAgent, arguments: { prompt: begin } }] }\n\
                 otherwise: { say: \"{{last_tool_result}}\" }";
    let harness = harness("subagents: [helper]", turns).await;
    harness.write_agent_with_model("helper", "mode: subagent", "conversations:\n  - { on: { question: 2 }, turns: [{ say: I remember. }] }\notherwise: { say: begun }");
    let id = harness.submit("please").await;
    harness.run_all().await;
    assert_eq!(harness.run(id).await.state, RunState::Completed);
    let task = children(&harness, harness.session).await[0].id;
    let again = format!(
        "turns:\n  - {{ when: {{ turn: 1 }}, call: [{{ tool: SubAgent, arguments: {{ prompt: go on, task_id: {task} }} }}] }}\n\
         otherwise: {{ say: \"{{{{last_tool_result}}}}\" }}"
    );
    harness.write(".openharness/lead.yaml", &again);
    let id = harness.submit("more").await;
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert!(run.answer.unwrap().contains("I remember."));
    assert_eq!(children(&harness, harness.session).await.len(), 1);
}

#[tokio::test]
async fn closed_task_cannot_be_continued() {
    let (harness, task) = completed_task("subagents: [helper]").await;
    harness.store.close_session(harness.tenant, task).await.unwrap();
    assert_eq!(
        continue_task(&harness, task, "").await,
        (RunState::Completed, vec!["failed task_not_found".to_owned()])
    );
}

#[tokio::test]
async fn task_keeps_its_agent() {
    let (harness, task) = completed_task("subagents: [helper]").await;
    harness.write(".openharness/helper.yaml", "turns:\n  - { when: { turn: 1 }, call: [{ tool: AgentSwitch, arguments: { agent: other } }] }\notherwise: { say: helper again }");
    assert_eq!(continue_task(&harness, task, "").await, (RunState::Completed, vec!["completed".to_owned()]));
    let session = children(&harness, harness.session).await.remove(0);
    assert_eq!(
        session.agent.as_deref(),
        Some("helper"),
        "an agent switch inside the task does not change it"
    );
    assert_eq!(continue_task(&harness, task, "").await, (RunState::Completed, vec!["completed".to_owned()]));
    assert_eq!(continue_task(&harness, task, ", subagent_type: other").await.1, ["failed agent_not_allowed"]);
}

/// Rules match the target agent, however the call names it.
#[tokio::test]
async fn denied_agent_cannot_be_reached_by_other_arguments() {
    let denied = PermissionRule::new("task", "helper", PermissionAction::Deny);
    for mode in [PermissionMode::Default, PermissionMode::FullAuto] {
        let (harness, task) = completed_task("subagents: [helper]").await;
        let permissions = SessionPermissions {
            mode: Some(mode),
            rules: vec![denied.clone()],
            ..SessionPermissions::default()
        };
        let update = SessionUpdate { permissions: Some(permissions), ..SessionUpdate::default() };
        harness.store.update_session(harness.tenant, harness.session, &update).await.unwrap();
        for arguments in [
            format!("prompt: x, task_id: {task}"),
            "prompt: x".to_owned(),
            "prompt: x, agent: helper".to_owned(),
            "prompt: x, subagent_type: helper".to_owned(),
        ] {
            harness.write(
                ".openharness/lead.yaml",
                &format!("turns:\n  - {{ when: {{ turn: 1 }}, call: [{{ tool: SubAgent, arguments: {{ {arguments} }} }}] }}\notherwise: {{ say: then not }}"),
            );
            let id = harness.submit("more").await;
            harness.run_all().await;
            let run = harness.run(id).await;
            assert_eq!(
                (run.state, statuses_and_codes(&run)),
                (RunState::Completed, vec!["failed call_denied".to_owned()]),
                "{mode:?} {arguments}"
            );
        }
    }
}

#[tokio::test]
async fn continued_task_is_limited_to_its_parents_current_permissions() {
    let (harness, task) = completed_task("subagents: [helper]").await;
    let plan = SessionPermissions { mode: Some(PermissionMode::Plan), ..SessionPermissions::default() };
    let update = SessionUpdate { permissions: Some(plan), ..SessionUpdate::default() };
    harness.store.update_session(harness.tenant, harness.session, &update).await.unwrap();
    harness.write(".openharness/helper.yaml", "turns:\n  - { when: { turn: 1 }, call: [{ tool: Write, arguments: { file_path: made, content: x } }] }\notherwise: { say: tried }");
    assert_eq!(continue_task(&harness, task, "").await, (RunState::Completed, vec!["completed".to_owned()]));
    assert_eq!(harness.read("made"), "");
    let session = children(&harness, harness.session).await.remove(0);
    assert_eq!(session.permissions.mode, Some(PermissionMode::Plan));
}
