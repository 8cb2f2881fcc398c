use remuda_domain::{
    StepId, Timestamp, ToolCallId,
    run::Failure,
    step::CallLinks,
    tool::{ToolCall, ToolOutcome},
    trace::{SpanId, TraceContext},
};
use serde_json::json;

use super::*;

fn call() -> ToolCall {
    let arguments = json!({ "command": "secret" });
    ToolCall { id: ToolCallId::new(), tool: "Bash".to_owned(), arguments, parallel: false, timeout: None }
}

fn described(outcome: Option<ToolOutcome>, call: ToolCall) -> Span {
    let (at, work) =
        (Timestamp::UNIX_EPOCH, StepWork::ToolCall { call, outcome, links: CallLinks::default() });
    let step = Step { id: StepId::new(), index: 2, work, started_at: at, finished_at: Some(at), epoch: 1 };
    let parent: TraceContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap();
    describe(Span::below(parent, SpanId::of_step(step.id), title(&step), (at, at)), &step)
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|it| it.key.as_str() == name)?;
    Some(found.value.to_string())
}

#[test]
fn tool_span_contains_the_exit_code_but_no_output() {
    let call = call();
    let output = json!({ "exit_code": 3, "stdout": "hush", "stderr": "" });
    let outcome = ToolOutcome { output, ..ToolOutcome::without_result(&call, CallStatus::Completed, None) };
    let span = described(Some(outcome), call);
    assert_eq!(span.name, "execute_tool Bash");
    assert_eq!(attribute(&span, name::EXIT_CODE).as_deref(), Some("3"));
    assert_eq!(attribute(&span, name::OUTPUT_BYTES).as_deref(), Some("4"));
    assert_eq!(attribute(&span, name::BACKEND), None, "it was not in a sandbox");
    assert_eq!(span.failure, None);
    let all = format!("{span:?}");
    assert!(!all.contains("hush") && !all.contains("secret"), "{all}");
}

#[test]
fn failed_call_has_its_error_type_and_message() {
    let call = call();
    let failure = Failure { code: "tool_timed_out".to_owned(), message: "too slow".to_owned() };
    let span = described(Some(ToolOutcome::without_result(&call, CallStatus::TimedOut, Some(failure))), call);
    assert_eq!(span.failure.as_deref(), Some("too slow"));
    assert_eq!(attribute(&span, name::ERROR_TYPE).as_deref(), Some("tool_timed_out"));
}

#[test]
fn skipped_call_has_no_span() {
    let call = call();
    let skipped = ToolOutcome::without_result(&call, CallStatus::Skipped, None);
    let step = |outcome| {
        let work = StepWork::ToolCall { call: call.clone(), outcome, links: CallLinks::default() };
        let at = Timestamp::UNIX_EPOCH;
        Step { id: StepId::new(), index: 0, work, started_at: at, finished_at: Some(at), epoch: 1 }
    };
    assert!(!was_executed(&step(Some(skipped))) && !was_executed(&step(None)));
}
