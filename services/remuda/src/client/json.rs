//! JSON documents for `--json`, identical to those of the HTTP API.

use remuda_api as api;
use remuda_proto::v1;
use serde::Serialize;
use serde_json::{Value, json};

/// Never fails: all maps of the API have string keys.
fn document(message: impl Serialize) -> Value {
    serde_json::to_value(message).unwrap_or_default()
}

macro_rules! documents {
    ($($name:ident($message:ident) as $shape:ident;)*) => {$(
        pub(super) fn $name(message: &v1::$message) -> Value {
            document(api::$shape::from(message.clone()))
        }
    )*};
}

documents! {
    session(Session) as Session;
    run(Run) as Run;
    outcome(ToolOutcome) as ToolOutcome;
    step(Step) as Step;
    event(Event) as Event;
    message(Message) as Message;
    workspace(Workspace) as Workspace;
    approval(Approval) as Approval;
    explanation(ExplainRunResponse) as Explanation;
    trace(GetRunTraceResponse) as Trace;
    cancelled_session(CancelSessionResponse) as CancelledSession;
    worker(Worker) as Worker;
    pool(PoolStats) as Pool;
    sandbox(Sandbox) as Sandbox;
    task(Task) as Task;
    log_filter(LogFilter) as LogFilter;
    overview(GetOverviewResponse) as Overview;
    webhook(Webhook) as Webhook;
    dead_letter(DeadLetter) as DeadLetter;
    webhook_test(TestWebhookResponse) as WebhookTest;
    budget(Budget) as Budget;
    total(Total) as Total;
}

/// Parses JSON that is transported as text.
pub(super) fn embedded(text: &str) -> Value {
    api::embedded(text).unwrap_or_default()
}

/// The name of a run state.
pub(super) fn state_name(state: i32) -> &'static str {
    remuda_proto::convert::run_state("state", state).map_or("unknown", remuda_domain::RunState::as_str)
}

/// The name of a session status.
pub(super) fn status_name(status: i32) -> &'static str {
    match v1::SessionStatus::try_from(status) {
        Ok(v1::SessionStatus::Open) => "open",
        Ok(v1::SessionStatus::Closed) => "closed",
        Ok(v1::SessionStatus::Unspecified) | Err(_) => "unknown",
    }
}

/// A delta of a message or of a command's output.
pub(super) fn delta(delta: &v1::Delta) -> Value {
    if !delta.call_id.is_empty() {
        return json!({
            "type": "tool.output",
            "run_id": delta.run_id,
            "call_id": delta.call_id,
            "stream": delta.kind,
            "offset": delta.offset,
            "text": delta.text,
        });
    }
    json!({
        "type": "message.delta",
        "run_id": delta.run_id,
        "message_id": delta.message_id,
        "kind": delta.kind,
        "offset": delta.offset,
        "text": delta.text,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use remuda_domain::{RunState, Timestamp};
    use remuda_proto::convert;

    use super::*;

    #[test]
    fn run_is_converted_to_plain_json() {
        let at: Timestamp = "2026-11-05T12:00:00.25Z".parse().unwrap();
        let message = v1::Run {
            id: "run_1".into(),
            seq: 3,
            state: v1::RunState::from(RunState::TimedOut).into(),
            input: Some(v1::run::Input::Tools(v1::ToolsInput {
                calls: vec![v1::ToolCall {
                    tool: "Bash".into(),
                    arguments: r#"{"command":"echo hi"}"#.into(),
                    ..Default::default()
                }],
                ..Default::default()
            })),
            timeout: Duration::from_millis(1500).try_into().ok(),
            created_at: Some(convert::timestamp(at)),
            outcomes: vec![v1::ToolOutcome {
                tool: "Bash".into(),
                status: "completed".into(),
                output: r#"{"stdout":"hi\n"}"#.into(),
                ..Default::default()
            }],
            failure: Some(v1::Failure { code: "run_timed_out".into(), message: "too slow".into() }),
            ..Default::default()
        };
        let json = run(&message);
        assert_eq!(json["state"], "timed_out");
        assert_eq!(json["timeout_ms"], 1500);
        assert_eq!(json["created_at"], "2026-11-05T12:00:00.250000Z");
        assert_eq!(json["tools"]["calls"][0]["arguments"]["command"], "echo hi");
        assert_eq!(json["outcomes"][0]["output"]["stdout"], "hi\n");
        assert_eq!(json["failure"]["code"], "run_timed_out");
        assert!(json.get("finished_at").is_none());
        assert!(json.get("idempotency_key").is_none());
    }

    #[test]
    fn event_data_is_embedded_as_json() {
        let json = event(&v1::Event {
            cursor: 7,
            r#type: "run.queued".into(),
            data: r#"{"seq":1}"#.into(),
            ..Default::default()
        });
        assert_eq!((&json["cursor"], &json["data"]), (&json!(7), &json!({ "seq": 1 })));
        let broken = event(&v1::Event { data: "{oops".into(), ..Default::default() });
        assert_eq!(broken["data"], "{oops");
    }

    #[test]
    fn unknown_enum_values_are_named_unknown() {
        assert_eq!(state_name(99), "unknown");
        assert_eq!(status_name(1), "open");
        assert_eq!(status_name(99), "unknown");
    }
}
