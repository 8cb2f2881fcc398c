//! Models that answer with nothing, or with too much.

use remuda_domain::RunState;

use crate::lab::Lab;

#[tokio::test]
async fn an_empty_answer_is_asked_for_once_more() {
    let lab = Lab::new(
        "turns:\n  - { when: { user_contains: was empty }, say: \"Sorry: here I am.\" }\n  - { think: hm }\n",
    )
    .await;
    let run = lab.ask("hello").await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Sorry: here I am.")),
        "{:?}",
        run.failure
    );
    assert_eq!(lab.questions(), 2);
    let told = lab.transcript().await;
    assert_eq!(told, ["user: hello", "assistant: Sorry: here I am."]);
}

#[tokio::test]
async fn a_model_that_never_says_anything_fails_the_run() {
    let lab = Lab::new("turns:\n  - { when: { may_call: true }, repeat: 100, think: hm }\n").await;
    let run = lab.ask("hello").await;
    assert_eq!(run.state, RunState::Failed);
    assert_eq!(run.failure.unwrap().code, "model_answer_invalid");
    assert_eq!(lab.questions(), 2);
    // The session is none the worse for it.
    lab.write_scenario("otherwise: { say: better }");
    let run = lab.ask("and now?").await;
    assert_eq!(run.answer.as_deref(), Some("better"), "{:?}", run.failure);
}

#[tokio::test]
async fn two_hundred_calls_at_once_each_get_a_result() {
    let calls: Vec<String> =
        (0..200).map(|n| format!("{{ tool: Read, arguments: {{ file_path: f{n} }} }}")).collect();
    let scenario = format!(
        "turns:\n  - {{ when: {{ turn: 1 }}, call: [{}] }}\notherwise: {{ say: done }}",
        calls.join(", ")
    );
    let lab = Lab::new(&scenario).await;
    (0..200).for_each(|n| lab.write(&format!("f{n}"), "x\n"));
    let run = lab.ask("read").await;
    assert_eq!((run.state, run.outcomes.len()), (RunState::Completed, 200), "{:?}", run.failure);
    lab.assert_complete().await;
}
