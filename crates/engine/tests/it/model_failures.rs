//! Failures of models.

use remuda_domain::{
    EventBody, RunState,
    event::{Delta, DeltaKind},
    tool::CallStatus,
};
use serde_json::json;

use crate::{
    harness::Harness,
    inspect::code,
    model_server::{ModelServer, say},
};

/// Fails at first, and responds to the next message.
fn scenario(turn: &str) -> String {
    format!(
        "conversations:\n  - on: {{ user_contains: next }}\n    turns: [{{ say: I go on. }}]\nturns:\n  - {{ {turn} }}\n"
    )
}

#[tokio::test]
async fn model_failure_ends_the_run_and_not_the_session() {
    let cases = [
        ("fail: { status: 400, message: no such thing }", "model_request_refused", 1),
        ("fail: { status: 401 }", "model_key_refused", 1),
        ("fail: { status: 403 }", "model_key_refused", 1),
        ("fail: { status: 400, message: this model's maximum context length is 10 }", "context_too_long", 1),
        ("fail: { status: 503 }", "model_unavailable", 5),
        ("fail: { status: 429 }", "model_overloaded", 5),
        ("fail: { status: 503, retry: false }", "model_unavailable", 1),
        ("fail: { status: 500, after_words: 2 }, say: one two three", "model_unavailable", 5),
        ("when: { turn: 9 }, say: never", "model_request_refused", 1),
    ];
    for (turn, expected, attempts) in cases {
        let harness = Harness::new(&scenario(turn)).await;
        let run = harness.run_message("go").await;
        assert_eq!((run.state, code(&run)), (RunState::Failed, expected), "{turn}");
        assert_eq!(harness.model_call_count(), attempts, "{turn}");
        assert_eq!(harness.failed_model_calls(run.id).await, [expected], "{turn}");
        let (_, outcome) = harness.model_steps(run.id).await.remove(0);
        let outcome = outcome.unwrap();
        assert_eq!((outcome.status, outcome.failure), (CallStatus::Failed, run.failure.clone()), "{turn}");
        // Text received before the failure is in the record, but not in the transcript.
        let text = remuda_domain::message::text_of(&outcome.parts);
        assert_eq!(text, if turn.contains("after_words") { "one two " } else { "" }, "{turn}");
        assert_eq!(harness.transcript().await, ["user: go"], "{turn}");
        assert_eq!(harness.event_names(run.id).await.last(), Some(&"run.failed"), "{turn}");

        let next = harness.run_message("next").await;
        assert_eq!((next.state, next.answer.as_deref()), (RunState::Completed, Some("I go on.")), "{turn}");
    }
}

#[tokio::test]
async fn each_failed_attempt_is_an_event_and_recorded_until_the_call_ends() {
    let harness =
        Harness::new(&scenario("fail: { status: 429, message: slow down, times: 2 }, say: done")).await;
    let run = harness.run_message("go").await;
    assert_eq!(run.answer.as_deref(), Some("done"), "{:?}", run.failure);
    let events = harness.events_of(run.id).await;
    let retries: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::ModelRetrying { model, retry, .. } => {
                assert!(retry.next_at > event.at, "{event:?}");
                assert!(retry.failure.message.contains("slow down"), "{event:?}");
                Some((model.to_string(), retry.attempt, retry.failure.code.clone()))
            }
            _ => None,
        })
        .collect();
    let overloaded = |attempt| ("workspace/m".to_owned(), attempt, "model_overloaded".to_owned());
    assert_eq!(retries, [overloaded(1), overloaded(2)]);
    let (request, outcome) = harness.model_steps(run.id).await.remove(0);
    assert_eq!((request.retry, outcome.unwrap().attempts), (None, 3), "the call has ended");
}

