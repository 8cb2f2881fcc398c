//! Runs that are handed over because their worker has to stop.

use remuda_domain::{RunState, tool::CallStatus};
use remuda_engine::{Execution, HandOver, RunControl};
use remuda_store::Grant;
use remuda_testkit::{process, wait_for};

use crate::{
    lab::{Lab, PATIENCE},
    look::verdicts,
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
async fn a_run_that_was_not_begun_is_handed_over_whole() {
    let lab = Lab::new(QUICK).await;
    let id = lab.submit("go").await;
    let control = RunControl::default();
    control.drain.cancel();
    let grant = lab.claim().await;
    let execution = lab.engine.execute(&grant, &control).await;
    let (grant, hand_over) = handed_over((grant, execution));
    lab.hand_over(&grant, hand_over).await;
    assert_eq!((lab.questions(), lab.messages().await.len()), (0, 0));
    let run = lab.execute().await;
    assert_eq!((run.id, run.state, run.attempt, run.lost_attempts), (id, RunState::Completed, 2, 0));
    assert_eq!(lab.transcript().await, ["user: go", "assistant: hello"]);
}

#[tokio::test]
async fn a_dropped_question_is_asked_again_under_the_same_ids() {
    let lab = Lab::new(SLOW).await;
    let id = lab.submit("go").await;
    let control = RunControl::default();
    let asked = async { wait_for("the question", PATIENCE, async || lab.questions() == 1).await };
    // A drain alone waits for the answer; this one takes too long.
    let interrupt = async || {
        control.drain.cancel();
        control.interrupt.cancel();
    };
    let (grant, hand_over) = handed_over(lab.execute_until(&control, asked, interrupt).await);
    lab.hand_over(&grant, hand_over).await;
    let before = lab.steps(id).await;
    assert_eq!(before.len(), 1);
    assert!(!before[0].is_finished());
    lab.write_scenario(QUICK);
    let run = lab.execute().await;
    assert_eq!((run.state, run.answer.as_deref()), (RunState::Completed, Some("hello")), "{:?}", run.failure);
    let after = lab.steps(id).await;
    assert_eq!((after.len(), after[0].id, after[0].index), (1, before[0].id, 0));
    assert_eq!(lab.questions(), 2);
    assert_eq!(lab.transcript().await, ["user: go", "assistant: hello"]);
    let request = lab.requests(id).await.remove(0);
    assert_eq!(lab.messages().await[1].id, request.message);
    let started: Vec<_> = lab
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
async fn an_interrupted_call_is_told_to_the_model() {
    let lab = Lab::new(
        "turns:\n  - call:\n      - { tool: Bash, arguments: { command: \"echo $$ > pid; sleep 300\" } }\n      \
         - { tool: Bash, arguments: { command: echo later >> made } }\n  \
         - when: { tool_failed: true }\n    say: 'I was told: {{last_tool_result}}'\n",
    )
    .await;
    lab.write_agent("policy: { parallel_tool_calls: false }");
    lab.submit("go").await;
    let control = RunControl::default();
    let begun = async { wait_for("the command", PATIENCE, async || lab.read("pid").ends_with('\n')).await };
    let (grant, hand_over) =
        handed_over(lab.execute_until(&control, begun, async || control.interrupt.cancel()).await);
    assert_eq!(process(lab.read("pid").trim().parse().unwrap()), None);
    lab.hand_over(&grant, hand_over).await;
    let run = lab.execute().await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert_eq!(verdicts(&run), ["interrupted interrupted", "completed"]);
    assert_eq!(run.outcomes[0].status, CallStatus::Interrupted);
    assert_eq!((lab.questions(), lab.read("made").as_str()), (2, "later\n"));
    lab.assert_complete().await;
}

#[tokio::test]
async fn a_drain_lets_the_present_answer_come() {
    let lab = Lab::new("turns: [{ delay: 100ms, say: hello }]\n").await;
    lab.submit("go").await;
    let control = RunControl::default();
    let asked = async { wait_for("the question", PATIENCE, async || lab.questions() == 1).await };
    let (grant, execution) = lab.execute_until(&control, asked, async || control.drain.cancel()).await;
    let run = lab.finish(&grant, execution).await;
    assert_eq!((run.state, run.attempt, lab.questions()), (RunState::Completed, 1, 1));
}
