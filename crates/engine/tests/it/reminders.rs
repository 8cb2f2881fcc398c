//! What an agent is told when a session becomes its own.

use remuda_domain::{RunState, message::Role};

use crate::{
    lab::Lab,
    look::{Rebuilt, text},
};

const REMINDER: &str = "Mind the other rules.";
const OTHER: &str =
    "---\nmodel: workspace/m\nsystem_reminder: Mind the other rules.\n---\nYou are the other.\n";
const SCENARIO: &str = r#"
turns:
  - call: [{ tool: Bash, arguments: { command: echo looked } }]
  - say: done
"#;

async fn lab() -> Lab {
    let lab = Lab::new(SCENARIO).await;
    lab.write(".openharness/agents/other.md", OTHER);
    lab
}

/// Where the messages of a question have the reminder.
fn reminded(messages: &[Rebuilt]) -> Vec<usize> {
    let with = messages.iter().enumerate().filter(|(_, message)| text(message).contains(REMINDER));
    with.map(|(index, _)| index).collect()
}

#[tokio::test]
async fn an_agent_is_reminded_once_after_a_change() {
    let lab = lab().await;
    let conversation = [
        ("tested", false),
        ("other", true),
        ("other", false),
        ("tested", false),
        ("other", true),
        ("other", false),
    ];
    for (turn, (agent, expected)) in conversation.into_iter().enumerate() {
        let run = lab.ask_agent(agent, &format!("message {turn}")).await;
        assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
        let requests = lab.requests(run.id).await;
        assert_eq!(requests.len(), 2);
        // Both questions of the run have it at the same place: what was said once is not taken back.
        for request in &requests {
            let messages = lab.rebuild(request).await;
            let newest = messages.iter().rposition(|message| message.role == Role::User).unwrap();
            assert!(text(&messages[newest]).ends_with(&format!("message {turn}")));
            let places = if expected { vec![newest] } else { Vec::new() };
            assert_eq!(reminded(&messages), places, "message {turn} to {agent}");
        }
    }
    let told = lab.transcript().await;
    assert!(!told.iter().any(|line| line.contains(REMINDER)), "{told:?}");
}

#[tokio::test]
async fn a_session_does_not_begin_with_a_reminder() {
    let lab = lab().await;
    for leader in [None, Some("other"), Some("tested")] {
        let lab = lab.with_session(leader, None).await;
        let run = lab.ask_agent("other", "hello").await;
        for request in lab.requests(run.id).await {
            assert_eq!(reminded(&lab.rebuild(&request).await), [0_usize; 0], "led by {leader:?}");
        }
    }
}

#[tokio::test]
async fn a_change_of_the_session_counts_like_one_by_a_message() {
    let lab = lab().await;
    lab.ask("hello").await;
    let update = remuda_store::SessionUpdate { agent: Some("other".into()), ..Default::default() };
    lab.store.update_session(lab.tenant, lab.session, &update).await.unwrap();
    let run = lab.ask("and now?").await;
    for request in lab.requests(run.id).await {
        assert_eq!(reminded(&lab.rebuild(&request).await).len(), 1);
    }
}

#[tokio::test]
async fn whoever_goes_on_with_the_run_keeps_the_reminder() {
    let lab = lab().await;
    lab.ask("hello").await;
    let id = lab.submit_to(Some("other"), "work").await;
    // After the first answer and its call.
    assert!(lab.die_after(4).await);
    let run = lab.execute().await;
    assert_eq!((run.id, run.state), (id, RunState::Completed));
    let requests = lab.requests(id).await;
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert_eq!(reminded(&lab.rebuild(&request).await).len(), 1);
    }
}
