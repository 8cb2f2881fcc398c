//! Conversions of permissions and approvals.

use remuda_domain::{
    ToolCallId,
    approval::{Approval, Decision, DecisionRequest},
    error::{Error, Result},
    limits,
    permission::{PermissionAction, PermissionRule, SessionPermissions},
};

use super::timestamp;
use crate::v1;

impl From<PermissionRule> for v1::PermissionRule {
    fn from(rule: PermissionRule) -> Self {
        Self { permission: rule.permission, pattern: rule.pattern, action: rule.action.as_str().to_owned() }
    }
}

impl From<SessionPermissions> for v1::Permissions {
    fn from(permissions: SessionPermissions) -> Self {
        Self {
            mode: permissions.mode.map(|mode| mode.as_str()).unwrap_or_default().to_owned(),
            rules: permissions.rules.into_iter().map(Into::into).collect(),
            unattended: permissions.unattended.map(|it| it.as_str()).unwrap_or_default().to_owned(),
            approvers: permissions.approvers,
        }
    }
}

/// Converts the permissions of a request. Errors name the field below `permissions`.
pub fn session_permissions(given: v1::Permissions) -> Result<SessionPermissions> {
    let permissions = SessionPermissions {
        mode: optional(&given.mode).map_err(|error| error.at("permissions.mode"))?,
        unattended: optional(&given.unattended).map_err(|error| error.at("permissions.unattended"))?,
        rules: given.rules.into_iter().enumerate().map(rule).collect::<Result<_>>()?,
        approvers: given.approvers,
    };
    limits::check_permissions(&permissions)?;
    Ok(permissions)
}

fn optional<T: std::str::FromStr<Err = Error>>(text: &str) -> Result<Option<T>> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

fn rule((index, rule): (usize, v1::PermissionRule)) -> Result<PermissionRule> {
    let action = PermissionAction::ALL.into_iter().find(|action| action.as_str() == rule.action);
    let action = action.ok_or_else(|| {
        Error::invalid(format!("permissions.rules[{index}].action"), "expected allow, ask or deny")
    })?;
    let pattern = if rule.pattern.is_empty() { "*".to_owned() } else { rule.pattern };
    Ok(PermissionRule::new(rule.permission, pattern, action))
}

impl From<Approval> for v1::Approval {
    fn from(approval: Approval) -> Self {
        let request = approval.request;
        Self {
            id: approval.id.to_string(),
            session_id: approval.session.to_string(),
            run_id: approval.run.to_string(),
            call: Some(call(request.call, request.tool, &request.arguments)),
            call_hash: request.call_hash.to_string(),
            agent: request.agent,
            permission: request.permission,
            patterns: request.patterns,
            always: request.always.into_iter().map(Into::into).collect(),
            why: request.why,
            approvers: request.approvers,
            state: approval.state.to_string(),
            created_at: Some(timestamp(approval.created_at)),
            expires_at: approval.expires_at.map(timestamp),
            decision: approval.decision.map(Into::into),
        }
    }
}

fn call(id: ToolCallId, tool: String, arguments: &serde_json::Value) -> v1::ToolCall {
    v1::ToolCall { id: id.to_string(), tool, arguments: arguments.to_string(), ..v1::ToolCall::default() }
}

impl From<Decision> for v1::Decision {
    fn from(decision: Decision) -> Self {
        Self {
            by: decision.by,
            at: Some(timestamp(decision.at)),
            message: decision.message,
            arguments: decision.arguments.map(|arguments| arguments.to_string()).unwrap_or_default(),
            always: decision.always,
        }
    }
}

impl TryFrom<v1::DecideApprovalRequest> for DecisionRequest {
    type Error = Error;

    fn try_from(request: v1::DecideApprovalRequest) -> Result<Self> {
        limits::check_text("message", &request.message, limits::MAX_REASON_CHARS)?;
        let arguments = match request.arguments.as_str() {
            "" => None,
            text => Some(limits::parse_arguments("arguments", text)?),
        };
        let call_hash = match request.call_hash.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|error: Error| error.at("call_hash"))?),
        };
        Ok(Self {
            approve: request.approve,
            message: request.message,
            arguments,
            always: request.always,
            call_hash,
        })
    }
}
