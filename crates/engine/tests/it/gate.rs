//! Runs that are executed before the one in front of them is committed.

use std::time::Duration;

use remuda_domain::{
    RunInput, RunState, ToolCallId,
    run::ToolsInput,
    tool::{CallStatus, ToolCall},
};
use remuda_engine::{Gate, RunControl};
use tokio::time::timeout;

use crate::lab::Lab;

/// Long enough for a call that nothing holds back.
const A_WHILE: Duration = Duration::from_millis(500);

fn call(tool: &str, arguments: serde_json::Value) -> ToolCall {
    ToolCall { id: ToolCallId::new(), tool: tool.to_owned(), arguments, parallel: false, timeout: None }
}

fn tools(calls: Vec<ToolCall>) -> RunInput {
    RunInput::Tools(ToolsInput { calls, continue_on_error: false, record: false })
}

/// Writing the same twice does no harm, but a run that turns out not to be next must not have written at all.
#[tokio::test]
async fn only_looking_is_done_ahead() {
    let lab = Lab::new("turns: []\n").await;
    lab.write("notes.txt", "there\n");
    let read = call("Read", serde_json::json!({ "file_path": "notes.txt" }));
    let write = call("Write", serde_json::json!({ "file_path": "new.txt", "content": "written" }));
    lab.submit_input(tools(vec![read, write]), Duration::from_secs(60)).await;
    let grant = lab.claim().await;
    let control = RunControl { gate: Gate::closed(), ..RunControl::default() };
    let execution = lab.engine.execute(&grant, &control);
    tokio::pin!(execution);
    assert!(timeout(A_WHILE, &mut execution).await.is_err(), "a run went on behind a closed gate");
    let written = lab.directory.path().join("new.txt");
    assert!(!written.try_exists().unwrap(), "a run wrote before it was next in line");
    assert_eq!(lab.steps(grant.run.id).await.len(), 0, "and committed");
    control.gate.open();
    let execution = execution.await;
    let run = lab.finish(&grant, execution).await;
    assert_eq!(run.state, RunState::Completed, "{run:?}");
    assert!(run.outcomes.iter().all(|outcome| outcome.status == CallStatus::Completed));
    assert_eq!(lab.read("new.txt"), "written");
}

/// A run that only looks comes to its end, which its owner then commits when it is its turn.
#[tokio::test]
async fn looking_waits_for_nobody() {
    let lab = Lab::new("turns: []\n").await;
    lab.write("notes.txt", "there\n");
    let read = call("Read", serde_json::json!({ "file_path": "notes.txt" }));
    lab.submit_input(tools(vec![read]), Duration::from_secs(60)).await;
    let grant = lab.claim().await;
    let control = RunControl { gate: Gate::closed(), ..RunControl::default() };
    let execution = lab.engine.execute(&grant, &control).await;
    assert_eq!(lab.finish(&grant, execution).await.state, RunState::Completed);
}
