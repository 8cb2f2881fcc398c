//! Cancelled and timed-out runs.

use std::time::Duration;

use remuda_domain::{Run, RunId, RunState, message::Role, tool::CallStatus};
use remuda_engine::RunControl;
use remuda_testkit::{process, wait_for};

use crate::{
    harness::{Harness, TEST_TIMEOUT},
    inspect::{code, statuses_and_codes},
};

const LONG_RESPONSE: &str = r#"
pace: 5ms
conversations:
  - on: { user_contains: next }
    turns: [{ say: I go on. }]
turns:
  - think: Let me see.
    say: "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty and so on for a long time until somebody has heard enough of it"
"#;

/// Does not respond during the test.
const SLOW_MODEL: &str = r#"
conversations:
  - on: { user_contains: next }
    turns: [{ say: I go on. }]
turns:
  - delay: 10m
    say: too late
"#;

const SLOW_COMMAND: &str = r#"
conversations:
  - on: { user_contains: next }
    turns: [{ say: I go on. }]
turns:
  - say: I work.
    call:
      - { tool: Bash, arguments: { command: "echo $$ > pid; sleep 300" } }
      - { tool: Bash, arguments: { command: echo x > never } }
  - say: done
"#;

/// Submits a run, waits for `moment` of its execution, and cancels it as a worker does.
async fn cancel_at(harness: &Harness, moment: impl Future<Output = ()>) -> Run {
    let id = harness.submit("go").await;
    let control = RunControl::default();
    let cancel = async || {
        harness.store.request_cancel(harness.tenant, id, "enough of it").await.unwrap();
        control.cancel.cancel();
    };
    let (grant, execution) = harness.execute_until(&control, moment, cancel).await;
    harness.finish(&grant, execution).await
}

async fn assert_session_continues(harness: &Harness) {
    let next = harness.run_message("next").await;
    assert_eq!(
        (next.state, next.answer.as_deref()),
        (RunState::Completed, Some("I go on.")),
        "{:?}",
        next.failure
    );
    harness.assert_results_complete().await;
}

/// The command is dead, if it had started at all.
fn assert_killed(harness: &Harness) {
    if let Ok(pid) = harness.read("pid").trim().parse() {
        assert_eq!(process(pid), None);
    }
}

async fn wait_for_model_call(harness: &Harness) {
    wait_for("the model call", TEST_TIMEOUT, async || harness.model_call_count() == 1).await;
}

#[tokio::test]
async fn cancelled_response_keeps_the_received_text() {
    let harness = Harness::new(LONG_RESPONSE).await;
    let mut deltas = harness.deltas().await;
    let mut received = String::new();
    let moment = async {
        while !received.contains("three") {
            let pieces = deltas.next().await.unwrap();
            let texts = pieces.iter().filter(|delta| delta.kind == remuda_domain::event::DeltaKind::Text);
            texts.for_each(|delta| received.push_str(&delta.text));
        }
    };
    let run = cancel_at(&harness, moment).await;
    assert_eq!((run.state, code(&run)), (RunState::Cancelled, "cancelled"));
    assert_eq!(run.failure.unwrap().message, "enough of it");
    let messages = harness.messages().await;
    let last = messages.last().unwrap();
    assert_eq!((messages.len(), last.role), (2, Role::Assistant));
    let stored = last.text();
    assert!(stored.starts_with(&received) && !stored.contains("enough of it"), "{stored}");
    let (request, outcome) = harness.model_steps(run.id).await.remove(0);
    let outcome = outcome.unwrap();
    assert_eq!((request.message, outcome.status), (last.id, CallStatus::Cancelled));
    assert_eq!(remuda_domain::message::text_of(&outcome.parts), stored);
    let names = harness.event_names(run.id).await;
    let ends = ["message.completed", "run.stopped", "run.cancelled"];
    assert!(names.ends_with(&ends), "{names:?}");
    assert_session_continues(&harness).await;
    assert_eq!(harness.model_call_count(), 2);
}

#[tokio::test]
async fn cancelled_run_without_a_response_stores_no_message() {
    let harness = Harness::new(SLOW_MODEL).await;
    let run = cancel_at(&harness, wait_for_model_call(&harness)).await;
    assert_eq!(run.state, RunState::Cancelled);
    assert_eq!(harness.transcript().await, ["user: go"]);
    assert_session_continues(&harness).await;
}

