//! Reminders for agents that take over a session.

use remuda_domain::{RunState, message::Role};

use crate::{
    harness::Harness,
    inspect::{SentMessage, text},
};

const REMINDER: &str = "Mind the other rules.";
const OTHER: &str = "---\nmodel: workspace/m\ntools: { native: ['*'] }\nsystem_reminder: Mind the other rules.\n---\nYou are the other.\n";
const SCENARIO: &str = r#"
turns:
  - call: [{ tool: Bash, arguments: { command: echo looked } }]
  - say: done
"#;

async fn harness() -> Harness {
    let harness = Harness::new(SCENARIO).await;
    harness.write(".openharness/agents/other.md", OTHER);
    harness
}

/// The positions of the messages with the reminder.
fn reminded(messages: &[SentMessage]) -> Vec<usize> {
    let with = messages.iter().enumerate().filter(|(_, message)| text(message).contains(REMINDER));
    with.map(|(index, _)| index).collect()
}

#[tokio::test]
async fn agent_is_reminded_once_after_a_change() {
    let harness = harness().await;
    let conversation = [
        ("tested", false),
        ("other", true),
        ("other", false),
        ("tested", false),
        ("other", true),
        ("other", false),
    ];
    for (turn, (agent, expected)) in conversation.into_iter().enumerate() {
        let run = harness.run_message_to(agent, &format!("message {turn}")).await;
        assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
        let requests = harness.requests(run.id).await;
        assert_eq!(requests.len(), 2);
        // Both model calls of the run have it at the same position, so the sent prefix does not change.
        for request in &requests {
            let messages = harness.sent_messages(request).await;
            let newest = messages.iter().rposition(|message| message.role == Role::User).unwrap();
            assert!(text(&messages[newest]).ends_with(&format!("message {turn}")));
            let positions = if expected { vec![newest] } else { Vec::new() };
            assert_eq!(reminded(&messages), positions, "message {turn} to {agent}");
        }
    }
    let transcript = harness.transcript().await;
    assert!(!transcript.iter().any(|line| line.contains(REMINDER)), "{transcript:?}");
}

#[tokio::test]
async fn new_session_has_no_reminder() {
    let harness = harness().await;
    for leader in [None, Some("other"), Some("tested")] {
        let harness = harness.with_session(leader, None).await;
        let run = harness.run_message_to("other", "hello").await;
        for request in harness.requests(run.id).await {
            assert_eq!(reminded(&harness.sent_messages(&request).await), [0_usize; 0], "led by {leader:?}");
        }
    }
}

#[tokio::test]
async fn agent_change_by_session_update_is_reminded_as_well() {
    let harness = harness().await;
    harness.run_message("hello").await;
    let update = remuda_store::SessionUpdate { agent: Some("other".into()), ..Default::default() };
    harness.store.update_session(harness.tenant, harness.session, &update).await.unwrap();
    let run = harness.run_message("and now?").await;
    for request in harness.requests(run.id).await {
        assert_eq!(reminded(&harness.sent_messages(&request).await).len(), 1);
    }
}

#[tokio::test]
async fn resumed_run_keeps_the_reminder() {
    let harness = harness().await;
    harness.run_message("hello").await;
    let id = harness.submit_to(Some("other"), "work").await;
    // After the first response and its call.
    assert!(harness.killed_after_commit(4).await);
    let run = harness.execute().await;
    assert_eq!((run.id, run.state), (id, RunState::Completed));
    let requests = harness.requests(id).await;
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert_eq!(reminded(&harness.sent_messages(&request).await).len(), 1);
    }
}
