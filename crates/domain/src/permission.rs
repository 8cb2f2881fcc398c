//! Permissions: rules for agents, and the permission mode of a session.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A permission rule. Rules are ordered, and the last match decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionRule {
    /// A tool or a group of tools, such as `edit` or `bash`; may contain `*`.
    pub permission: String,
    /// What it concerns, such as a path or a command; may contain `*` and `?`.
    pub pattern: String,
    pub action: PermissionAction,
    /// No later rule can relax it. Only operators can lock rules, for the platform or for a tenant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub locked: bool,
}

impl PermissionRule {
    pub fn new(permission: impl Into<String>, pattern: impl Into<String>, action: PermissionAction) -> Self {
        Self { permission: permission.into(), pattern: pattern.into(), action, locked: false }
    }
}

/// What to do about a call, in order of strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionAction {
    Allow,
    /// A person decides.
    Ask,
    Deny,
}

impl PermissionAction {
    pub const ALL: [Self; 3] = [Self::Allow, Self::Ask, Self::Deny];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// How far a session may go without asking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionMode {
    /// As the rules say.
    #[default]
    Default,
    /// Only tools that read are allowed, and rules may forbid these too.
    Plan,
    /// Calls that would ask are allowed, unless an operator locked the rule. Denied calls stay denied.
    FullAuto,
}

impl PermissionMode {
    pub const ALL: [Self; 3] = [Self::Default, Self::Plan, Self::FullAuto];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Plan => "plan",
            Self::FullAuto => "full_auto",
        }
    }
}

impl std::str::FromStr for PermissionMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|mode| mode.as_str() == text);
        found.ok_or_else(|| Error::invalid("mode", "expected default, plan or full_auto"))
    }
}

/// What to do with a call that needs an approval in a run without a person to decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unattended {
    /// The run parks until a decision is made or the request expires.
    #[default]
    Wait,
    /// The call is not made; the model is told so and continues.
    Refuse,
    /// The run fails.
    Fail,
}

impl Unattended {
    pub const ALL: [Self; 3] = [Self::Wait, Self::Refuse, Self::Fail];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Refuse => "refuse",
            Self::Fail => "fail",
        }
    }
}

impl std::str::FromStr for Unattended {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|it| it.as_str() == text);
        found.ok_or_else(|| Error::invalid("unattended", "expected wait, refuse or fail"))
    }
}

/// Permission settings of one session. Child sessions start with the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionPermissions {
    /// Defaults to the agent's mode, then the platform's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<PermissionMode>,
    /// Applied after all other rules. The last ones come from decisions with `always`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<PermissionRule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unattended: Option<Unattended>,
    /// Names of the keys that may decide on its calls. If empty, every key with the scope `approve` may.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
}

impl SessionPermissions {
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The effective settings of a child session: it may do no more than its parent, and later changes of the parent
    /// apply too.
    #[must_use]
    pub fn within(&self, above: &Self) -> Self {
        let wider = self.mode == Some(PermissionMode::FullAuto) && above.mode != self.mode;
        let mode = if wider || above.mode == Some(PermissionMode::Plan) { above.mode } else { self.mode };
        let new = above.rules.iter().filter(|rule| !self.rules.contains(rule));
        Self {
            mode,
            rules: self.rules.iter().chain(new).cloned().collect(),
            unattended: above.unattended.or(self.unattended),
            approvers: if above.approvers.is_empty() { &self.approvers } else { &above.approvers }.clone(),
        }
    }
}
