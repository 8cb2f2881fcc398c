//! What agents do.

use remuda_domain::{RunState, execution::BackendKind};

use crate::lab::Lab;

#[tokio::test]
async fn an_agent_works_until_it_has_an_answer() {
    let lab = Lab::new(
        "turns:\n  - call: [{ tool: Bash, arguments: { command: echo hello } }]\n  - say: 'It said {{last_tool_result}}'\n",
    )
    .await;
    let run = lab.ask("say hello").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert!(run.answer.as_deref().unwrap().contains("hello"), "{:?}", run.answer);
    assert_eq!(run.outcomes.len(), 1);
    let told = lab.transcript().await;
    assert_eq!(told.len(), 4, "{told:?}");
}

#[tokio::test]
async fn a_session_that_only_talks_has_no_tools() {
    let mut lab =
        Lab::new("turns:\n  - when: { tool_offered: Bash }\n    say: tools\n  - say: no tools\n").await;
    assert_eq!(lab.ask("?").await.answer.as_deref(), Some("tools"));
    lab.session = lab.new_session(Some(BackendKind::None)).await;
    assert_eq!(lab.ask("?").await.answer.as_deref(), Some("no tools"));
}
