//! Approvals and permissions.

use remuda_proto::v1;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    run::ToolCall,
    value::{embedded, list, text, time},
};

/// A call that is not made before someone has decided about it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Approval {
    /// `apr_…`
    pub id: String,
    pub session_id: String,
    pub run_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<ToolCall>,
    /// Of the tool and its arguments. Send it back with the decision, and what you decide about is what you have seen.
    pub call_hash: String,
    /// The agent that wants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The permission, and what of it has to be asked about.
    pub permission: String,
    pub patterns: Vec<String>,
    /// Rules that the session gets when someone answers always.
    pub always: Vec<PermissionRule>,
    /// Which rule asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Names of the keys that may decide; every key with the scope approve when empty.
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
    /// Told to the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What the call was made with instead of its own arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    pub always: bool,
}

/// What agents may do in a session.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Permissions {
    /// `default`, `plan` (nothing is changed) or `full_auto` (what would be asked is allowed).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub mode: String,
    /// In order; the last one that fits decides.
    #[serde(default)]
    #[schema(required = false)]
    pub rules: Vec<PermissionRule>,
    /// What becomes of calls that should be asked about: `wait`, `refuse` or `fail`.
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
    /// A tool or a kind of them, such as edit or bash; may hold `*`.
    pub permission: String,
    /// What of it, such as a path or a command; may hold `*` and `?`.
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
