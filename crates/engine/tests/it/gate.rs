//! Runs that execute before the preceding run is committed.

use std::time::Duration;

use remuda_domain::{
    RunInput, RunState, ToolCallId,
    run::ToolsInput,
    tool::{CallStatus, ToolCall},
};
use remuda_engine::{Gate, RunControl};
use tokio::time::timeout;

use crate::harness::Harness;

/// Long enough for a call that is not held back.
const A_WHILE: Duration = Duration::from_millis(500);

fn call(tool: &str, arguments: serde_json::Value) -> ToolCall {
    ToolCall { id: ToolCallId::new(), tool: tool.to_owned(), arguments, parallel: false, timeout: None }
}

fn tools(calls: Vec<ToolCall>) -> RunInput {
    RunInput::Tools(ToolsInput { calls, continue_on_error: false, record: false })
}

/// Writing the same file twice is harmless, but a run that turns out not to be next must not write at all.
#[tokio::test]
async fn only_reads_execute_behind_a_closed_gate() {
    let harness = Harness::new("turns: []\n").await;
    harness.write("notes.txt", "there\n");
    let read = call("Read", serde_json::json!({ "file_path": "notes.txt" }));
    let write = call("Write", serde_json::json!({ "file_path": "new.txt", "content": "written" }));
    harness.submit_input(tools(vec![read, write]), Duration::from_secs(60)).await;
    let grant = harness.claim().await;
    let control = RunControl { gate: Gate::closed(), ..RunControl::default() };
    let execution = harness.engine.execute(&grant, &control);
    tokio::pin!(execution);
    assert!(timeout(A_WHILE, &mut execution).await.is_err(), "a run went on behind a closed gate");
    let written = harness.directory.path().join("new.txt");
    assert!(!written.try_exists().unwrap(), "a run wrote before it was next in line");
    assert_eq!(harness.steps(grant.run.id).await.len(), 0, "and committed");
    control.gate.open();
    let execution = execution.await;
    let run = harness.finish(&grant, execution).await;
    assert_eq!(run.state, RunState::Completed, "{run:?}");
    assert!(run.outcomes.iter().all(|outcome| outcome.status == CallStatus::Completed));
    assert_eq!(harness.read("new.txt"), "written");
}

/// A run that only reads completes. Its owner commits the end when the gate opens.
#[tokio::test]
async fn read_only_run_completes_behind_a_closed_gate() {
    let harness = Harness::new("turns: []\n").await;
    harness.write("notes.txt", "there\n");
    let read = call("Read", serde_json::json!({ "file_path": "notes.txt" }));
    harness.submit_input(tools(vec![read]), Duration::from_secs(60)).await;
    let grant = harness.claim().await;
    let control = RunControl { gate: Gate::closed(), ..RunControl::default() };
    let execution = harness.engine.execute(&grant, &control).await;
    assert_eq!(harness.finish(&grant, execution).await.state, RunState::Completed);
}