/// Applies deltas like a client: one that begins before the end of the text replaces the rest.
fn follow(deltas: &[Delta]) -> (String, usize) {
    let (mut shown, mut restarts) = (String::new(), 0);
    for delta in deltas.iter().filter(|delta| delta.kind == DeltaKind::Text) {
        let offset = usize::try_from(delta.offset).unwrap();
        assert!(offset <= shown.len(), "a hole before {delta:?}");
        restarts += usize::from(offset < shown.len());
        shown.truncate(offset);
        shown.push_str(&delta.text);
    }
    (shown, restarts)
}

#[tokio::test]
async fn response_after_failed_attempts_is_published_from_the_beginning() {
    let harness =
        Harness::new(&scenario("fail: { status: 503, after_words: 2, times: 2 }, say: one two three four"))
            .await;
    let mut source = harness.deltas().await;
    let run = harness.run_message("go").await;
    assert_eq!(run.answer.as_deref(), Some("one two three four"), "{:?}", run.failure);
    let (request, outcome) = harness.model_steps(run.id).await.remove(0);
    assert_eq!((harness.model_call_count(), outcome.unwrap().attempts), (3, 3));
    let mut deltas = Vec::new();
    let (mut shown, mut restarts) = (String::new(), 0);
    while shown != "one two three four" {
        deltas.extend(source.next().await.unwrap());
        (shown, restarts) = follow(&deltas);
    }
    assert_eq!(restarts, 2, "{deltas:?}");
    assert!(deltas.iter().all(|delta| delta.message() == Some(request.message) && delta.run == run.id));
    assert_eq!(harness.transcript().await, ["user: go", "assistant: one two three four"]);
    assert!(harness.failed_model_calls(run.id).await.is_empty());
}

#[tokio::test]
async fn empty_response_stores_no_message() {
    let harness = Harness::new("turns: [{ say: unused }]").await;
    let server = ModelServer::start(&harness, vec![json!({ "content": "" }), say("now")]).await;
    let run = harness.run_message("go").await;
    assert_eq!((run.state, run.answer.as_deref()), (RunState::Completed, Some("now")), "{:?}", run.failure);
    assert_eq!(harness.transcript().await, ["user: go", "assistant: now"]);
    // Providers reject messages without content.
    let requests = server.requests();
    let roles: Vec<_> =
        requests[1]["messages"].as_array().unwrap().iter().map(|it| it["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "user"]);
}

#[tokio::test]
async fn model_failure_after_calls_keeps_their_results() {
    let harness = Harness::new(
        "conversations:\n  - on: { user_contains: next }\n    turns: [{ say: I go on. }]\n\
         turns:\n  - call: [{ tool: Bash, arguments: { command: echo done >> made } }]\n  \
         - fail: { status: 400 }\n",
    )
    .await;
    let run = harness.run_message("go").await;
    assert_eq!((run.state, run.outcomes.len()), (RunState::Failed, 1));
    harness.assert_results_complete().await;
    assert_eq!(harness.messages().await.len(), 3);
    assert_eq!(harness.run_message("next").await.state, RunState::Completed);
    assert_eq!(harness.read("made"), "done\n");
}

/// A commit that the store rejects would be rejected from every worker.
#[tokio::test]
async fn run_whose_commits_are_rejected_fails() {
    let harness = Harness::new("turns:\n  - { when: { turn: 1 }, say: Look., call: [{ tool: Glob, arguments: { pattern: \"*\" } }] }\notherwise: { say: done }").await;
    harness
        .tamper(
            "CREATE TRIGGER refuse BEFORE INSERT ON messages WHEN NEW.role = 'assistant' \
         BEGIN SELECT RAISE(ABORT, 'not this one'); END",
        )
        .await;
    let run = harness.run_message("please").await;
    assert_eq!(run.state, RunState::Failed);
    let failure = run.failure.unwrap();
    assert_eq!(failure.code, "internal");
    assert!(failure.message.starts_with("the run cannot go on"), "{failure:?}");
    assert!(harness.steps(run.id).await.iter().all(|step| step.is_finished()));
    harness.tamper("DROP TRIGGER refuse").await;
    assert_eq!(harness.run_message("again").await.state, RunState::Completed, "the session goes on");
}
