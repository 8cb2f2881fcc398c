//! Recovery: a worker is killed after each of its commits, and another one resumes the run.

use remuda_domain::{RunState, step::StepWork, tool::Effects};

use crate::harness::Harness;

/// Reads, edits and tests, with parallel and sequential calls, a failing call and an unknown tool.
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

async fn harness() -> Harness {
    let harness = Harness::new(SCENARIO).await;
    harness.write("program", "old\n");
    harness
}

#[tokio::test]
async fn run_survives_a_crash_after_any_commit() {
    let whole = harness().await;
    let run = whole.run_message("please").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let (transcript, model_call_count) = (whole.transcript().await, whole.model_call_count());
    assert_eq!(model_call_count, 4);
    assert_eq!(whole.read("tests"), "tested\n");
    let commits = whole.transport.published();
    assert!(commits > 8, "{commits} commits");

    let mut interrupted = 0;
    for commit in 1..=commits {
        let harness = harness().await;
        let id = harness.submit("please").await;
        assert!(harness.killed_after_commit(commit).await, "expected a crash after commit {commit}");
        let has_intent = harness.steps(id).await.into_iter().any(|step| match &step.work {
            StepWork::ToolCall { call, outcome, .. } => {
                let tool = harness.engine.tools.get(&call.tool);
                outcome.is_none() && tool.is_some_and(|tool| tool.effects() == Effects::Mutating)
            }
            StepWork::ModelCall { .. } => false,
        });
        let run = harness.execute().await;

        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        assert_eq!(run.attempt, 2);
        assert_eq!(
            harness.model_call_count(),
            model_call_count,
            "a model call was repeated after commit {commit}"
        );
        assert!(harness.read("tests").lines().count() <= 1, "a call was repeated after commit {commit}");
        let lines = harness.transcript().await;
        if has_intent {
            // It is unknown whether the call had effects, and the model learns that.
            interrupted += 1;
            assert!(
                lines.iter().any(|line| line.contains("interrupted")),
                "after commit {commit}: {lines:?}"
            );
            assert_eq!(lines.len(), transcript.len());
        } else {
            assert_eq!(lines, transcript, "after commit {commit}");
            assert_eq!(harness.read("program"), "new\n");
        }
    }
    // The intents of the edit and of the command, and the command again if its neighbour was faster.
    assert!((2..=3).contains(&interrupted), "{interrupted} calls were cut short");
}

/// Runs the scenario without failures. Returns the transcript, the model calls and the commits.
async fn run_without_failures() -> (Vec<String>, usize, usize) {
    let harness = harness().await;
    let run = harness.run_message("please").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    (harness.transcript().await, harness.model_call_count(), harness.transport.published())
}

#[tokio::test]
async fn run_survives_two_crashes() {
    let (transcript, model_call_count, commits) = run_without_failures().await;
    for (first, second) in (1..=commits).flat_map(|first| [(first, 1), (first, 2), (first, 4)]) {
        let harness = harness().await;
        let id = harness.submit("please").await;
        assert!(harness.killed_after_commit(first).await);
        let workers = if harness.killed_after_commit(second).await {
            harness.execute().await;
            3
        } else {
            2
        };
        let run = harness.store.get_run(harness.tenant, id).await.unwrap();
        let when = format!("after commit {first} and {second}");
        assert_eq!((run.state, run.attempt), (RunState::Completed, workers), "{when}: {:?}", run.failure);
        // Only a model call without a response is ever repeated.
        let mut model_calls: Vec<String> =
            harness.read(".openharness/calls.jsonl").lines().map(str::to_owned).collect();
        model_calls.sort();
        model_calls.dedup();
        assert_eq!(model_calls.len(), model_call_count, "{when}");
        assert_eq!(harness.model_steps(id).await.len(), model_call_count, "{when}");
        assert!(harness.read("tests").lines().count() <= 1, "a call was repeated {when}");
        let lines = harness.transcript().await;
        assert_eq!(lines.len(), transcript.len(), "{when}: {lines:?}");
        for (line, expected) in lines.iter().zip(&transcript) {
            let same = line == expected;
            let unknown = line.contains("interrupted") || line.starts_with("assistant: Done");
            // A change that was never made is not visible either.
            assert!(same || unknown || line.contains("old"), "{when}: {line} instead of {expected}");
        }
        harness.assert_results_complete().await;
    }
}

#[tokio::test]
async fn hand_over_after_any_commit_changes_nothing() {
    let (transcript, model_call_count, commits) = run_without_failures().await;
    let mut handed_over = 0;
    for commit in 1..=commits {
        let harness = harness().await;
        let id = harness.submit("please").await;
        let run = match harness.drain_after_commit(commit).await {
            Some(run) => run,
            None => {
                handed_over += 1;
                harness.execute().await
            }
        };
        assert_eq!(
            (run.id, run.state),
            (id, RunState::Completed),
            "after commit {commit}: {:?}",
            run.failure
        );
        assert_eq!(harness.transcript().await, transcript, "after commit {commit}");
        assert_eq!(harness.model_call_count(), model_call_count, "after commit {commit}");
        assert_eq!((harness.read("tests").as_str(), harness.read("program").as_str()), ("tested\n", "new\n"));
    }
    assert!(handed_over > 6, "{handed_over} hand-overs");
}

#[tokio::test]
async fn run_can_be_handed_over_at_every_step() {
    let (transcript, model_call_count, _) = run_without_failures().await;
    let harness = harness().await;
    harness.submit("please").await;
    let mut workers = 1;
    let run = loop {
        match harness.drain_after_commit(1).await {
            Some(run) => break run,
            None => workers += 1,
        }
        assert!(workers < 30, "no progress");
    };
    assert!(workers >= 6, "{workers} workers");
    assert_eq!((run.state, run.attempt, run.lost_attempts), (RunState::Completed, workers, 0));
    assert_eq!((harness.transcript().await, harness.model_call_count()), (transcript, model_call_count));
    assert_eq!(harness.read("tests"), "tested\n");
    let indices: Vec<u32> = harness.steps(run.id).await.iter().map(|step| step.index).collect();
    assert!(indices.is_sorted(), "{indices:?}");
    let events = harness.event_names(run.id).await;
    assert_eq!(events.iter().filter(|name| **name == "run.handed_over").count() + 1, workers as usize);
    assert_eq!(events.iter().filter(|name| name.starts_with("run.completed")).count(), 1);
}

#[tokio::test]
async fn run_keeps_the_definitions_it_began_with() {
    let harness = harness().await;
    let id = harness.submit("please").await;
    assert!(harness.killed_after_commit(2).await);
    // Another prompt, and no tools.
    harness.write(
        ".openharness/agents/tested.md",
        "---\nmodel: workspace/m\ntools: { native: [] }\n---\nYou are another.\n",
    );
    let run = harness.execute().await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert_eq!(harness.read("program"), "new\n");
    let versions = |steps: Vec<remuda_domain::step::Step>| {
        let hashes = steps.into_iter().filter_map(|step| match step.work {
            StepWork::ModelCall { request, .. } => Some(request.definitions),
            StepWork::ToolCall { .. } => None,
        });
        hashes.collect::<std::collections::HashSet<_>>()
    };
    let first = versions(harness.steps(id).await);
    assert_eq!(first.len(), 1);
    // The next run uses the new version.
    let next = harness.run_message("again").await;
    assert_ne!(versions(harness.steps(next.id).await), first);
}
