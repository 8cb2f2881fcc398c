//! The input and output of a decision.

use remuda_domain::{
    permission::{PermissionAction, PermissionRule},
    tool::ToolDescriptor,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A tool call to be judged.
#[derive(Clone, Copy, Debug)]
pub struct ProposedCall<'a> {
    pub tool: &'a ToolDescriptor,
    pub arguments: &'a Value,
}

/// The decision about a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Verdict {
    Allow,
    Ask(Ask),
    Deny(Denial),
}

impl Verdict {
    #[must_use]
    pub const fn action(&self) -> PermissionAction {
        match self {
            Self::Allow => PermissionAction::Allow,
            Self::Ask(_) => PermissionAction::Ask,
            Self::Deny(_) => PermissionAction::Deny,
        }
    }
}

/// The call needs approval by a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// The permission of the tool.
    pub permission: String,
    /// The parts that need approval, such as some commands of a script. At most 50, shortened.
    pub patterns: Vec<String>,
    /// Session rules that make the approval unnecessary next time. Empty if there are none, because an operator locked a
    /// rule or the call cannot be analyzed.
    pub always: Vec<PermissionRule>,
    pub why: String,
}

/// Why a call is denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// The permission that is denied; `edit` for a redirection in a shell command.
    pub permission: String,
    /// The part of the call that is denied, shortened.
    pub pattern: String,
    /// Names the layer and the rule.
    pub why: String,
}
