//! The basic agent loop.

use remuda_domain::{RunState, execution::BackendKind};

use crate::harness::Harness;

#[tokio::test]
async fn agent_calls_tools_until_it_responds_without_calls() {
    let harness = Harness::new(
        "turns:\n  - call: [{ tool: Bash, arguments: { command: echo hello } }]\n  - say: 'It said {{last_tool_result}}'\n",
    )
    .await;
    let run = harness.run_message("say hello").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert!(run.answer.as_deref().unwrap().contains("hello"), "{:?}", run.answer);
    assert_eq!(run.outcomes.len(), 1);
    let transcript = harness.transcript().await;
    assert_eq!(transcript.len(), 4, "{transcript:?}");
}

#[tokio::test]
async fn session_without_a_backend_offers_no_tools() {
    let mut harness =
        Harness::new("turns:\n  - when: { tool_offered: Bash }\n    say: tools\n  - say: no tools\n").await;
    assert_eq!(harness.run_message("?").await.answer.as_deref(), Some("tools"));
    harness.session = harness.new_session(Some(BackendKind::None)).await;
    assert_eq!(harness.run_message("?").await.answer.as_deref(), Some("no tools"));
}
