//! Live output of running commands.

use std::time::Duration;

use remuda_domain::{
    Run, RunInput, RunState, ToolCallId,
    event::{Delta, DeltaKind},
    run::ToolsInput,
    tool::ToolCall,
};
use remuda_engine::RunControl;
use remuda_transport::DeltaSource;
use serde_json::json;

use crate::harness::{Harness, TEST_TIMEOUT};

/// Prints, waits for a file, and prints the rest.
const SLOW: &str = "echo first; echo oops >&2; until test -e go; do sleep 0.02; done; printf last";

fn bash(command: &str) -> RunInput {
    let call = ToolCall {
        id: ToolCallId::new(),
        tool: "Bash".into(),
        arguments: json!({ "command": command }),
        parallel: false,
        timeout: None,
    };
    RunInput::Tools(ToolsInput { calls: vec![call], continue_on_error: false, record: false })
}

async fn next(source: &mut dyn DeltaSource) -> Vec<Delta> {
    tokio::time::timeout(TEST_TIMEOUT, source.next()).await.unwrap().unwrap()
}

fn text(deltas: &[Delta], kind: DeltaKind) -> String {
    let mut text = String::new();
    for delta in deltas.iter().filter(|delta| delta.kind == kind) {
        assert_eq!(usize::try_from(delta.offset).unwrap(), text.len(), "no gap: {delta:?}");
        text.push_str(&delta.text);
    }
    text
}

/// Executes the head run, and lets its command continue once its first output was received.
async fn watch(harness: &Harness) -> (Run, Vec<Delta>) {
    let mut source = harness.deltas().await;
    let mut received = Vec::new();
    let first_output = async {
        while !(text(&received, DeltaKind::Stdout) == "first\n"
            && text(&received, DeltaKind::Stderr) == "oops\n")
        {
            received.extend(next(&mut *source).await.into_iter().filter(|delta| delta.call().is_some()));
        }
    };
    let (grant, execution) =
        harness.execute_until(&RunControl::default(), first_output, async || harness.write("go", "")).await;
    let run = harness.finish(&grant, execution).await;
    while text(&received, DeltaKind::Stdout) != "first\nlast" {
        received.extend(next(&mut *source).await.into_iter().filter(|delta| delta.call().is_some()));
    }
    (run, received)
}

fn check(run: &Run, received: &[Delta]) {
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let outcome = &run.outcomes[0];
    assert_eq!(outcome.output["stdout"], "first\nlast");
    assert!(
        received.iter().all(|delta| delta.call() == Some(outcome.id) && delta.run == run.id),
        "{received:?}"
    );
}

#[tokio::test]
async fn output_of_a_tools_run_is_published() {
    let harness = Harness::new("otherwise: { say: nothing }").await;
    harness.submit_input(bash(SLOW), TEST_TIMEOUT).await;
    let (run, received) = watch(&harness).await;
    check(&run, &received);
}

#[tokio::test]
async fn output_of_an_agents_run_is_published() {
    let call = serde_json::to_string(&json!({ "tool": "Bash", "arguments": { "command": SLOW } })).unwrap();
    let harness = Harness::new(&format!("turns:\n  - call: [{call}]\n  - say: Done.\n")).await;
    harness.submit("go").await;
    let (run, received) = watch(&harness).await;
    check(&run, &received);
}

#[tokio::test]
async fn output_of_a_short_command_is_not_published() {
    let harness = Harness::new("otherwise: { say: nothing }").await;
    let mut source = harness.deltas().await;
    harness.submit_input(bash("echo quick"), TEST_TIMEOUT).await;
    let run = harness.execute().await;
    assert_eq!(run.outcomes[0].output["stdout"], "quick\n");
    // The command may have been slow on a busy machine.
    if run.outcomes[0].duration_ms < 80 {
        assert!(tokio::time::timeout(Duration::ZERO, source.next()).await.is_err());
    }
}

/// Without a reader, flooding output does not delay the command.
#[tokio::test]
async fn flooding_output_does_not_delay_the_command() {
    const BYTES: u64 = 64_000_000;
    let harness = Harness::new("otherwise: { say: nothing }").await;
    let mut source = harness.deltas().await;
    harness.submit_input(bash(&format!("yes | head -c {BYTES}")), TEST_TIMEOUT).await;
    let run = harness.execute().await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert_eq!(run.outcomes[0].output["stdout_bytes"], BYTES);
    let mut published = 0;
    while let Ok(Some(deltas)) = tokio::time::timeout(Duration::from_millis(1), source.next()).await {
        assert!(deltas.iter().all(|delta| delta.text.len() <= 16 * 1024));
        published += deltas.iter().map(|delta| delta.text.len()).sum::<usize>();
    }
    assert!(published <= 1024 * 1024 + 200, "{published} bytes were published");
    assert!(published > 0 || run.outcomes[0].duration_ms < 1000, "some of it was published");
}
