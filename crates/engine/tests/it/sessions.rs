//! Concurrent sessions on one engine.

use remuda_domain::RunState;

use crate::{harness::Harness, inspect::tool_calls};

const SCENARIO: &str = r#"
pace: 1ms
turns:
  - say: "I heard {{user}} and go to work."
    call:
      - { tool: Bash, arguments: { command: "echo {{user}} >> made-{{user}}; cat made-{{user}}" } }
      - { tool: Bash, arguments: { command: "echo also {{user}}" } }
  - say: "For {{user}}: {{last_tool_result}}"
"#;

#[tokio::test]
async fn concurrent_sessions_are_isolated() {
    let harness = Harness::new(SCENARIO).await;
    let (one, two) = (harness.with_session(None, None).await, harness.with_session(None, None).await);
    let (mut deltas_of_one, mut deltas_of_two) = (one.deltas().await, two.deltas().await);
    let (first, second) = tokio::join!(one.run_message("apples"), two.run_message("pears"));
    for (harness, run, own, other) in [(&one, &first, "apples", "pears"), (&two, &second, "pears", "apples")]
    {
        assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
        let transcript = harness.transcript().await.join("\n");
        assert!(transcript.contains(own) && !transcript.contains(other), "{transcript}");
        assert_eq!(harness.read(&format!("made-{own}")), format!("{own}\n"));
        harness.assert_results_complete().await;
        assert!(harness.messages().await.iter().all(|message| message.run == Some(run.id)));
        let cursors: Vec<i64> = harness.events().await.iter().map(|event| event.cursor).collect();
        assert_eq!(cursors, (1..=i64::try_from(cursors.len()).unwrap()).collect::<Vec<_>>());
        assert_eq!(tool_calls(&harness.messages().await[1].parts).len(), 2);
    }
    for (source, run) in [(&mut deltas_of_one, &first), (&mut deltas_of_two, &second)] {
        let deltas = source.next().await.unwrap();
        assert!(deltas.iter().all(|delta| delta.run == run.id));
    }
}
