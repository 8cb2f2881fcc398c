//! The API's messages as JSON, for `--json`.
//!
//! Field names are those of the protos. Text that is JSON on the wire (arguments, outputs, data, parts) becomes real
//! JSON, times become RFC 3339, durations milliseconds, states their lower-case names. Empty fields are left out.

mod agent;
mod cooperation;

use std::time::Duration;

use chrono::SecondsFormat;
use remuda_domain::Timestamp;
use remuda_proto::{convert::from_timestamp, v1};
use serde_json::{Map, Value, json};

pub(super) use self::{
    agent::{delta, message, workspace},
    cooperation::approval,
};
use super::spending::{budget_json, total_json};

/// An object without its empty fields.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let kept = fields.into_iter().filter(|(_, value)| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        _ => true,
    });
    Value::Object(kept.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

/// JSON that travels as text. Text that is none after all is kept as text.
pub(super) fn embedded(text: &str) -> Value {
    if text.is_empty() {
        return Value::Null;
    }
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

fn time(at: Option<Timestamp>) -> Value {
    at.map_or(Value::Null, |at| at.to_rfc3339_opts(SecondsFormat::Micros, true).into())
}

fn millis(duration: Option<Duration>) -> Value {
    duration.and_then(|duration| u64::try_from(duration.as_millis()).ok()).map_or(Value::Null, Value::from)
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

pub(super) fn session(session: &v1::Session) -> Value {
    object([
        ("id", session.id.as_str().into()),
        ("name", session.name.as_str().into()),
        ("title", session.title.as_str().into()),
        ("workspace_id", session.workspace_id.as_str().into()),
        ("pool", session.pool.as_str().into()),
        ("status", status_name(session.status).into()),
        ("pending_runs", session.pending_runs.into()),
        ("current_run_id", session.current_run_id.as_str().into()),
        ("worker_id", session.worker_id.as_str().into()),
        ("parent_id", session.parent_id.as_str().into()),
        ("agent", session.agent.as_str().into()),
        ("model", session.model.as_str().into()),
        ("execution", session.execution.as_ref().map_or(Value::Null, execution)),
        ("permissions", session.permissions.as_ref().map_or(Value::Null, cooperation::permissions)),
        ("depth", if session.depth == 0 { Value::Null } else { session.depth.into() }),
        ("budget", budget_json(session.budget.as_ref())),
        ("spent", total_json(session.spent.as_ref())),
        ("tree_spent", total_json(session.tree_spent.as_ref())),
        ("last_cursor", session.last_cursor.into()),
        ("created_at", time(session.created_at.as_ref().and_then(from_timestamp))),
    ])
}

fn execution(execution: &v1::Execution) -> Value {
    object([
        ("backend", execution.backend.as_str().into()),
        ("image", execution.image.as_str().into()),
        ("network", execution.network.as_str().into()),
        ("workspace_access", execution.workspace_access.as_str().into()),
    ])
}

fn place(place: &v1::Place) -> Value {
    object([
        ("backend", place.backend.as_str().into()),
        ("sandbox_id", place.sandbox_id.as_str().into()),
        ("image", place.image.as_str().into()),
        ("digest", place.digest.as_str().into()),
    ])
}

pub(super) fn sandbox(sandbox: &v1::Sandbox) -> Value {
    object([
        ("id", sandbox.id.as_str().into()),
        ("backend", sandbox.backend.as_str().into()),
        ("state", sandbox.state.as_str().into()),
        ("tenant_id", sandbox.tenant_id.as_str().into()),
        ("session_id", sandbox.session_id.as_str().into()),
        ("epoch", sandbox.epoch.into()),
        ("worker_id", sandbox.worker_id.as_str().into()),
        ("worker_alive", sandbox.worker_alive.into()),
        ("handle", sandbox.handle.as_str().into()),
        ("engine", sandbox.engine.as_str().into()),
        ("image", sandbox.image.as_str().into()),
        ("digest", sandbox.digest.as_str().into()),
        ("created_at", time(sandbox.created_at.as_ref().and_then(from_timestamp))),
        ("used_at", time(sandbox.used_at.as_ref().and_then(from_timestamp))),
    ])
}

pub(super) fn run(run: &v1::Run) -> Value {
    let (tools, message) = match &run.input {
        Some(v1::run::Input::Tools(input)) => (tools(input), Value::Null),
        Some(v1::run::Input::Message(input)) => (Value::Null, agent::input(input)),
        None => (Value::Null, Value::Null),
    };
    object([
        ("id", run.id.as_str().into()),
        ("session_id", run.session_id.as_str().into()),
        ("seq", run.seq.into()),
        ("state", state_name(run.state).into()),
        ("tools", tools),
        ("message", message),
        ("timeout_ms", millis(run.timeout.and_then(|timeout| timeout.try_into().ok()))),
        ("attempt", run.attempt.into()),
        ("lost_attempts", run.lost_attempts.into()),
        ("park_reason", run.park_reason.as_str().into()),
        ("parent_run_id", run.parent_run_id.as_str().into()),
        ("spent", total_json(run.spent.as_ref())),
        ("tree_spent", total_json(run.tree_spent.as_ref())),
        ("budget", budget_json(run.budget.as_ref())),
        ("created_at", time(run.created_at.as_ref().and_then(from_timestamp))),
        ("started_at", time(run.started_at.as_ref().and_then(from_timestamp))),
        ("finished_at", time(run.finished_at.as_ref().and_then(from_timestamp))),
        ("outcomes", run.outcomes.iter().map(outcome).collect()),
        ("answer", run.answer.as_str().into()),
        ("failure", run.failure.as_ref().map_or(Value::Null, failure)),
        ("cancel_requested_at", time(run.cancel_requested_at.as_ref().and_then(from_timestamp))),
        ("cancel_reason", run.cancel_reason.as_str().into()),
        ("cancel", run.cancel.as_ref().map_or(Value::Null, cancel)),
        ("idempotency_key", run.idempotency_key.as_str().into()),
    ])
}

fn tools(input: &v1::ToolsInput) -> Value {
    object([
        ("calls", input.calls.iter().map(call).collect()),
        ("continue_on_error", input.continue_on_error.into()),
        ("record", input.record.into()),
    ])
}

fn cancel(cancel: &v1::CancelReceipts) -> Value {
    object([
        ("requested_at", time(cancel.requested_at.as_ref().and_then(from_timestamp))),
        ("reason", cancel.reason.as_str().into()),
        ("delivered_at", time(cancel.delivered_at.as_ref().and_then(from_timestamp))),
        ("stopped_at", time(cancel.stopped_at.as_ref().and_then(from_timestamp))),
        ("released_at", time(cancel.released_at.as_ref().and_then(from_timestamp))),
    ])
}

fn call(call: &v1::ToolCall) -> Value {
    object([
        ("id", call.id.as_str().into()),
        ("tool", call.tool.as_str().into()),
        ("arguments", embedded(&call.arguments)),
        ("parallel", call.parallel.into()),
        ("timeout_ms", millis(call.timeout.and_then(|timeout| timeout.try_into().ok()))),
    ])
}

/// The same form in which outcomes stand in the data of events.
pub(super) fn outcome(outcome: &v1::ToolOutcome) -> Value {
    object([
        ("id", outcome.id.as_str().into()),
        ("tool", outcome.tool.as_str().into()),
        ("status", outcome.status.as_str().into()),
        ("output", embedded(&outcome.output)),
        ("failure", outcome.failure.as_ref().map_or(Value::Null, failure)),
        ("duration_ms", outcome.duration_ms.into()),
        ("place", outcome.place.as_ref().map_or(Value::Null, place)),
    ])
}

fn failure(failure: &v1::Failure) -> Value {
    json!({ "code": failure.code, "message": failure.message })
}

pub(super) fn step(step: &v1::Step) -> Value {
    object([
        ("id", step.id.as_str().into()),
        ("index", step.index.into()),
        ("kind", step.kind.as_str().into()),
        ("call", step.call.as_ref().map_or(Value::Null, call)),
        ("outcome", step.outcome.as_ref().map_or(Value::Null, outcome)),
        ("model_call", step.model_call.as_ref().map_or(Value::Null, agent::model_call)),
        ("approval_id", step.approval_id.as_str().into()),
        ("child_run_id", step.child_run_id.as_str().into()),
        ("child_session_id", step.child_session_id.as_str().into()),
        ("edited_arguments", embedded(&step.edited_arguments)),
        ("started_at", time(step.started_at.as_ref().and_then(from_timestamp))),
        ("finished_at", time(step.finished_at.as_ref().and_then(from_timestamp))),
    ])
}

pub(super) fn event(event: &v1::Event) -> Value {
    object([
        ("id", event.id.as_str().into()),
        ("cursor", event.cursor.into()),
        ("session_id", event.session_id.as_str().into()),
        ("run_id", event.run_id.as_str().into()),
        ("type", event.r#type.as_str().into()),
        ("data", embedded(&event.data)),
        ("at", time(event.at.as_ref().and_then(from_timestamp))),
    ])
}

pub(super) fn worker(worker: &v1::Worker) -> Value {
    object([
        ("id", worker.id.as_str().into()),
        ("host", worker.host.as_str().into()),
        ("version", worker.version.as_str().into()),
        ("pool", worker.pool.as_str().into()),
        ("slots", worker.slots.into()),
        ("busy", worker.busy.into()),
        ("state", worker.state.as_str().into()),
        ("started_at", time(worker.started_at.as_ref().and_then(from_timestamp))),
        ("lease_until", time(worker.lease_until.as_ref().and_then(from_timestamp))),
    ])
}

pub(super) fn pool(pool: &v1::PoolStats) -> Value {
    object([
        ("pool", pool.pool.as_str().into()),
        ("runnable_sessions", pool.runnable_sessions.into()),
        ("running_sessions", pool.running_sessions.into()),
        ("queued_runs", pool.queued_runs.into()),
        ("workers", pool.workers.into()),
        ("slots", pool.slots.into()),
        ("oldest_runnable_at", time(pool.oldest_runnable_at.as_ref().and_then(from_timestamp))),
    ])
}

pub(super) fn explanation(explanation: &v1::ExplainRunResponse) -> Value {
    object([
        ("run_id", explanation.run_id.as_str().into()),
        ("state", state_name(explanation.state).into()),
        ("reason", explanation.reason.as_str().into()),
        ("message", explanation.message.as_str().into()),
        ("waits_for", explanation.waits_for.as_str().into()),
        ("position", explanation.position.into()),
        ("hint", explanation.hint.as_str().into()),
        ("receipts", if explanation.receipts.is_empty() { Value::Null } else { receipts(explanation) }),
        ("waits", if explanation.waits.is_empty() { Value::Null } else { waits(explanation) }),
    ])
}

fn receipts(explanation: &v1::ExplainRunResponse) -> Value {
    let receipt = |receipt: &v1::Receipt| json!({ "name": receipt.name, "at": time(receipt.at.as_ref().and_then(from_timestamp)) });
    explanation.receipts.iter().map(receipt).collect()
}

fn waits(explanation: &v1::ExplainRunResponse) -> Value {
    explanation.waits.iter().map(cooperation::wait).collect()
}

pub(super) fn cancelled_session(answer: &v1::CancelSessionResponse) -> Value {
    json!({
        "ended_run_ids": answer.ended_run_ids,
        "requested_run_ids": answer.requested_run_ids,
        "session_ids": answer.session_ids,
    })
}

pub(super) fn task(task: &v1::Task) -> Value {
    object([
        ("name", task.name.as_str().into()),
        ("rounds", task.rounds.into()),
        ("failures", task.failures.into()),
        ("last", task.last.as_ref().map_or(Value::Null, task_round)),
        ("last_notable", task.last_notable.as_ref().map_or(Value::Null, task_round)),
    ])
}

fn task_round(round: &v1::TaskRound) -> Value {
    object([
        ("holder", round.holder.as_str().into()),
        ("started_at", time(round.started_at.as_ref().and_then(from_timestamp))),
        ("duration_ms", millis(round.duration.and_then(|duration| duration.try_into().ok()))),
        ("counts", json!(round.counts)),
        ("error", round.error.as_str().into()),
    ])
}

#[cfg(test)]
mod tests {
    use remuda_domain::{RunState, Timestamp};
    use remuda_proto::convert;

    use super::*;

    #[test]
    fn a_run_becomes_plain_json() {
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
    fn an_event_embeds_its_data() {
        let json = event(&v1::Event {
            cursor: 7,
            r#type: "run.queued".into(),
            data: r#"{"seq":1}"#.into(),
            ..Default::default()
        });
        assert_eq!(json, json!({ "cursor": 7, "type": "run.queued", "data": { "seq": 1 } }));
        let broken = event(&v1::Event { data: "{oops".into(), ..Default::default() });
        assert_eq!(broken["data"], "{oops");
    }

    #[test]
    fn unknown_numbers_have_a_name() {
        assert_eq!(state_name(99), "unknown");
        assert_eq!(status_name(1), "open");
        assert_eq!(status_name(99), "unknown");
    }
}
