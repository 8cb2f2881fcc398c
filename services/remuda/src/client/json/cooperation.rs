//! Approvals, permissions and what is waited for, as JSON.

use remuda_proto::{convert::from_timestamp, v1};
use serde_json::{Value, json};

use super::{call, embedded, object, time};
use crate::client::spending::budget_json;

pub(in crate::client) fn approval(approval: &v1::Approval) -> Value {
    object([
        ("id", approval.id.as_str().into()),
        ("session_id", approval.session_id.as_str().into()),
        ("run_id", approval.run_id.as_str().into()),
        ("call", approval.call.as_ref().map_or(Value::Null, call)),
        ("call_hash", approval.call_hash.as_str().into()),
        ("agent", approval.agent.as_str().into()),
        ("permission", approval.permission.as_str().into()),
        ("patterns", json!(approval.patterns)),
        ("always", approval.always.iter().map(rule).collect()),
        ("why", approval.why.as_str().into()),
        ("approvers", json!(approval.approvers)),
        ("state", approval.state.as_str().into()),
        ("created_at", time(approval.created_at.as_ref().and_then(from_timestamp))),
        ("expires_at", time(approval.expires_at.as_ref().and_then(from_timestamp))),
        ("decision", approval.decision.as_ref().map_or(Value::Null, decision)),
    ])
}

fn decision(decision: &v1::Decision) -> Value {
    object([
        ("by", decision.by.as_str().into()),
        ("at", time(decision.at.as_ref().and_then(from_timestamp))),
        ("message", decision.message.as_str().into()),
        ("arguments", embedded(&decision.arguments)),
        ("always", decision.always.into()),
    ])
}

fn rule(rule: &v1::PermissionRule) -> Value {
    json!({ "permission": rule.permission, "pattern": rule.pattern, "action": rule.action })
}

pub(super) fn permissions(permissions: &v1::Permissions) -> Value {
    object([
        ("mode", permissions.mode.as_str().into()),
        ("rules", permissions.rules.iter().map(rule).collect()),
        ("unattended", permissions.unattended.as_str().into()),
        ("approvers", json!(permissions.approvers)),
    ])
}

fn needed(wait: &v1::Wait) -> Value {
    json!({ "tokens": wait.needed_tokens, "micros": wait.needed_micros })
}

pub(super) fn wait(wait: &v1::Wait) -> Value {
    object([
        ("kind", wait.kind.as_str().into()),
        ("id", wait.id.as_str().into()),
        ("message", wait.message.as_str().into()),
        ("hint", wait.hint.as_str().into()),
        ("session_id", wait.session_id.as_str().into()),
        ("agent", wait.agent.as_str().into()),
        ("tool", wait.tool.as_str().into()),
        ("state", wait.state.as_str().into()),
        ("since", time(wait.since.as_ref().and_then(from_timestamp))),
        ("expires_at", time(wait.expires_at.as_ref().and_then(from_timestamp))),
        ("budget", budget_json(wait.budget.as_ref())),
        ("needed", if wait.budget.is_some() { needed(wait) } else { Value::Null }),
    ])
}
