//! Converts domain types to protobuf messages, and requests to domain types.

mod approval;
mod budget;
mod event;
mod execution;
mod fleet;
mod message;
mod session;
mod step;
mod webhook;

use std::time::{Duration, SystemTime};

use remuda_domain::{
    Error, Run, RunInput, RunState, Timestamp, ToolCallId,
    error::Result,
    limits,
    run::{CancelRequest, Failure, IfBusy, ToolsInput},
    tool::{ToolCall, ToolOutcome},
};
use serde_json::Value;

pub use self::{
    approval::session_permissions,
    budget::limit,
    event::typed_event,
    execution::{execution_choice, sandbox},
    message::{message_bytes, message_input},
};
use crate::v1;

#[must_use]
pub fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    SystemTime::from(at).into()
}

/// Converts a protobuf timestamp; `None` if it is out of range.
#[must_use]
pub fn from_timestamp(at: &prost_types::Timestamp) -> Option<Timestamp> {
    let nanos = u32::try_from(at.nanos).ok()?;
    Timestamp::from_timestamp(at.seconds, nanos)
}

/// Converts to a protobuf duration; `None` if it is too long.
#[must_use]
pub fn to_duration(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

/// Converts a duration of a request. Errors for negative and oversized values name the field.
pub fn from_duration(field: &str, duration: prost_types::Duration) -> Result<Duration> {
    let duration = plain_duration(duration).ok_or_else(|| Error::invalid(field, "expected 1 ms to 24 h"))?;
    limits::check_timeout(field, duration)?;
    Ok(duration)
}

/// Converts a protobuf duration of any length; `None` if it is negative.
#[must_use]
pub fn plain_duration(duration: prost_types::Duration) -> Option<Duration> {
    // The library negates negative durations, which panics for the smallest number of seconds.
    if duration.seconds < 0 { None } else { duration.try_into().ok() }
}

impl From<RunState> for v1::RunState {
    fn from(state: RunState) -> Self {
        match state {
            RunState::Queued => Self::Queued,
            RunState::Running => Self::Running,
            RunState::Parked => Self::Parked,
            RunState::Completed => Self::Completed,
            RunState::Failed => Self::Failed,
            RunState::Cancelled => Self::Cancelled,
            RunState::TimedOut => Self::TimedOut,
        }
    }
}

/// Converts the number of a state. Unspecified and unknown numbers are refused.
pub fn run_state(field: &str, number: i32) -> Result<RunState> {
    match v1::RunState::try_from(number) {
        Ok(v1::RunState::Queued) => Ok(RunState::Queued),
        Ok(v1::RunState::Running) => Ok(RunState::Running),
        Ok(v1::RunState::Parked) => Ok(RunState::Parked),
        Ok(v1::RunState::Completed) => Ok(RunState::Completed),
        Ok(v1::RunState::Failed) => Ok(RunState::Failed),
        Ok(v1::RunState::Cancelled) => Ok(RunState::Cancelled),
        Ok(v1::RunState::TimedOut) => Ok(RunState::TimedOut),
        Ok(v1::RunState::Unspecified) | Err(_) => Err(Error::invalid(field, "expected a run state")),
    }
}

pub fn if_busy(number: i32) -> Result<IfBusy> {
    match v1::IfBusy::try_from(number) {
        Ok(v1::IfBusy::Unspecified | v1::IfBusy::Enqueue) => Ok(IfBusy::Enqueue),
        Ok(v1::IfBusy::Reject) => Ok(IfBusy::Reject),
        Ok(v1::IfBusy::Interrupt) => Ok(IfBusy::Interrupt),
        Err(_) => Err(Error::invalid("if_busy", "expected enqueue, reject or interrupt")),
    }
}

/// Converts a list of tool calls. Sizes are checked before anything is parsed.
pub fn tools_input(input: v1::ToolsInput) -> Result<ToolsInput> {
    limits::check_input_size(input.calls.iter().map(|call| call.arguments.len()).sum())?;
    let calls = input.calls.into_iter().enumerate().map(|(index, call)| tool_call(index, call));
    Ok(ToolsInput {
        calls: calls.collect::<Result<_>>()?,
        continue_on_error: input.continue_on_error,
        record: input.record,
    })
}

fn tool_call(index: usize, call: v1::ToolCall) -> Result<ToolCall> {
    let field = |name: &str| format!("tools.calls[{index}].{name}");
    limits::check_arguments_size(&field("arguments"), call.arguments.len())?;
    let arguments = match call.arguments.as_str() {
        "" => Value::Object(serde_json::Map::new()),
        text => serde_json::from_str(text).map_err(|error| {
            Error::invalid(field("arguments"), format!("expected a JSON object: {error}"))
        })?,
    };
    let id = match call.id.as_str() {
        "" => ToolCallId::new(),
        text => text.parse().map_err(|error: Error| error.at(field("id")))?,
    };
    let timeout = call.timeout.map(|timeout| from_duration(&field("timeout"), timeout)).transpose()?;
    Ok(ToolCall { id, tool: call.tool, arguments, parallel: call.parallel, timeout })
}

impl From<ToolCall> for v1::ToolCall {
    fn from(call: ToolCall) -> Self {
        Self {
            id: call.id.to_string(),
            tool: call.tool,
            arguments: call.arguments.to_string(),
            parallel: call.parallel,
            timeout: call.timeout.and_then(to_duration),
        }
    }
}

impl From<ToolsInput> for v1::ToolsInput {
    fn from(input: ToolsInput) -> Self {
        Self {
            calls: input.calls.into_iter().map(Into::into).collect(),
            continue_on_error: input.continue_on_error,
            record: input.record,
        }
    }
}

impl From<Failure> for v1::Failure {
    fn from(failure: Failure) -> Self {
        Self { code: failure.code, message: failure.message }
    }
}

impl From<ToolOutcome> for v1::ToolOutcome {
    fn from(outcome: ToolOutcome) -> Self {
        let output = if outcome.output.is_null() { String::new() } else { outcome.output.to_string() };
        Self {
            id: outcome.id.to_string(),
            tool: outcome.tool,
            status: outcome.status.as_str().to_owned(),
            output,
            failure: outcome.failure.map(Into::into),
            duration_ms: i64::try_from(outcome.duration_ms).unwrap_or(i64::MAX),
            place: outcome.place.map(Into::into),
        }
    }
}

/// The end of the run, which frees its slot, is the last stage of its cancellation.
fn cancel_receipts(cancel: CancelRequest, finished_at: Option<Timestamp>) -> v1::CancelReceipts {
    v1::CancelReceipts {
        requested_at: Some(timestamp(cancel.at)),
        reason: cancel.reason,
        delivered_at: cancel.delivered_at.map(timestamp),
        stopped_at: cancel.stopped_at.map(timestamp),
        released_at: finished_at.map(timestamp),
    }
}

impl From<Run> for v1::Run {
    fn from(run: Run) -> Self {
        // Every field is named, so that a new one cannot be forgotten here.
        let Run {
            id,
            session,
            seq,
            state,
            input,
            timeout,
            attempt,
            lost_attempts,
            created_at,
            started_at,
            finished_at,
            outcomes,
            answer,
            stop_reason,
            failure,
            cancel,
            parked,
            parent,
            spent,
            budget,
            idempotency_key,
            labels,
            tenant: _,
            paused: _,
            worked: _,
            traceparent: _,
            awaited_by: _,
        } = run;
        let cancel = cancel.map(|cancel| cancel_receipts(cancel, finished_at));
        let input = match input {
            RunInput::Tools(tools) => v1::run::Input::Tools(tools.into()),
            RunInput::Message(message) => v1::run::Input::Message(message.into()),
        };
        Self {
            id: id.to_string(),
            session_id: session.to_string(),
            seq,
            state: v1::RunState::from(state).into(),
            input: Some(input),
            timeout: to_duration(timeout),
            attempt,
            created_at: Some(timestamp(created_at)),
            started_at: started_at.map(timestamp),
            finished_at: finished_at.map(timestamp),
            outcomes: outcomes.into_iter().map(Into::into).collect(),
            failure: failure.map(Into::into),
            cancel_requested_at: cancel.as_ref().and_then(|cancel| cancel.requested_at),
            cancel_reason: cancel.as_ref().map(|cancel| cancel.reason.clone()).unwrap_or_default(),
            idempotency_key: idempotency_key.unwrap_or_default(),
            lost_attempts,
            cancel,
            park_reason: parked.map(|parked| parked.reason.as_str().to_owned()).unwrap_or_default(),
            answer: answer.unwrap_or_default(),
            stop_reason: stop_reason.map(|reason| reason.as_str().to_owned()).unwrap_or_default(),
            parent_run_id: parent.map(|parent| parent.to_string()).unwrap_or_default(),
            spent: (spent.model_calls > 0).then(|| spent.into()),
            budget: budget.map(Into::into),
            tree_spent: None,
            labels: labels.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::{Code, RunId, SessionId, TenantId};

    use super::*;

    fn call(arguments: &str) -> v1::ToolCall {
        v1::ToolCall { tool: "noop".into(), arguments: arguments.into(), ..Default::default() }
    }

    fn rejected(call: v1::ToolCall) -> (Code, String) {
        let error = tools_input(v1::ToolsInput { calls: vec![call], ..Default::default() }).unwrap_err();
        (error.code(), error.field().unwrap_or_default().to_owned())
    }

    #[test]
    fn bad_calls_name_the_field() {
        let field = |name: &str| format!("tools.calls[0].{name}");
        assert_eq!(rejected(call("{")), (Code::InvalidArgument, field("arguments")));
        let huge = format!("{{\"a\":\"{}\"}}", "x".repeat(2 * 1024 * 1024));
        assert_eq!(rejected(call(&huge)), (Code::TooLarge, field("arguments")));
        for (seconds, nanos) in [(-1, 0), (0, -1), (i64::MAX, 999_999_999), (i64::MIN, i32::MIN)] {
            let timeout = Some(prost_types::Duration { seconds, nanos });
            let call = v1::ToolCall { timeout, ..call("{}") };
            assert_eq!(rejected(call), (Code::InvalidArgument, field("timeout")));
        }
        let id = v1::ToolCall { id: "run_x".into(), ..call("{}") };
        assert_eq!(rejected(id), (Code::InvalidArgument, field("id")));
    }

    #[test]
    fn deeply_nested_arguments_are_an_error_not_a_crash() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(rejected(call(&deep)).0, Code::InvalidArgument);
    }

    fn run(cancel: Option<CancelRequest>, finished_at: Option<Timestamp>) -> v1::Run {
        let input = RunInput::Tools(ToolsInput { calls: vec![], continue_on_error: false, record: false });
        let line = (TenantId::new(), SessionId::new());
        let run = Run {
            state: RunState::Running,
            attempt: 3,
            lost_attempts: 2,
            finished_at,
            cancel,
            ..Run::queued(RunId::new(), line, input, Duration::from_secs(1))
        };
        run.into()
    }

    #[test]
    fn receipts_show_the_progress_of_a_cancellation() {
        let at = |second: i64| Timestamp::from_timestamp(second, 0).unwrap();
        let request = |delivered_at, stopped_at| CancelRequest {
            at: at(1),
            reason: "enough".to_owned(),
            delivered_at,
            stopped_at,
        };
        let plain = run(None, Some(at(9)));
        assert_eq!((plain.cancel, plain.cancel_requested_at, plain.lost_attempts), (None, None, 2));

        let asked = run(Some(request(Some(at(2)), None)), None);
        assert_eq!(
            (asked.cancel_requested_at, asked.cancel_reason.as_str()),
            (Some(timestamp(at(1))), "enough")
        );
        let receipts = asked.cancel.unwrap();
        assert_eq!((receipts.delivered_at, receipts.stopped_at), (Some(timestamp(at(2))), None));
        assert_eq!(receipts.released_at, None);

        let over = run(Some(request(Some(at(2)), Some(at(3)))), Some(at(4))).cancel.unwrap();
        assert_eq!((over.stopped_at, over.released_at), (Some(timestamp(at(3))), Some(timestamp(at(4)))));
    }

    #[test]
    fn states_survive_a_round_trip() {
        for state in RunState::ALL {
            assert_eq!(run_state("state", v1::RunState::from(state).into()).unwrap(), state);
        }
        assert!(run_state("state", 0).is_err());
        assert!(run_state("state", 99).is_err());
    }
}
