//! What is asked of the rules, and what they answer.

use remuda_domain::{
    permission::{PermissionAction, PermissionRule},
    tool::Effects,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A call of a tool that is to be judged.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub tool: &'a str,
    pub arguments: &'a Value,
    pub effects: Effects,
}

/// What the rules say about a call.
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

/// What a person has to decide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// That of the tool.
    pub permission: String,
    /// What has to be asked about, such as some of the commands in a script. At most 50, shortened.
    pub patterns: Vec<String>,
    /// The rules that make the question unnecessary next time, as rules of the session. Empty when none can, because
    /// an operator locked a rule or the call is beyond judging.
    pub always: Vec<PermissionRule>,
    pub why: String,
}

/// Why a call is not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// The one that denied it: a redirection in a shell command is denied as `edit`.
    pub permission: String,
    /// What of the call is denied, shortened.
    pub pattern: String,
    /// Names who denies it and the rule.
    pub why: String,
}