#[tokio::test]
async fn cancelled_call_leaves_no_process() {
    for parallel in [false, true] {
        let harness = Harness::new(SLOW_COMMAND).await;
        harness.write_agent(&format!("policy: {{ parallel_tool_calls: {parallel} }}"));
        let moment = async {
            wait_for("the command", TEST_TIMEOUT, async || {
                harness.read("pid").ends_with('\n') && (!parallel || !harness.read("never").is_empty())
            })
            .await;
        };
        let run = cancel_at(&harness, moment).await;
        assert_eq!(run.state, RunState::Cancelled);
        let pid = harness.read("pid").trim().parse().unwrap();
        assert_eq!(process(pid), None);
        assert_eq!(statuses_and_codes(&run)[0], "cancelled cancelled");
        if !parallel {
            assert_eq!(statuses_and_codes(&run)[1], "cancelled", "it was not begun");
            assert_eq!(harness.read("never"), "");
        }
        assert!(harness.steps(run.id).await.iter().all(|step| step.is_finished()));
        harness.assert_results_complete().await;
        assert_session_continues(&harness).await;
    }
}

#[tokio::test]
async fn run_times_out_at_the_shorter_limit() {
    // Far less than the model or the command takes. The agent's limit applies if it is shorter.
    for (scenario, run_time, agents) in [
        (SLOW_MODEL, Duration::from_millis(400), None),
        (SLOW_COMMAND, Duration::from_millis(1500), None),
        (SLOW_MODEL, Duration::from_secs(60), Some("0.4")),
        (SLOW_COMMAND, Duration::from_secs(60), Some("1.5")),
        (SLOW_MODEL, Duration::from_millis(400), Some("50")),
    ] {
        let harness = Harness::new(scenario).await;
        let limit = agents.map_or_else(String::new, |agents| format!(", run_timeout_seconds: {agents}"));
        harness.write_agent(&format!("policy: {{ parallel_tool_calls: false{limit} }}"));
        let id: RunId = harness.submit_for(run_time, "go").await;
        let run = harness.execute().await;
        assert_eq!((run.id, run.state, code(&run)), (id, RunState::TimedOut, "run_timed_out"));
        // The message states which limit applied.
        let limit = agents.map_or(run_time, |agents| Duration::from_secs_f64(agents.parse().unwrap()));
        let message = run.failure.unwrap().message;
        assert!(message.contains(&format!("{:?}", limit.min(run_time))), "{message}");
        if scenario == SLOW_COMMAND {
            assert_eq!(run.outcomes.len(), 2);
            assert_killed(&harness);
        }
        assert!(harness.steps(id).await.iter().all(|step| step.is_finished()));
        harness.assert_results_complete().await;
        assert_session_continues(&harness).await;
    }
}

#[tokio::test]
async fn timed_out_call_is_a_result() {
    let harness = Harness::new(SLOW_COMMAND).await;
    harness.write_agent("policy: { parallel_tool_calls: false, tool_timeout_seconds: 2 }");
    let run = harness.run_message("go").await;
    assert_eq!((run.state, run.answer.as_deref()), (RunState::Completed, Some("done")), "{:?}", run.failure);
    assert_eq!(statuses_and_codes(&run), ["timed_out tool_timed_out", "completed"]);
    assert_killed(&harness);
}

#[tokio::test]
async fn abandoned_run_writes_nothing_more() {
    for before in [true, false] {
        let harness = Harness::new(SLOW_MODEL).await;
        let id = harness.submit("go").await;
        let control = RunControl::default();
        let execution = if before {
            control.abandon.cancel();
            let grant = harness.claim().await;
            harness.engine.execute(&grant, &control).await
        } else {
            harness
                .execute_until(&control, wait_for_model_call(&harness), async || control.abandon.cancel())
                .await
                .1
        };
        assert!(matches!(execution, remuda_engine::Execution::Abandoned), "{execution:?}");
        assert!(harness.steps(id).await.iter().all(|step| !step.is_finished()));
    }
}
