//! A worker dies after each of its commits, and another one goes on.

use remuda_domain::{RunState, step::StepWork, tool::Effects};

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
        assert!(lab.die_after(commit).await, "it was to die after commit {commit}");
        let announced = lab.steps(id).await.into_iter().any(|step| match &step.work {
            StepWork::ToolCall { call, outcome, .. } => {
                let tool = lab.engine.tools.get(&call.tool);
                outcome.is_none() && tool.is_some_and(|tool| tool.effects() == Effects::Mutating)
            }
            StepWork::ModelCall { .. } => false,
        });
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

/// How the scenario goes when nothing happens.
async fn undisturbed() -> (Vec<String>, usize, usize) {
    let lab = lab().await;
    let run = lab.ask("please").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    (lab.transcript().await, lab.questions(), lab.transport.published())
}

#[tokio::test]
async fn dying_twice_changes_nothing_either() {
    let (transcript, questions, commits) = undisturbed().await;
    for (first, second) in (1..=commits).flat_map(|first| [(first, 1), (first, 2), (first, 4)]) {
        let lab = lab().await;
        let id = lab.submit("please").await;
        assert!(lab.die_after(first).await);
        let workers = if lab.die_after(second).await {
            lab.execute().await;
            3
        } else {
            2
        };
        let run = lab.store.get_run(lab.tenant, id).await.unwrap();
        let place = format!("after commit {first} and {second}");
        assert_eq!((run.state, run.attempt), (RunState::Completed, workers), "{place}: {:?}", run.failure);
        // A question without an answer is all that is ever repeated.
        let mut asked: Vec<String> =
            lab.read(".openharness/calls.jsonl").lines().map(str::to_owned).collect();
        asked.sort();
        asked.dedup();
        assert_eq!(asked.len(), questions, "{place}");
        assert_eq!(lab.model_steps(id).await.len(), questions, "{place}");
        assert!(lab.read("tests").lines().count() <= 1, "a call was repeated {place}");
        let told = lab.transcript().await;
        assert_eq!(told.len(), transcript.len(), "{place}: {told:?}");
        for (told, expected) in told.iter().zip(&transcript) {
            let same = told == expected;
            let unknown = told.contains("interrupted") || told.starts_with("assistant: Done");
            // A change that was never made cannot be seen either.
            assert!(same || unknown || told.contains("old"), "{place}: {told} instead of {expected}");
        }
        lab.assert_complete().await;
    }
}

#[tokio::test]
async fn a_hand_over_after_any_commit_changes_nothing() {
    let (transcript, questions, commits) = undisturbed().await;
    let mut handed_over = 0;
    for commit in 1..=commits {
        let lab = lab().await;
        let id = lab.submit("please").await;
        let run = match lab.drain_after(commit).await {
            Some(run) => run,
            None => {
                handed_over += 1;
                lab.execute().await
            }
        };
        assert_eq!(
            (run.id, run.state),
            (id, RunState::Completed),
            "after commit {commit}: {:?}",
            run.failure
        );
        assert_eq!(lab.transcript().await, transcript, "after commit {commit}");
        assert_eq!(lab.questions(), questions, "after commit {commit}");
        assert_eq!((lab.read("tests").as_str(), lab.read("program").as_str()), ("tested\n", "new\n"));
    }
    assert!(handed_over > 6, "{handed_over} hand-overs");
}

#[tokio::test]
async fn a_run_can_be_handed_over_at_every_step() {
    let (transcript, questions, _) = undisturbed().await;
    let lab = lab().await;
    lab.submit("please").await;
    let mut workers = 1;
    let run = loop {
        match lab.drain_after(1).await {
            Some(run) => break run,
            None => workers += 1,
        }
        assert!(workers < 30, "no progress");
    };
    assert!(workers >= 6, "{workers} workers");
    assert_eq!((run.state, run.attempt, run.lost_attempts), (RunState::Completed, workers, 0));
    assert_eq!((lab.transcript().await, lab.questions()), (transcript, questions));
    assert_eq!(lab.read("tests"), "tested\n");
    let indices: Vec<u32> = lab.steps(run.id).await.iter().map(|step| step.index).collect();
    assert!(indices.is_sorted(), "{indices:?}");
    let events = lab.event_names(run.id).await;
    assert_eq!(events.iter().filter(|name| **name == "run.handed_over").count() + 1, workers as usize);
    assert_eq!(events.iter().filter(|name| name.starts_with("run.completed")).count(), 1);
}

#[tokio::test]
async fn a_run_keeps_the_version_it_began_with() {
    let lab = lab().await;
    let id = lab.submit("please").await;
    assert!(lab.die_after(2).await);
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
