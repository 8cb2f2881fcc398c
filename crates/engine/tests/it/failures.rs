//! Models that fail.

use remuda_domain::{
    RunState,
    event::{Delta, DeltaKind},
    tool::CallStatus,
};
use serde_json::json;

use crate::{
    lab::Lab,
    look::code,
    model_server::{ModelServer, say},
};

/// Fails at first, and has an answer to the next message.
fn scenario(turn: &str) -> String {
    format!(
        "conversations:\n  - on: {{ user_contains: next }}\n    turns: [{{ say: I go on. }}]\nturns:\n  - {{ {turn} }}\n"
    )
}

#[tokio::test]
async fn a_failure_ends_the_run_and_not_the_session() {
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
        let lab = Lab::new(&scenario(turn)).await;
        let run = lab.ask("go").await;
        assert_eq!((run.state, code(&run)), (RunState::Failed, expected), "{turn}");
        assert_eq!(lab.questions(), attempts, "{turn}");
        assert_eq!(lab.failed_questions(run.id).await, [expected], "{turn}");
        let (_, outcome) = lab.model_steps(run.id).await.remove(0);
        let outcome = outcome.unwrap();
        assert_eq!((outcome.status, outcome.failure), (CallStatus::Failed, run.failure.clone()), "{turn}");
        // What it said before it broke is in the record. Nobody is to build on it, so it is not in the transcript.
        let said = remuda_domain::message::text_of(&outcome.parts);
        assert_eq!(said, if turn.contains("after_words") { "one two " } else { "" }, "{turn}");
        assert_eq!(lab.transcript().await, ["user: go"], "{turn}");
        assert_eq!(lab.event_names(run.id).await.last(), Some(&"run.failed"), "{turn}");

        let next = lab.ask("next").await;
        assert_eq!((next.state, next.answer.as_deref()), (RunState::Completed, Some("I go on.")), "{turn}");
    }
}

/// What a reader shows who follows the pieces: one that begins earlier than what there is replaces the rest.
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
async fn an_answer_after_failures_is_told_anew() {
    let lab =
        Lab::new(&scenario("fail: { status: 503, after_words: 2, times: 2 }, say: one two three four")).await;
    let mut source = lab.deltas().await;
    let run = lab.ask("go").await;
    assert_eq!(run.answer.as_deref(), Some("one two three four"), "{:?}", run.failure);
    let (request, outcome) = lab.model_steps(run.id).await.remove(0);
    assert_eq!((lab.questions(), outcome.unwrap().attempts), (3, 3));
    let mut deltas = Vec::new();
    let (mut shown, mut restarts) = (String::new(), 0);
    while shown != "one two three four" {
        deltas.extend(source.next().await.unwrap());
        (shown, restarts) = follow(&deltas);
    }
    assert_eq!(restarts, 2, "{deltas:?}");
    assert!(deltas.iter().all(|delta| delta.message() == Some(request.message) && delta.run == run.id));
    assert_eq!(lab.transcript().await, ["user: go", "assistant: one two three four"]);
    assert!(lab.failed_questions(run.id).await.is_empty());
}

#[tokio::test]
async fn an_empty_answer_leaves_no_message() {
    let lab = Lab::new("turns: [{ say: unused }]").await;
    let server = ModelServer::start(&lab, vec![json!({ "content": "" }), say("now")]).await;
    let run = lab.ask("go").await;
    assert_eq!((run.state, run.answer.as_deref()), (RunState::Completed, Some("now")), "{:?}", run.failure);
    assert_eq!(lab.transcript().await, ["user: go", "assistant: now"]);
    // Providers would refuse a message without content when they see it again.
    let asked = server.asked();
    let roles: Vec<_> =
        asked[1]["messages"].as_array().unwrap().iter().map(|it| it["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "user"]);
}

#[tokio::test]
async fn a_failure_after_calls_keeps_what_was_done() {
    let lab = Lab::new(
        "conversations:\n  - on: { user_contains: next }\n    turns: [{ say: I go on. }]\n\
         turns:\n  - call: [{ tool: Bash, arguments: { command: echo done >> made } }]\n  \
         - fail: { status: 400 }\n",
    )
    .await;
    let run = lab.ask("go").await;
    assert_eq!((run.state, run.outcomes.len()), (RunState::Failed, 1));
    lab.assert_complete().await;
    assert_eq!(lab.messages().await.len(), 3);
    assert_eq!(lab.ask("next").await.state, RunState::Completed);
    assert_eq!(lab.read("made"), "done\n");
}

/// A store that refuses what a run wants to write would refuse it from every worker.
#[tokio::test]
async fn a_run_whose_commits_are_refused_ends() {
    let lab = Lab::new("turns:\n  - { when: { turn: 1 }, say: Look., call: [{ tool: Glob, arguments: { pattern: \"*\" } }] }\notherwise: { say: done }").await;
    lab.tamper(
        "CREATE TRIGGER refuse BEFORE INSERT ON messages WHEN NEW.role = 'assistant' \
         BEGIN SELECT RAISE(ABORT, 'not this one'); END",
    )
    .await;
    let run = lab.ask("please").await;
    assert_eq!(run.state, RunState::Failed);
    let failure = run.failure.unwrap();
    assert_eq!(failure.code, "internal");
    assert!(failure.message.starts_with("the run cannot go on"), "{failure:?}");
    assert!(lab.steps(run.id).await.iter().all(|step| step.is_finished()));
    lab.tamper("DROP TRIGGER refuse").await;
    assert_eq!(lab.ask("again").await.state, RunState::Completed, "the session goes on");
}
