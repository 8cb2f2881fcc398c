//! What commands print reaches those who watch while they run.

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

use crate::lab::{Lab, PATIENCE};

/// Prints something, waits to be let on, and prints the rest.
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
    tokio::time::timeout(PATIENCE, source.next()).await.unwrap().unwrap()
}

fn text(deltas: &[Delta], kind: DeltaKind) -> String {
    let mut text = String::new();
    for delta in deltas.iter().filter(|delta| delta.kind == kind) {
        assert_eq!(usize::try_from(delta.offset).unwrap(), text.len(), "without a hole: {delta:?}");
        text.push_str(&delta.text);
    }
    text
}

/// Executes the head run, and lets its command on once its first words were heard.
async fn watch(lab: &Lab) -> (Run, Vec<Delta>) {
    let mut source = lab.deltas().await;
    let mut heard = Vec::new();
    let first_words = async {
        while !(text(&heard, DeltaKind::Stdout) == "first\n" && text(&heard, DeltaKind::Stderr) == "oops\n") {
            heard.extend(next(&mut *source).await.into_iter().filter(|delta| delta.call().is_some()));
        }
    };
    let (grant, execution) =
        lab.execute_until(&RunControl::default(), first_words, async || lab.write("go", "")).await;
    let run = lab.finish(&grant, execution).await;
    while text(&heard, DeltaKind::Stdout) != "first\nlast" {
        heard.extend(next(&mut *source).await.into_iter().filter(|delta| delta.call().is_some()));
    }
    (run, heard)
}

fn check(run: &Run, heard: &[Delta]) {
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let outcome = &run.outcomes[0];
    assert_eq!(outcome.output["stdout"], "first\nlast");
    assert!(heard.iter().all(|delta| delta.call() == Some(outcome.id) && delta.run == run.id), "{heard:?}");
}

#[tokio::test]
async fn of_a_tools_run() {
    let lab = Lab::new("otherwise: { say: nothing }").await;
    lab.submit_input(bash(SLOW), PATIENCE).await;
    let (run, heard) = watch(&lab).await;
    check(&run, &heard);
}

#[tokio::test]
async fn of_an_agents_run() {
    let call = serde_json::to_string(&json!({ "tool": "Bash", "arguments": { "command": SLOW } })).unwrap();
    let lab = Lab::new(&format!("turns:\n  - call: [{call}]\n  - say: Done.\n")).await;
    lab.submit("go").await;
    let (run, heard) = watch(&lab).await;
    check(&run, &heard);
}

#[tokio::test]
async fn a_quick_command_costs_nothing() {
    let lab = Lab::new("otherwise: { say: nothing }").await;
    let mut source = lab.deltas().await;
    lab.submit_input(bash("echo quick"), PATIENCE).await;
    let run = lab.execute().await;
    assert_eq!(run.outcomes[0].output["stdout"], "quick\n");
    // It may have been slow after all, on a machine that is busy with other things.
    if run.outcomes[0].duration_ms < 80 {
        assert!(tokio::time::timeout(Duration::ZERO, source.next()).await.is_err());
    }
}

/// Nobody reads what is told of it, and it goes on as if nobody was told.
#[tokio::test]
async fn a_flood_ends_when_it_ends() {
    const BYTES: u64 = 64_000_000;
    let lab = Lab::new("otherwise: { say: nothing }").await;
    let mut source = lab.deltas().await;
    lab.submit_input(bash(&format!("yes | head -c {BYTES}")), PATIENCE).await;
    let run = lab.execute().await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert_eq!(run.outcomes[0].output["stdout_bytes"], BYTES);
    let mut told = 0;
    while let Ok(Some(deltas)) = tokio::time::timeout(Duration::from_millis(1), source.next()).await {
        assert!(deltas.iter().all(|delta| delta.text.len() <= 16 * 1024));
        told += deltas.iter().map(|delta| delta.text.len()).sum::<usize>();
    }
    assert!(told <= 1024 * 1024 + 200, "{told} bytes were told");
    assert!(told > 0 || run.outcomes[0].duration_ms < 1000, "some of it was told");
}
