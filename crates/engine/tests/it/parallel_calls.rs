//! Several tool calls in one response.

use std::fmt::Write as _;

use remuda_domain::{RunState, limits::MAX_CALLS, step::StepWork};

use crate::{
    harness::Harness,
    inspect::{results, status_and_code, statuses_and_codes, tool_calls},
};

const MIXED: &str = r#"
turns:
  - call:
      - { tool: Bash, arguments: { command: echo one } }
      - { tool: Launch, arguments: {} }
      - { tool: Bash, raw: '{"command": "echo' }
      - { tool: Read, arguments: { file_path: missing } }
      - { tool: Bash, arguments: { wrong: true } }
      - { tool: Bash, arguments: { command: exit 3 } }
      - { tool: Bash, arguments: { command: echo last } }
  - say: "Done: {{last_tool_result}}"
"#;

#[tokio::test]
async fn failed_call_does_not_cancel_the_others() {
    for parallel in [true, false] {
        let harness = Harness::new(MIXED).await;
        harness.write_agent(&format!("policy: {{ parallel_tool_calls: {parallel} }}"));
        let run = harness.run_message("go").await;
        assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
        let expected = [
            "completed",
            "failed unknown_tool",
            "failed invalid_argument",
            "failed file_not_found",
            "failed invalid_argument",
            "completed",
            "completed",
        ];
        assert_eq!(statuses_and_codes(&run), expected, "parallel: {parallel}");
        harness.assert_results_complete().await;
        let answer = run.answer.unwrap();
        assert!(answer.contains("last"), "{answer}");
        let messages = harness.messages().await;
        let names: Vec<String> =
            tool_calls(&messages[1].parts).iter().map(|call| call.tool.clone()).collect();
        assert_eq!(names, ["Bash", "Launch", "Bash", "Read", "Bash", "Bash", "Bash"]);
        // Invalid JSON is kept, so that the model can see its mistake.
        assert_eq!(tool_calls(&messages[1].parts)[2].arguments["not_json"], r#"{"command": "echo"#);
        let unknown = results(&messages[2].parts)[1].failure.clone().unwrap();
        assert!(unknown.message.contains("Launch") && unknown.message.contains("Bash"), "{unknown:?}");
    }
}

#[tokio::test]
async fn sequential_calls_do_not_overlap() {
    let call = |name: &str| {
        format!(
            "      - {{ tool: Bash, arguments: {{ command: \"echo {name} begins >> log; sleep 0.05; echo {name} ends >> log\" }} }}\n"
        )
    };
    let turns = format!("turns:\n  - call:\n{}{}{}  - say: done\n", call("a"), call("b"), call("c"));
    let harness = Harness::new(&turns).await;
    harness.write_agent("policy: { parallel_tool_calls: false }");
    let run = harness.run_message("go").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert_eq!(harness.read("log"), "a begins\na ends\nb begins\nb ends\nc begins\nc ends\n");
    let times: Vec<_> = harness
        .steps(run.id)
        .await
        .into_iter()
        .filter(|step| step.call().is_some())
        .map(|step| (step.started_at, step.finished_at.unwrap()))
        .collect();
    assert!(times.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{times:?}");
}

#[tokio::test]
async fn parallel_calls_overlap() {
    // Neither call ends before the other has started.
    let call = |own: &str, other: &str| {
        format!(
            "      - {{ tool: Bash, arguments: {{ command: \"touch {own}; until [ -e {other} ]; do sleep 0.01; done\" }} }}\n"
        )
    };
    let turns = format!("turns:\n  - call:\n{}{}  - say: done\n", call("a", "b"), call("b", "a"));
    let harness = Harness::new(&turns).await;
    harness.write_agent("policy: { parallel_tool_calls: true, tool_timeout_seconds: 30 }");
    let run = harness.run_message("go").await;
    assert_eq!(statuses_and_codes(&run), ["completed", "completed"]);
}

#[tokio::test]
async fn calls_above_the_limit_get_an_error_result() {
    const WANTED: usize = 300;
    let mut turns = "turns:\n  - call:\n".to_owned();
    for number in 0..WANTED {
        writeln!(turns, "      - {{ tool: Bash, arguments: {{ command: echo {number} >> made }} }}").unwrap();
    }
    turns.push_str("  - say: done\n");
    let harness = Harness::new(&turns).await;
    let run = harness.run_message("go").await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert_eq!(harness.model_call_count(), 2);
    harness.assert_results_complete().await;
    let messages = harness.messages().await;
    let outcomes = results(&messages[2].parts);
    assert_eq!(outcomes.len(), WANTED);
    for (index, outcome) in outcomes.iter().enumerate() {
        let expected = if index < MAX_CALLS { "completed" } else { "failed too_large" };
        assert_eq!(status_and_code(outcome), expected, "call {index}");
    }
    let mut made: Vec<usize> = harness.read("made").lines().map(|line| line.parse().unwrap()).collect();
    made.sort_unstable();
    assert_eq!(made, (0..MAX_CALLS).collect::<Vec<_>>());
    let steps = harness.steps(run.id).await;
    assert_eq!(steps.iter().filter(|step| matches!(step.work, StepWork::ToolCall { .. })).count(), WANTED);
    let indices: Vec<u32> = steps.iter().map(|step| step.index).collect();
    assert_eq!(indices, (0..u32::try_from(WANTED + 2).unwrap()).collect::<Vec<_>>());
}
