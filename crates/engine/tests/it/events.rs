//! Events and deltas of a session.

use remuda_domain::{
    EventBody, RunState,
    event::{Delta, DeltaKind},
    message::{Part, Role},
};
use remuda_transport::DeltaSource;

use crate::harness::Harness;

const SCENARIO: &str = r#"
turns:
  - think: Where should I begin?
    say: First the facts, all of them.
    call:
      - { tool: Bash, arguments: { command: echo one } }
      - { tool: Read, arguments: { file_path: missing } }
  - say: "That was quick, and here is the end."
"#;

#[tokio::test]
async fn every_event_is_emitted_once_and_in_order() {
    let harness = Harness::new(SCENARIO).await;
    harness.write_agent("policy: { parallel_tool_calls: false }");
    let run = harness.run_message("go").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    let expected = [
        "run.queued",
        "run.started",
        "message.completed", // user
        "model.started",
        "model.completed",
        "message.completed", // assistant
        "tool.started",
        "tool.completed",
        "tool.started",
        "tool.failed",
        "message.completed", // tool
        "model.started",
        "model.completed",
        "message.completed", // assistant
        "run.completed",
    ];
    assert_eq!(harness.event_names(run.id).await, expected);
    let next = harness.run_message("again").await;
    assert_eq!(harness.event_names(next.id).await, expected);

    let events = harness.events().await;
    let cursors: Vec<i64> = events.iter().map(|event| event.cursor).collect();
    assert_eq!(cursors, (1..=i64::try_from(events.len()).unwrap()).collect::<Vec<_>>());
    // The events contain the whole transcript.
    let from_events: Vec<_> = events
        .into_iter()
        .filter_map(|event| match event.body {
            EventBody::MessageCompleted { message, role, agent, parts } => {
                Some((message, role, agent, parts))
            }
            _ => None,
        })
        .collect();
    let stored = harness.messages().await.into_iter().map(|it| (it.id, it.role, it.agent, it.parts));
    assert_eq!(from_events, stored.collect::<Vec<_>>());
}

async fn collect(source: &mut dyn DeltaSource, until: impl Fn(&[Delta]) -> bool) -> Vec<Delta> {
    let mut deltas = Vec::new();
    while !until(&deltas) {
        let next = tokio::time::timeout(crate::harness::TEST_TIMEOUT, source.next()).await;
        deltas.extend(next.unwrap_or_else(|_| panic!("nothing follows {deltas:?}")).unwrap());
    }
    deltas
}

#[tokio::test]
async fn deltas_add_up_to_the_messages() {
    for pace in ["", "pace: 2ms\n"] {
        let harness = Harness::new(&format!("{pace}{SCENARIO}")).await;
        let mut source = harness.deltas().await;
        let run = harness.run_message("go").await;
        let responses: Vec<_> =
            harness.messages().await.into_iter().filter(|message| message.role == Role::Assistant).collect();
        let whole: usize = responses
            .iter()
            .flat_map(|message| &message.parts)
            .map(|part| match part {
                Part::Text { text } => text.len(),
                Part::Reasoning { reasoning } => reasoning.text.len(),
                _ => 0,
            })
            .sum();
        let length = |deltas: &[Delta]| deltas.iter().map(|delta| delta.text.len()).sum::<usize>();
        let deltas = collect(&mut *source, |deltas| length(deltas) >= whole).await;
        for message in &responses {
            let pieces = |kind| -> String {
                let of =
                    deltas.iter().filter(|delta| delta.message() == Some(message.id) && delta.kind == kind);
                of.map(|delta| delta.text.as_str()).collect()
            };
            assert_eq!(pieces(DeltaKind::Text), message.text(), "{pace}");
            let thought = message.parts.iter().find_map(|part| match part {
                Part::Reasoning { reasoning } => Some(reasoning.text.clone()),
                _ => None,
            });
            assert_eq!(pieces(DeltaKind::Reasoning), thought.unwrap_or_default(), "{pace}");
        }
        assert!(deltas.iter().all(|delta| delta.run == run.id));
    }
}
