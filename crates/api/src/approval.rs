//! Approvals and permissions.

use remuda_proto::v1;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    json_value::{embedded, list, text, time},
    run::ToolCall,
};

/// A tool call that needs a person's decision.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Approval {
    /// `apr_…`
    pub id: String,
    pub session_id: String,
    pub run_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<ToolCall>,
    /// Hash of the tool and its arguments. Send it back with the decision, so that you decide about the call you have
    /// seen.
    pub call_hash: String,
    /// The agent that requested the call; none in a `tools` run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The permission that the call needs, and the patterns that need approval.
    pub permission: String,
    pub patterns: Vec<String>,
    /// Rules that a decision with `always` adds to the session.
    pub always: Vec<PermissionRule>,
    /// The rule that requires the approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Names of the keys that may decide; every key with the scope approve if empty.
    pub approvers: Vec<String>,
    /// `pending`, `approved`, `denied`, `expired` or `withdrawn`.
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub created_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Decision {
    pub by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub at: Option<String>,
    /// A message for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Arguments that replaced those of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    pub always: bool,
}

/// What agents may do in a session.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Permissions {
    /// `default`, `plan` (read only) or `full_auto` (calls that need approval are allowed).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub mode: String,
    /// In order; the last matching rule decides.
    #[serde(default)]
    #[schema(required = false)]
    pub rules: Vec<PermissionRule>,
    /// What happens to calls that need approval: `wait`, `refuse` or `fail`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub unattended: String,
    /// Names of the keys that may decide.
    #[serde(default)]
    #[schema(required = false)]
    pub approvers: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PermissionRule {
    /// A tool or a group of tools, such as edit or bash; may contain `*`.
    pub permission: String,
    /// What it applies to, such as a path or a command; may contain `*` and `?`.
    #[serde(default = "everything")]
    #[schema(required = false)]
    pub pattern: String,
    /// `allow`, `ask` or `deny`.
    pub action: String,
}

fn everything() -> String {
    "*".to_owned()
}

impl From<v1::Approval> for Approval {
    fn from(approval: v1::Approval) -> Self {
        Self {
            id: approval.id,
            session_id: approval.session_id,
            run_id: approval.run_id,
            call: approval.call.map(Into::into),
            call_hash: approval.call_hash,
            agent: text(approval.agent),
            permission: approval.permission,
            patterns: approval.patterns,
            always: list(approval.always),
            why: text(approval.why),
            approvers: approval.approvers,
            state: approval.state,
            created_at: time(approval.created_at),
            expires_at: time(approval.expires_at),
            decision: approval.decision.map(Into::into),
        }
    }
}

impl From<v1::Decision> for Decision {
    fn from(decision: v1::Decision) -> Self {
        Self {
            by: decision.by,
            at: time(decision.at),
            message: text(decision.message),
            arguments: embedded(&decision.arguments),
            always: decision.always,
        }
    }
}

impl From<v1::Permissions> for Permissions {
    fn from(permissions: v1::Permissions) -> Self {
        let v1::Permissions { mode, rules, unattended, approvers } = permissions;
        Self { mode, rules: list(rules), unattended, approvers }
    }
}

impl From<Permissions> for v1::Permissions {
    fn from(permissions: Permissions) -> Self {
        let Permissions { mode, rules, unattended, approvers } = permissions;
        Self { mode, rules: list(rules), unattended, approvers }
    }
}

impl From<v1::PermissionRule> for PermissionRule {
    fn from(rule: v1::PermissionRule) -> Self {
        let v1::PermissionRule { permission, pattern, action } = rule;
        Self { permission, pattern, action }
    }
}

impl From<PermissionRule> for v1::PermissionRule {
    fn from(rule: PermissionRule) -> Self {
        let PermissionRule { permission, pattern, action } = rule;
        Self { permission, pattern, action }
    }
}
