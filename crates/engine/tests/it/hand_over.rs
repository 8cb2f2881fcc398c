//! Runs that are handed over because their worker stops.

use remuda_domain::{RunState, tool::CallStatus};
use remuda_engine::{Execution, HandOver, RunControl};
use remuda_store::Grant;
use remuda_testkit::{process, wait_for};

use crate::{
    harness::{Harness, TEST_TIMEOUT},
    inspect::statuses_and_codes,
};

const SLOW: &str = "turns: [{ delay: 10m, say: hello }]\n";
const QUICK: &str = "turns: [{ say: hello }]\n";

fn handed_over((grant, execution): (Grant, Execution)) -> (Grant, HandOver) {
    match execution {
        Execution::HandedOver(hand_over) => (grant, *hand_over),
        other => panic!("not handed over: {other:?}"),
    }
}

#[tokio::test]
async fn run_without_steps_is_handed_over() {
    let harness = Harness::new(QUICK).await;
    let id = harness.submit("go").await;
    let control = RunControl::default();
    control.drain.cancel();
    let grant = harness.claim().await;
    let execution = harness.engine.execute(&grant, &control).await;
    let (grant, hand_over) = handed_over((grant, execution));
    harness.hand_over(&grant, hand_over).await;
    assert_eq!((harness.model_call_count(), harness.messages().await.len()), (0, 0));
    let run = harness.execute().await;
    assert_eq!((run.id, run.state, run.attempt, run.lost_attempts), (id, RunState::Completed, 2, 0));
    assert_eq!(harness.transcript().await, ["user: go", "assistant: hello"]);
}

#[tokio::test]
async fn interrupted_model_call_is_repeated_with_the_same_ids() {
    let harness = Harness::new(SLOW).await;
    let id = harness.submit("go").await;
    let control = RunControl::default();
    let model_called =
        async { wait_for("the model call", TEST_TIMEOUT, async || harness.model_call_count() == 1).await };
    // A drain alone waits for the response; this one exceeds its deadline.
    let interrupt = async || {
        control.drain.cancel();
        control.interrupt.cancel();
    };
    let (grant, hand_over) = handed_over(harness.execute_until(&control, model_called, interrupt).await);
    harness.hand_over(&grant, hand_over).await;
    let before = harness.steps(id).await;
    assert_eq!(before.len(), 1);
    assert!(!before[0].is_finished());
    harness.write_scenario(QUICK);
    let run = harness.execute().await;
    assert_eq!((run.state, run.answer.as_deref()), (RunState::Completed, Some("hello")), "{:?}", run.failure);
    let after = harness.steps(id).await;
    assert_eq!((after.len(), after[0].id, after[0].index), (1, before[0].id, 0));
    assert_eq!(harness.model_call_count(), 2);
    assert_eq!(harness.transcript().await, ["user: go", "assistant: hello"]);
    let request = harness.requests(id).await.remove(0);
    assert_eq!(harness.messages().await[1].id, request.message);
    let started: Vec<_> = harness
        .events_of(id)
        .await
        .into_iter()
        .filter_map(|event| match event.body {
            remuda_domain::EventBody::ModelStarted { message, .. } => Some(message),
            _ => None,
        })
        .collect();
    assert_eq!(started, [request.message; 2]);
}

#[tokio::test]
async fn interrupted_tool_call_is_reported_to_the_model() {
    let harness = Harness::new(
        "turns:\n  - call:\n      - { tool: Bash, arguments: { command: \"echo $$ > pid; sleep 300\" } }\n      \
         - { tool: Bash, arguments: { command: echo later >> made } }\n  \
         - when: { tool_failed: true }\n    say: 'I was told: {{last_tool_result}}'\n",
    )
    .await;
    harness.write_agent("policy: { parallel_tool_calls: false }");
    harness.submit("go").await;
    let control = RunControl::default();
    let command_started =
        async { wait_for("the command", TEST_TIMEOUT, async || harness.read("pid").ends_with('\n')).await };
    let (grant, hand_over) = handed_over(
        harness.execute_until(&control, command_started, async || control.interrupt.cancel()).await,
    );
    assert_eq!(process(harness.read("pid").trim().parse().unwrap()), None);
    harness.hand_over(&grant, hand_over).await;
    let run = harness.execute().await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert_eq!(statuses_and_codes(&run), ["interrupted interrupted", "completed"]);
    assert_eq!(run.outcomes[0].status, CallStatus::Interrupted);
    assert_eq!((harness.model_call_count(), harness.read("made").as_str()), (2, "later\n"));
    harness.assert_results_complete().await;
}

#[tokio::test]
async fn drain_waits_for_the_current_response() {
    let harness = Harness::new("turns: [{ delay: 100ms, say: hello }]\n").await;
    harness.submit("go").await;
    let control = RunControl::default();
    let model_called =
        async { wait_for("the model call", TEST_TIMEOUT, async || harness.model_call_count() == 1).await };
    let (grant, execution) =
        harness.execute_until(&control, model_called, async || control.drain.cancel()).await;
    let run = harness.finish(&grant, execution).await;
    assert_eq!((run.state, run.attempt, harness.model_call_count()), (RunState::Completed, 1, 1));
}
