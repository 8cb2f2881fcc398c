//! Agents that repeat the same call.

use crate::{harness::Harness, inspect::statuses_and_codes};

const REFUSED: &str = "failed repeated_call";

#[tokio::test]
async fn repeated_call_without_progress_is_refused_after_three_times() {
    let cases = [
        ("the same result", "Bash, arguments: { command: 'echo x >> made; echo same' }", "completed", 3),
        (
            "another result each time",
            "Bash, arguments: { command: 'echo x >> made; wc -l < made' }",
            "completed",
            6,
        ),
        ("the same failure", "Read, arguments: { file_path: missing }", "failed file_not_found", 3),
        ("a tool for looking again", "BashOutput, arguments: { task_id: none }", "failed task_not_found", 6),
    ];
    for (name, call, status_and_code, made) in cases {
        let harness = Harness::new(&format!(
            "turns:\n  - call: [{{ tool: {call} }}]\n    repeat: 6\n  - say: I give up.\n"
        ))
        .await;
        let run = harness.run_message("go").await;
        assert_eq!(run.answer.as_deref(), Some("I give up."), "{name}");
        let mut expected = vec![status_and_code; made];
        expected.resize(6, REFUSED);
        assert_eq!(statuses_and_codes(&run), expected, "{name}");
        if call.contains("made") {
            assert_eq!(harness.read("made").lines().count(), made, "{name}");
        }
        harness.assert_results_complete().await;
    }
}

#[tokio::test]
async fn another_call_in_between_resets_the_count() {
    let harness = Harness::new(
        "turns:\n  - call: [{ tool: Bash, arguments: { command: echo same } }]\n    repeat: 3\n  \
         - call: [{ tool: Bash, arguments: { command: echo other } }]\n  \
         - call: [{ tool: Bash, arguments: { command: echo same } }]\n  - say: done\n",
    )
    .await;
    let run = harness.run_message("go").await;
    assert_eq!(statuses_and_codes(&run), vec!["completed"; 5]);
}

#[tokio::test]
async fn set_of_calls_that_repeats_in_every_turn_is_refused() {
    let harness = Harness::new(
        "turns:\n  - call: [{ tool: Bash, arguments: { command: echo one } }, { tool: Bash, arguments: { command: echo two } }]\n    \
         repeat: 6\n  - say: I give up.\n",
    )
    .await;
    let run = harness.run_message("go").await;
    assert_eq!(run.answer.as_deref(), Some("I give up."));
    let statuses = statuses_and_codes(&run);
    // The second call of the first turn is new, so the first one counts from the second turn on.
    assert_eq!(statuses[..6], vec!["completed"; 6]);
    assert_eq!(statuses[8..], vec![REFUSED; 4]);
}

#[tokio::test]
async fn repetition_count_survives_a_hand_over() {
    let harness = Harness::new(
        "turns:\n  - call: [{ tool: Bash, arguments: { command: 'echo x >> made; echo same' } }]\n    repeat: 5\n  \
         - say: I give up.\n",
    )
    .await;
    harness.submit("go").await;
    let mut workers = 1;
    let run = loop {
        match harness.drain_after_commit(2).await {
            Some(run) => break run,
            None => workers += 1,
        }
    };
    assert!(workers > 3, "{workers} workers");
    assert_eq!(statuses_and_codes(&run), ["completed", "completed", "completed", REFUSED, REFUSED]);
    assert_eq!(harness.read("made").lines().count(), 3);
}
