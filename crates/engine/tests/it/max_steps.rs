//! Agents that have used up their steps.

use remuda_domain::{EventBody, RunState, message::Role, step::StopReason};

use crate::{
    harness::Harness,
    inspect::{statuses_and_codes, text},
};

const OBEDIENT: &str = r#"
turns:
  - when: { may_call: false }
    say: "I conclude. I was told: {{user}}"
  - say: I go on.
    call: [{ tool: Bash, arguments: { command: "echo step {{turn}} >> made" } }]
    repeat: 100
"#;

/// Calls tools although it may not.
const STUBBORN: &str = r#"
turns:
  - say: I go on.
    call: [{ tool: Bash, arguments: { command: "echo step {{turn}} >> made" } }]
    repeat: 100
"#;

#[tokio::test]
async fn last_model_call_asks_for_a_conclusion() {
    for max_steps in [2, 3, 5] {
        let harness = Harness::new(OBEDIENT).await;
        harness.write_agent(&format!("policy: {{ max_steps: {max_steps} }}"));
        let run = harness.run_message("work").await;
        assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
        assert_eq!(harness.model_call_count(), max_steps);
        assert_eq!(harness.read("made").lines().count(), max_steps - 1);
        assert_eq!(run.stop_reason, Some(StopReason::MaxSteps));
        let stopped = harness.events_of(run.id).await.into_iter().filter_map(|event| match event.body {
            EventBody::AgentStopped { agent, reason, steps } => Some((agent, reason, steps as usize)),
            _ => None,
        });
        assert_eq!(stopped.collect::<Vec<_>>(), [("tested".to_owned(), StopReason::MaxSteps, max_steps)]);
        let answer = run.answer.unwrap();
        assert!(answer.starts_with("I conclude.") && answer.contains("last step"), "{answer}");
        let requests = harness.requests(run.id).await;
        let concluding: Vec<bool> = requests.iter().map(|request| request.concluding).collect();
        assert_eq!(concluding.iter().filter(|it| **it).count(), 1);
        assert_eq!(concluding.last(), Some(&true));
        // The instruction is in the model call, with the newest results, and not in the transcript.
        let last = harness.sent_messages(requests.last().unwrap()).await.pop().unwrap();
        assert!(last.inserted && last.role == Role::Tool && text(&last).contains("last step"), "{last:?}");
        let transcript = harness.transcript().await;
        assert!(
            !transcript[..transcript.len() - 1].iter().any(|line| line.contains("last step")),
            "{transcript:?}"
        );
        // The messages contain calls, so tools are offered to the end.
        assert!(requests.iter().all(|request| request.tools == requests[0].tools));
    }
}

#[tokio::test]
async fn agent_that_concludes_by_itself_was_not_stopped() {
    let harness =
        Harness::new("turns:\n  - call: [{ tool: Bash, arguments: { command: echo hi } }]\n  - say: done\n")
            .await;
    harness.write_agent("policy: { max_steps: 3 }");
    let run = harness.run_message("work").await;
    assert_eq!((run.answer.as_deref(), run.stop_reason), (Some("done"), None));
    assert!(!harness.events_of(run.id).await.iter().any(|it| it.body.name() == "agent.stopped"));
}

#[tokio::test]
async fn calls_after_the_last_step_are_refused_and_the_run_ends() {
    for max_steps in [2, 4] {
        let harness = Harness::new(STUBBORN).await;
        harness.write_agent(&format!("policy: {{ max_steps: {max_steps} }}"));
        let run = harness.run_message("work").await;
        assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
        assert_eq!(harness.model_call_count(), max_steps);
        assert_eq!(
            harness.read("made").lines().count(),
            max_steps - 1,
            "a call was made after the last step"
        );
        let mut expected = vec!["completed"; max_steps - 1];
        expected.push("failed tools_disabled");
        assert_eq!(statuses_and_codes(&run), expected);
        assert_eq!(run.answer.as_deref(), Some("I go on."));
        assert_eq!(run.stop_reason, Some(StopReason::MaxSteps));
        harness.assert_results_complete().await;
        // The next run is not affected.
        let next = harness.run_message("again").await;
        assert_eq!(next.state, RunState::Completed, "{:?}", next.failure);
        harness.assert_results_complete().await;
    }
}
