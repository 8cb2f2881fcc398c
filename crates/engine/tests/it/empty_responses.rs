//! Empty responses, and responses with very many calls.

use remuda_domain::RunState;

use crate::harness::Harness;

#[tokio::test]
async fn empty_response_is_retried_once() {
    let harness = Harness::new(
        "turns:\n  - { when: { user_contains: was empty }, say: \"Sorry: here I am.\" }\n  - { think: hm }\n",
    )
    .await;
    let run = harness.run_message("hello").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Sorry: here I am.")),
        "{:?}",
        run.failure
    );
    assert_eq!(harness.model_call_count(), 2);
    let transcript = harness.transcript().await;
    assert_eq!(transcript, ["user: hello", "assistant: Sorry: here I am."]);
}

#[tokio::test]
async fn second_empty_response_fails_the_run() {
    let harness = Harness::new("turns:\n  - { when: { may_call: true }, repeat: 100, think: hm }\n").await;
    let run = harness.run_message("hello").await;
    assert_eq!(run.state, RunState::Failed);
    assert_eq!(run.failure.unwrap().code, "model_answer_invalid");
    assert_eq!(harness.model_call_count(), 2);
    // The session continues.
    harness.write_scenario("otherwise: { say: better }");
    let run = harness.run_message("and now?").await;
    assert_eq!(run.answer.as_deref(), Some("better"), "{:?}", run.failure);
}

#[tokio::test]
async fn two_hundred_parallel_calls_each_get_a_result() {
    let calls: Vec<String> =
        (0..200).map(|n| format!("{{ tool: Read, arguments: {{ file_path: f{n} }} }}")).collect();
    let scenario = format!(
        "turns:\n  - {{ when: {{ turn: 1 }}, call: [{}] }}\notherwise: {{ say: done }}",
        calls.join(", ")
    );
    let harness = Harness::new(&scenario).await;
    (0..200).for_each(|n| harness.write(&format!("f{n}"), "x\n"));
    let run = harness.run_message("read").await;
    assert_eq!((run.state, run.outcomes.len()), (RunState::Completed, 200), "{:?}", run.failure);
    harness.assert_results_complete().await;
}
