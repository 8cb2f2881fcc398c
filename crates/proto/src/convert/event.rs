//! Conversions of events and deltas.

use remuda_domain::{
    ApprovalId, Event, EventBody, Timestamp,
    approval::ApprovalRequest,
    event::{Delta, DeltaOf},
    snapshot::{RunSnapshot, SessionSnapshot, Snapshot},
};
use serde_json::Value;

use super::{step::finish, timestamp};
use crate::v1::{self, event::Body};

impl From<Event> for v1::Event {
    fn from(event: Event) -> Self {
        // The body serializes as {"type": …, "data": …}; the protobuf message has a separate field for the type.
        let data = match serde_json::to_value(&event.body) {
            Ok(Value::Object(mut body)) => {
                body.remove("data").map(|data| data.to_string()).unwrap_or_default()
            }
            _ => String::new(),
        };
        Self { data, ..bare(&event) }
    }
}

/// An event with a typed body instead of JSON data.
#[must_use]
pub fn typed_event(event: Event) -> v1::Event {
    let bare = bare(&event);
    v1::Event { body: Some(body(event.body)), ..bare }
}

fn bare(event: &Event) -> v1::Event {
    v1::Event {
        id: event.id.to_string(),
        cursor: event.cursor,
        session_id: event.session.to_string(),
        run_id: event.run.map(|run| run.to_string()).unwrap_or_default(),
        r#type: event.body.name().to_owned(),
        data: String::new(),
        at: Some(timestamp(event.at)),
        body: None,
    }
}

/// Lists every field, so that the compiler reports a missing one.
fn body(body: EventBody) -> Body {
    match body {
        EventBody::SessionCreated => Body::SessionCreated(v1::SessionCreated {}),
        EventBody::SessionUpdated => Body::SessionUpdated(v1::SessionUpdated {}),
        EventBody::SessionClosed => Body::SessionClosed(v1::SessionClosed {}),
        EventBody::RunQueued { seq, kind, pending, labels } => {
            Body::RunQueued(v1::RunQueued { seq, kind, pending, labels: labels.into_iter().collect() })
        }
        EventBody::RunStarted { attempt, worker } => {
            Body::RunStarted(v1::RunStarted { attempt, worker: worker.to_string() })
        }
        EventBody::RunHandedOver { worker } => {
            Body::RunHandedOver(v1::RunHandedOver { worker: worker.to_string() })
        }
        EventBody::RunAttemptLost { attempts, worker } => {
            Body::RunAttemptLost(v1::RunAttemptLost { attempts, worker: worker.to_string() })
        }
        EventBody::RunParked { reason } => {
            Body::RunParked(v1::RunParked { reason: reason.as_str().to_owned() })
        }
        EventBody::RunResumed => Body::RunResumed(v1::RunResumed {}),
        EventBody::RunCancelRequested { reason } => {
            Body::RunCancelRequested(v1::RunCancelRequested { reason })
        }
        EventBody::RunCancelDelivered { worker } => {
            Body::RunCancelDelivered(v1::RunCancelDelivered { worker: worker.to_string() })
        }
        EventBody::RunStopped => Body::RunStopped(v1::RunStopped {}),
        EventBody::ToolStarted { call, tool } => {
            Body::ToolStarted(v1::ToolStarted { call: call.to_string(), tool })
        }
        EventBody::ToolCompleted(outcome) => Body::ToolCompleted(Box::new(outcome.into())),
        EventBody::ToolFailed(outcome) => Body::ToolFailed(Box::new(outcome.into())),
        EventBody::SandboxReady(place) => Body::SandboxReady(place.into()),
        EventBody::HookNotice { hook, event, message } => {
            Body::HookNotice(v1::HookNotice { hook, event, message })
        }
        EventBody::ModelStarted { message, agent, model } => Body::ModelStarted(v1::ModelStarted {
            message: message.to_string(),
            agent,
            model: model.to_string(),
        }),
        EventBody::ModelCompleted { message, finish: reason, usage, cost, attempts, duration_ms } => {
            Body::ModelCompleted(v1::ModelCompleted {
                message: message.to_string(),
                finish: finish(reason).to_owned(),
                usage: Some(usage.into()),
                cost,
                attempts,
                duration_ms,
            })
        }
        EventBody::ModelRetrying { message, model, retry } => Body::ModelRetrying(v1::ModelRetrying {
            message: message.to_string(),
            model: model.to_string(),
            attempt: retry.attempt,
            failure: Some(retry.failure.into()),
            next_at: Some(timestamp(retry.next_at)),
        }),
        EventBody::ModelFailed { message, failure } => {
            Body::ModelFailed(v1::ModelFailed { message: message.to_string(), failure: Some(failure.into()) })
        }
        EventBody::MessageCompleted { message, role, agent, parts } => {
            Body::MessageCompleted(v1::MessageCompleted {
                message: message.to_string(),
                role: role.as_str().to_owned(),
                agent: agent.unwrap_or_default(),
                parts: serde_json::to_string(&parts).unwrap_or_default(),
            })
        }
        EventBody::AgentStopped { agent, reason, steps } => {
            Body::AgentStopped(v1::AgentStopped { agent, reason: reason.as_str().to_owned(), steps })
        }
        EventBody::AgentSwitched { call, from, to } => {
            Body::AgentSwitched(v1::AgentSwitched { call: call.to_string(), from, to })
        }
        EventBody::SubagentStarted { call, session, run, agent, description, background } => {
            Body::SubagentStarted(v1::SubagentStarted {
                call: call.to_string(),
                session: session.to_string(),
                run: run.to_string(),
                agent,
                description,
                background,
            })
        }
        EventBody::SubagentEnded { call, session, run, agent, state } => {
            Body::SubagentEnded(v1::SubagentEnded {
                call: call.to_string(),
                session: session.to_string(),
                run: run.to_string(),
                agent,
                state: v1::RunState::from(state).into(),
            })
        }
        EventBody::ApprovalRequested { approval, request, expires_at } => {
            Body::ApprovalRequested(Box::new(approval_requested(approval, *request, expires_at)))
        }
        EventBody::ApprovalDecided { approval, call, state, by, message } => {
            Body::ApprovalDecided(v1::ApprovalDecided {
                approval: approval.to_string(),
                call: call.to_string(),
                state: state.to_string(),
                by: by.unwrap_or_default(),
                message,
            })
        }
        EventBody::ContextCompacted { message, through, tokens_before, tokens_after } => {
            Body::ContextCompacted(v1::ContextCompacted {
                message: message.to_string(),
                through: through.to_string(),
                tokens_before,
                tokens_after,
            })
        }
        EventBody::BudgetChanged { budget } => {
            Body::BudgetChanged(v1::BudgetChanged { budget: Some(budget.into()) })
        }
        EventBody::RunCompleted => Body::RunCompleted(v1::RunCompleted {}),
        EventBody::RunFailed(failure) => Body::RunFailed(failure.into()),
        EventBody::RunCancelled { reason } => Body::RunCancelled(v1::RunCancelled { reason }),
        EventBody::RunTimedOut(failure) => Body::RunTimedOut(failure.into()),
        EventBody::Snapshot(snapshot) => Body::Snapshot((*snapshot).into()),
    }
}

