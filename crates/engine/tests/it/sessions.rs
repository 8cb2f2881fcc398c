//! Sessions side by side on one engine.

use remuda_domain::RunState;

use crate::{lab::Lab, look::uses};

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
async fn sessions_do_not_mix() {
    let lab = Lab::new(SCENARIO).await;
    let (one, two) = (lab.with_session(None, None).await, lab.with_session(None, None).await);
    let (mut heard_of_one, mut heard_of_two) = (one.deltas().await, two.deltas().await);
    let (first, second) = tokio::join!(one.ask("apples"), two.ask("pears"));
    for (lab, run, own, other) in [(&one, &first, "apples", "pears"), (&two, &second, "pears", "apples")] {
        assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
        let told = lab.transcript().await.join("\n");
        assert!(told.contains(own) && !told.contains(other), "{told}");
        assert_eq!(lab.read(&format!("made-{own}")), format!("{own}\n"));
        lab.assert_complete().await;
        assert!(lab.messages().await.iter().all(|message| message.run == Some(run.id)));
        let cursors: Vec<i64> = lab.events().await.iter().map(|event| event.cursor).collect();
        assert_eq!(cursors, (1..=i64::try_from(cursors.len()).unwrap()).collect::<Vec<_>>());
        assert_eq!(uses(&lab.messages().await[1].parts).len(), 2);
    }
    for (source, run) in [(&mut heard_of_one, &first), (&mut heard_of_two, &second)] {
        let pieces = source.next().await.unwrap();
        assert!(pieces.iter().all(|delta| delta.run == run.id));
    }
}
