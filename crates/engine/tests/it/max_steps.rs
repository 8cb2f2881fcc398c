//! An agent that has used up its steps.

use remuda_domain::{RunState, message::Role};

use crate::{
    lab::Lab,
    look::{text, verdicts},
};

const OBEDIENT: &str = r#"
turns:
  - when: { may_call: false }
    say: "I conclude. I was told: {{user}}"
  - say: I go on.
    call: [{ tool: Bash, arguments: { command: "echo step {{turn}} >> made" } }]
    repeat: 100
"#;

/// Calls, whatever it is told.
const STUBBORN: &str = r#"
turns:
  - say: I go on.
    call: [{ tool: Bash, arguments: { command: "echo step {{turn}} >> made" } }]
    repeat: 100
"#;

#[tokio::test]
async fn the_last_question_asks_for_a_conclusion() {
    for max_steps in [2, 3, 5] {
        let lab = Lab::new(OBEDIENT).await;
        lab.write_agent(&format!("policy: {{ max_steps: {max_steps} }}"));
        let run = lab.ask("work").await;
        assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
        assert_eq!(lab.questions(), max_steps);
        assert_eq!(lab.read("made").lines().count(), max_steps - 1);
        let answer = run.answer.unwrap();
        assert!(answer.starts_with("I conclude.") && answer.contains("last step"), "{answer}");
        let requests = lab.requests(run.id).await;
        let concluding: Vec<bool> = requests.iter().map(|request| request.concluding).collect();
        assert_eq!(concluding.iter().filter(|it| **it).count(), 1);
        assert_eq!(concluding.last(), Some(&true));
        // The instruction is in the question, with the newest results, and not in the transcript.
        let last = lab.rebuild(requests.last().unwrap()).await.pop().unwrap();
        assert!(last.given && last.role == Role::Tool && text(&last).contains("last step"), "{last:?}");
        let said = lab.transcript().await;
        assert!(!said[..said.len() - 1].iter().any(|line| line.contains("last step")), "{said:?}");
        // Calls of them are in the messages, so tools are shown to the end.
        assert!(requests.iter().all(|request| request.tools == requests[0].tools));
    }
}

#[tokio::test]
async fn who_calls_anyway_is_refused_and_the_run_ends() {
    for max_steps in [2, 4] {
        let lab = Lab::new(STUBBORN).await;
        lab.write_agent(&format!("policy: {{ max_steps: {max_steps} }}"));
        let run = lab.ask("work").await;
        assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
        assert_eq!(lab.questions(), max_steps);
        assert_eq!(lab.read("made").lines().count(), max_steps - 1, "a call was made after the last step");
        let mut expected = vec!["completed"; max_steps - 1];
        expected.push("failed tools_disabled");
        assert_eq!(verdicts(&run), expected);
        assert_eq!(run.answer.as_deref(), Some("I go on."));
        lab.assert_complete().await;
        // Nothing of it stands in the way of the next message.
        let next = lab.ask("again").await;
        assert_eq!(next.state, RunState::Completed, "{:?}", next.failure);
        lab.assert_complete().await;
    }
}
