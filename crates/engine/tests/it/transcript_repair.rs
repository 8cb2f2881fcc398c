//! Sessions whose runs ended in the middle of their calls.

use std::collections::HashMap;

use remuda_domain::{
    RunState, ToolCallId,
    message::Role,
    tool::{CallStatus, ToolOutcome},
};

use crate::{
    harness::{Harness, OperatorSettings},
    inspect::{assert_results_complete, code, results, tool_calls},
};

const SCENARIO: &str = r#"
conversations:
  - on: { user_contains: next }
    turns: [{ say: I go on. }]
turns:
  - say: I work.
    call:
      - { tool: Bash, arguments: { command: echo first >> made; echo one } }
      - { tool: Bash, arguments: { command: echo second >> made; echo two } }
      - { tool: Read, arguments: { file_path: made } }
  - say: done
"#;

/// How the lost run ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Exhausted,
    Cancelled,
}

async fn harness(end: End) -> Harness {
    let max_lost_attempts = match end {
        End::Exhausted => Some(1),
        End::Cancelled => None,
    };
    let harness = Harness::with_settings(
        SCENARIO,
        OperatorSettings { max_lost_attempts, ..OperatorSettings::default() },
    )
    .await;
    harness.write_agent("policy: { parallel_tool_calls: false }");
    harness
}

#[tokio::test]
async fn next_run_gets_a_complete_history() {
    let whole = harness(End::Cancelled).await;
    whole.run_message("work").await;
    let commits = whole.transport.published();
    let mut dangling = 0;
    for end in [End::Exhausted, End::Cancelled] {
        for commit in 1..=commits {
            let harness = harness(end).await;
            let id = harness.submit("work").await;
            assert!(harness.killed_after_commit(commit).await);
            if let End::Cancelled = end {
                harness.store.request_cancel(harness.tenant, id, "enough").await.unwrap();
            }
            harness.store.reclaim_sessions(100).await.unwrap();
            let run = harness.store.get_run(harness.tenant, id).await.unwrap();
            let expected = match end {
                End::Exhausted => (RunState::Failed, "attempts_exhausted"),
                End::Cancelled => (RunState::Cancelled, "cancelled"),
            };
            assert_eq!((run.state, code(&run)), expected, "after commit {commit}");
            let steps = harness.steps(id).await;
            assert!(steps.iter().all(|step| step.is_finished()), "after commit {commit}: {steps:?}");
            let known: HashMap<ToolCallId, ToolOutcome> = steps
                .into_iter()
                .filter_map(remuda_domain::step::Step::into_call_outcome)
                .map(|outcome| (outcome.id, outcome))
                .collect();

            // The second run finds the same gap again.
            for text in ["next", "next again"] {
                let next = harness.run_message(text).await;
                assert_eq!(next.state, RunState::Completed, "after commit {commit}: {:?}", next.failure);
                assert_eq!(next.answer.as_deref(), Some("I go on."));
                let sent = harness.sent_messages(&harness.requests(next.id).await[0]).await;
                assert_results_complete(sent.iter().map(|message| (message.role, message.parts.as_slice())));
                for message in sent.iter().filter(|message| message.role == Role::Tool) {
                    dangling += usize::from(message.inserted);
                    for outcome in results(&message.parts) {
                        match known.get(&outcome.id) {
                            Some(known) => assert_eq!(outcome, known, "after commit {commit}"),
                            None => assert_eq!(outcome.status, CallStatus::Skipped),
                        }
                    }
                }
            }
            assert!(harness.read("made").lines().count() <= 2, "a call was repeated");
        }
    }
    assert!(dangling > 8, "{dangling} histories were repaired");
}

#[tokio::test]
async fn repair_does_not_change_the_stored_transcript() {
    let harness = harness(End::Exhausted).await;
    let id = harness.submit("work").await;
    // Commits: model call, response, intent of the first call, result.
    assert!(harness.killed_after_commit(4).await);
    harness.store.reclaim_sessions(100).await.unwrap();
    let run = harness.store.get_run(harness.tenant, id).await.unwrap();
    assert_eq!(run.state, RunState::Failed);
    let before = harness.messages().await;
    assert_eq!(tool_calls(&before[1].parts).len(), 3);
    let next = harness.run_message("next").await;
    assert_eq!(harness.messages().await[..2], before, "the transcript is not rewritten");
    let sent = harness.sent_messages(&harness.requests(next.id).await[0]).await;
    assert!(sent[2].inserted);
    let outcomes = results(&sent[2].parts);
    assert_eq!(outcomes[0].status, CallStatus::Completed);
    assert!(outcomes[0].output.to_string().contains("one"), "{:?}", outcomes[0]);
    assert!(outcomes[1..].iter().all(|outcome| outcome.status == CallStatus::Skipped));
}
