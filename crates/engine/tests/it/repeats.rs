//! Agents that make the same call again and again.

use crate::{lab::Lab, look::verdicts};

const REFUSED: &str = "failed repeated_call";

#[tokio::test]
async fn a_call_that_changes_nothing_is_made_three_times() {
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
    for (name, call, verdict, made) in cases {
        let lab = Lab::new(&format!(
            "turns:\n  - call: [{{ tool: {call} }}]\n    repeat: 6\n  - say: I give up.\n"
        ))
        .await;
        let run = lab.ask("go").await;
        assert_eq!(run.answer.as_deref(), Some("I give up."), "{name}");
        let mut expected = vec![verdict; made];
        expected.resize(6, REFUSED);
        assert_eq!(verdicts(&run), expected, "{name}");
        if call.contains("made") {
            assert_eq!(lab.read("made").lines().count(), made, "{name}");
        }
        lab.assert_complete().await;
    }
}

#[tokio::test]
async fn another_call_in_between_begins_anew() {
    let lab = Lab::new(
        "turns:\n  - call: [{ tool: Bash, arguments: { command: echo same } }]\n    repeat: 3\n  \
         - call: [{ tool: Bash, arguments: { command: echo other } }]\n  \
         - call: [{ tool: Bash, arguments: { command: echo same } }]\n  - say: done\n",
    )
    .await;
    let run = lab.ask("go").await;
    assert_eq!(verdicts(&run), vec!["completed"; 5]);
}

#[tokio::test]
async fn other_workers_remember_what_was_repeated() {
    let lab = Lab::new(
        "turns:\n  - call: [{ tool: Bash, arguments: { command: 'echo x >> made; echo same' } }]\n    repeat: 5\n  \
         - say: I give up.\n",
    )
    .await;
    lab.submit("go").await;
    let mut workers = 1;
    let run = loop {
        match lab.drain_after(2).await {
            Some(run) => break run,
            None => workers += 1,
        }
    };
    assert!(workers > 3, "{workers} workers");
    assert_eq!(verdicts(&run), ["completed", "completed", "completed", REFUSED, REFUSED]);
    assert_eq!(lab.read("made").lines().count(), 3);
}