fn approval_requested(
    approval: ApprovalId,
    request: ApprovalRequest,
    expires_at: Option<Timestamp>,
) -> v1::ApprovalRequested {
    let ApprovalRequest {
        call,
        tool,
        arguments,
        call_hash,
        agent,
        permission,
        patterns,
        always,
        why,
        approvers,
    } = request;
    let request = v1::approval_requested::Request {
        call: call.to_string(),
        tool,
        arguments: arguments.to_string(),
        call_hash: call_hash.to_string(),
        agent,
        permission,
        patterns,
        always: always.into_iter().map(Into::into).collect(),
        why,
        approvers,
    };
    v1::ApprovalRequested {
        approval: approval.to_string(),
        request: Some(request),
        expires_at: expires_at.map(timestamp),
    }
}

impl From<Snapshot> for v1::Snapshot {
    fn from(snapshot: Snapshot) -> Self {
        let Snapshot { first_cursor, last_cursor, session, runs } = snapshot;
        let SessionSnapshot { status, title, agent, pending_runs, current_run } = session;
        let run = |RunSnapshot { run, seq, state, failure }: RunSnapshot| v1::RunSnapshot {
            run: run.to_string(),
            seq,
            state: state.to_string(),
            failure: failure.map(Into::into),
        };
        let session = v1::SessionSnapshot {
            status: status.as_str().to_owned(),
            title,
            agent: agent.unwrap_or_default(),
            pending_runs,
            current_run: current_run.map(|run| run.to_string()).unwrap_or_default(),
        };
        let runs = runs.into_iter().map(run).collect();
        Self { first_cursor, last_cursor, session: Some(session), runs }
    }
}

impl From<Delta> for v1::Delta {
    fn from(delta: Delta) -> Self {
        let (message_id, call_id) = match delta.of {
            DeltaOf::Message(message) => (message.to_string(), String::new()),
            DeltaOf::Call(call) => (String::new(), call.to_string()),
        };
        Self {
            run_id: delta.run.to_string(),
            message_id,
            kind: delta.kind.as_str().to_owned(),
            offset: delta.offset,
            text: delta.text,
            call_id,
        }
    }
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
