//! Sessions whose runs ended in the middle of their calls.

use std::collections::HashMap;

use remuda_domain::{
    RunState, ToolCallId,
    message::Role,
    tool::{CallStatus, ToolOutcome},
};

use crate::{
    lab::{Installation, Lab},
    look::{assert_complete, code, results, uses},
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

/// How a run ends that nobody executes any more.
#[derive(Clone, Copy, Debug)]
enum End {
    Exhausted,
    Cancelled,
}

async fn lab(end: End) -> Lab {
    let max_lost_attempts = match end {
        End::Exhausted => Some(1),
        End::Cancelled => None,
    };
    let lab = Lab::installed(SCENARIO, Installation { max_lost_attempts, ..Installation::default() }).await;
    lab.write_agent("policy: { parallel_tool_calls: false }");
    lab
}

#[tokio::test]
async fn the_next_message_finds_a_history_that_holds_together() {
    let whole = lab(End::Cancelled).await;
    whole.ask("work").await;
    let commits = whole.transport.published();
    let mut dangling = 0;
    for end in [End::Exhausted, End::Cancelled] {
        for commit in 1..=commits {
            let lab = lab(end).await;
            let id = lab.submit("work").await;
            assert!(lab.die_after(commit).await);
            if let End::Cancelled = end {
                lab.store.request_cancel(lab.tenant, id, "enough").await.unwrap();
            }
            lab.store.take_back(100).await.unwrap();
            let run = lab.store.get_run(lab.tenant, id).await.unwrap();
            let expected = match end {
                End::Exhausted => (RunState::Failed, "attempts_exhausted"),
                End::Cancelled => (RunState::Cancelled, "cancelled"),
            };
            assert_eq!((run.state, code(&run)), expected, "after commit {commit}");
            let steps = lab.steps(id).await;
            assert!(steps.iter().all(|step| step.is_finished()), "after commit {commit}: {steps:?}");
            let known: HashMap<ToolCallId, ToolOutcome> = steps
                .into_iter()
                .filter_map(remuda_domain::step::Step::into_call_outcome)
                .map(|outcome| (outcome.id, outcome))
                .collect();

            // And the one after it, which finds the same gap again.
            for text in ["next", "next again"] {
                let next = lab.ask(text).await;
                assert_eq!(next.state, RunState::Completed, "after commit {commit}: {:?}", next.failure);
                assert_eq!(next.answer.as_deref(), Some("I go on."));
                let sent = lab.rebuild(&lab.requests(next.id).await[0]).await;
                assert_complete(sent.iter().map(|message| (message.role, message.parts.as_slice())));
                for message in sent.iter().filter(|message| message.role == Role::Tool) {
                    dangling += usize::from(message.given);
                    for outcome in results(&message.parts) {
                        match known.get(&outcome.id) {
                            Some(known) => assert_eq!(outcome, known, "after commit {commit}"),
                            None => assert_eq!(outcome.status, CallStatus::Skipped),
                        }
                    }
                }
            }
            assert!(lab.read("made").lines().count() <= 2, "a call was repeated");
        }
    }
    assert!(dangling > 8, "{dangling} histories were repaired");
}

#[tokio::test]
async fn what_was_repaired_stays_as_it_was_recorded() {
    let lab = lab(End::Exhausted).await;
    let id = lab.submit("work").await;
    // The question, the answer, the first call announced, and done.
    assert!(lab.die_after(4).await);
    lab.store.take_back(100).await.unwrap();
    let run = lab.store.get_run(lab.tenant, id).await.unwrap();
    assert_eq!(run.state, RunState::Failed);
    let before = lab.messages().await;
    assert_eq!(uses(&before[1].parts).len(), 3);
    let next = lab.ask("next").await;
    assert_eq!(lab.messages().await[..2], before, "the transcript is not rewritten");
    let sent = lab.rebuild(&lab.requests(next.id).await[0]).await;
    assert!(sent[2].given);
    let outcomes = results(&sent[2].parts);
    assert_eq!(outcomes[0].status, CallStatus::Completed);
    assert!(outcomes[0].output.to_string().contains("one"), "{:?}", outcomes[0]);
    assert!(outcomes[1..].iter().all(|outcome| outcome.status == CallStatus::Skipped));
}
