//! A worker dies after each of its commits, and another one goes on.

use remuda_domain::{RunState, step::StepWork, tool::Effects};
use remuda_engine::RunControl;

use crate::lab::Lab;

/// Reads, edits and tests, with calls at once and one after the other, a failing one and one that does not exist.
const SCENARIO: &str = r#"
turns:
  - say: First the facts.
    think: Where to begin?
    call:
      - { tool: Read, arguments: { file_path: program } }
      - { tool: Read, arguments: { file_path: missing } }
      - { tool: Launch, arguments: {} }
  - say: Now the change.
    call:
      - { tool: Edit, arguments: { file_path: program, old_string: old, new_string: new } }
  - say: And the test.
    call:
      - { tool: Bash, arguments: { command: "echo tested >> tests; cat program" } }
      - { tool: Glob, arguments: { pattern: "prog*" } }
  - say: "Done: {{last_tool_result}}"
"#;

async fn lab() -> Lab {
    let lab = Lab::new(SCENARIO).await;
    lab.write("program", "old\n");
    lab
}

#[tokio::test]
async fn dying_after_any_commit_changes_nothing_that_was_done() {
    let whole = lab().await;
    let run = whole.ask("please").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let (transcript, questions) = (whole.transcript().await, whole.questions());
    assert_eq!(questions, 4);
    assert_eq!(whole.read("tests"), "tested\n");
    let commits = whole.transport.published();
    assert!(commits > 8, "{commits} commits");

    let mut cut_short = 0;
    for commit in 1..=commits {
        let lab = lab().await;
        let id = lab.submit("please").await;
        lab.transport.stop_after(commit);
        let grant = lab.claim().await;
        let control = RunControl::default();
        {
            let executing = lab.engine.execute(&grant, &control);
            tokio::select! {
                ended = executing => panic!("it was to die after commit {commit}: {ended:?}"),
                () = lab.transport.stopped() => {}
            }
        }
        lab.lose_workers().await;
        let announced = lab.steps(id).await.into_iter().any(|step| match &step.work {
            StepWork::ToolCall { call, outcome } => {
                let tool = lab.engine.tools.get(&call.tool);
                outcome.is_none() && tool.is_some_and(|tool| tool.effects() == Effects::Mutating)
            }
            StepWork::ModelCall { .. } => false,
        });
        lab.transport.stop_after(0);
        let run = lab.execute().await;

        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        assert_eq!(run.attempt, 2);
        assert_eq!(lab.questions(), questions, "a question was repeated after commit {commit}");
        assert!(lab.read("tests").lines().count() <= 1, "a call was repeated after commit {commit}");
        let told = lab.transcript().await;
        if announced {
            // Nobody can know whether it happened, and the model is told so.
            cut_short += 1;
            assert!(told.iter().any(|line| line.contains("interrupted")), "after commit {commit}: {told:?}");
            assert_eq!(told.len(), transcript.len());
        } else {
            assert_eq!(told, transcript, "after commit {commit}");
            assert_eq!(lab.read("program"), "new\n");
        }
    }
    // The edit and the command, each announced and not begun; and the command again if its neighbour was quicker.
    assert!((2..=3).contains(&cut_short), "{cut_short} calls were cut short");
}

#[tokio::test]
async fn a_run_keeps_the_version_it_began_with() {
    let lab = lab().await;
    let id = lab.submit("please").await;
    lab.transport.stop_after(2);
    let grant = lab.claim().await;
    let control = RunControl::default();
    tokio::select! {
        ended = lab.engine.execute(&grant, &control) => panic!("{ended:?}"),
        () = lab.transport.stopped() => {}
    }
    lab.lose_workers().await;
    lab.transport.stop_after(0);
    // Another prompt, and the tools are gone.
    lab.write(
        ".openharness/agents/tested.md",
        "---\nmodel: workspace/m\ntools: { native: [] }\n---\nYou are another.\n",
    );
    let run = lab.execute().await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert_eq!(lab.read("program"), "new\n");
    let versions = |steps: Vec<remuda_domain::step::Step>| {
        let hashes = steps.into_iter().filter_map(|step| match step.work {
            StepWork::ModelCall { request, .. } => Some(request.definitions),
            StepWork::ToolCall { .. } => None,
        });
        hashes.collect::<std::collections::HashSet<_>>()
    };
    let first = versions(lab.steps(id).await);
    assert_eq!(first.len(), 1);
    // The next run sees the change without a restart.
    let next = lab.ask("again").await;
    assert_ne!(versions(lab.steps(next.id).await), first);
}
