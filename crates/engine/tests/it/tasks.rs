//! Tasks that are gone on with.

use remuda_domain::{
    RunState, SessionId,
    permission::{PermissionAction, PermissionMode, PermissionRule, SessionPermissions},
};
use remuda_store::SessionUpdate;

use crate::{
    delegation::{children, lab, leader},
    lab::Lab,
    look::verdicts,
};

/// Goes on with a task.
fn going_on(task: SessionId, more: &str) -> String {
    format!(
        "turns:\n  - {{ when: {{ turn: 1 }}, call: [{{ tool: SubAgent, arguments: {{ prompt: go on, task_id: {task}{more} }} }}] }}\n\
         otherwise: {{ say: \"{{{{last_tool_result}}}}\" }}"
    )
}

/// A task that was worked on once.
async fn begun(frontmatter: &str) -> (Lab, SessionId) {
    let lab = lab(frontmatter, &leader(1, "helper", "")).await;
    lab.write_other("helper", "mode: all\nswitch: [other]", "otherwise: { say: begun }");
    lab.write_other("other", "mode: all", "otherwise: { say: I am the other one }");
    lab.submit("please").await;
    lab.drive().await;
    let task = children(&lab, lab.session).await[0].id;
    (lab, task)
}

/// What became of a call that goes on with the task.
async fn go_on(lab: &Lab, task: SessionId, more: &str) -> (RunState, Vec<String>) {
    lab.write(".openharness/lead.yaml", &going_on(task, more));
    let id = lab.submit("more").await;
    lab.drive().await;
    let run = lab.run(id).await;
    (run.state, verdicts(&run))
}

#[tokio::test]
async fn a_task_goes_on_where_it_ended() {
    let turns = "turns:\n  - { when: { turn: 1 }, call: [{ tool: SubAgent, arguments: { prompt: begin } }] }\n\
                 otherwise: { say: \"{{last_tool_result}}\" }";
    let lab = lab("subagents: [helper]", turns).await;
    lab.write_other("helper", "mode: subagent", "conversations:\n  - { on: { question: 2 }, turns: [{ say: I remember. }] }\notherwise: { say: begun }");
    let id = lab.submit("please").await;
    lab.drive().await;
    assert_eq!(lab.run(id).await.state, RunState::Completed);
    let task = children(&lab, lab.session).await[0].id;
    let again = format!(
        "turns:\n  - {{ when: {{ turn: 1 }}, call: [{{ tool: SubAgent, arguments: {{ prompt: go on, task_id: {task} }} }}] }}\n\
         otherwise: {{ say: \"{{{{last_tool_result}}}}\" }}"
    );
    lab.write(".openharness/lead.yaml", &again);
    let id = lab.submit("more").await;
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert!(run.answer.unwrap().contains("I remember."));
    assert_eq!(children(&lab, lab.session).await.len(), 1);
}

#[tokio::test]
async fn a_task_that_was_closed_is_over() {
    let (lab, task) = begun("subagents: [helper]").await;
    lab.store.close_session(lab.tenant, task).await.unwrap();
    assert_eq!(go_on(&lab, task, "").await, (RunState::Completed, vec!["failed task_not_found".to_owned()]));
}

#[tokio::test]
async fn a_task_stays_with_whom_it_was_given_to() {
    let (lab, task) = begun("subagents: [helper]").await;
    lab.write(".openharness/helper.yaml", "turns:\n  - { when: { turn: 1 }, call: [{ tool: AgentSwitch, arguments: { agent: other } }] }\notherwise: { say: helper again }");
    assert_eq!(go_on(&lab, task, "").await, (RunState::Completed, vec!["completed".to_owned()]));
    let session = children(&lab, lab.session).await.remove(0);
    assert_eq!(session.agent.as_deref(), Some("helper"), "whoever had a hand in it");
    assert_eq!(go_on(&lab, task, "").await, (RunState::Completed, vec!["completed".to_owned()]));
    assert_eq!(go_on(&lab, task, ", subagent_type: other").await.1, ["failed agent_not_allowed"]);
}

/// Rules are about whom a call is for, however it says so.
#[tokio::test]
async fn a_denied_agent_cannot_be_reached_by_other_words() {
    let denied = PermissionRule::new("task", "helper", PermissionAction::Deny);
    for mode in [PermissionMode::Default, PermissionMode::FullAuto] {
        let (lab, task) = begun("subagents: [helper]").await;
        let permissions = SessionPermissions {
            mode: Some(mode),
            rules: vec![denied.clone()],
            ..SessionPermissions::default()
        };
        let update = SessionUpdate { permissions: Some(permissions), ..SessionUpdate::default() };
        lab.store.update_session(lab.tenant, lab.session, &update).await.unwrap();
        for arguments in [
            format!("prompt: x, task_id: {task}"),
            "prompt: x".to_owned(),
            "prompt: x, agent: helper".to_owned(),
            "prompt: x, subagent_type: helper".to_owned(),
        ] {
            lab.write(
                ".openharness/lead.yaml",
                &format!("turns:\n  - {{ when: {{ turn: 1 }}, call: [{{ tool: SubAgent, arguments: {{ {arguments} }} }}] }}\notherwise: {{ say: then not }}"),
            );
            let id = lab.submit("more").await;
            lab.drive().await;
            let run = lab.run(id).await;
            assert_eq!(
                (run.state, verdicts(&run)),
                (RunState::Completed, vec!["failed call_denied".to_owned()]),
                "{mode:?} {arguments}"
            );
        }
    }
}

#[tokio::test]
async fn a_task_may_do_no_more_than_its_parents_session_may_now() {
    let (lab, task) = begun("subagents: [helper]").await;
    let plan = SessionPermissions { mode: Some(PermissionMode::Plan), ..SessionPermissions::default() };
    let update = SessionUpdate { permissions: Some(plan), ..SessionUpdate::default() };
    lab.store.update_session(lab.tenant, lab.session, &update).await.unwrap();
    lab.write(".openharness/helper.yaml", "turns:\n  - { when: { turn: 1 }, call: [{ tool: Write, arguments: { file_path: made, content: x } }] }\notherwise: { say: tried }");
    assert_eq!(go_on(&lab, task, "").await, (RunState::Completed, vec!["completed".to_owned()]));
    assert_eq!(lab.read("made"), "");
    let session = children(&lab, lab.session).await.remove(0);
    assert_eq!(session.permissions.mode, Some(PermissionMode::Plan));
}
