//! What agents may do: rules, and how far a session goes without asking.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// One rule of what an agent may do. Rules stand in order, and the last one that fits decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionRule {
    /// A tool or a kind of them, such as `edit` or `bash`; may hold `*`.
    pub permission: String,
    /// What of it, such as a path or a command; may hold `*` and `?`.
    pub pattern: String,
    pub action: PermissionAction,
    /// No later rule makes it milder. Only operators can say so, for the platform or for a tenant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub locked: bool,
}

impl PermissionRule {
    pub fn new(permission: impl Into<String>, pattern: impl Into<String>, action: PermissionAction) -> Self {
        Self { permission: permission.into(), pattern: pattern.into(), action, locked: false }
    }
}

/// What is done about a call. The later, the stricter.
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

/// How far a session goes without asking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionMode {
    /// As the rules say.
    #[default]
    Default,
    /// Nothing is changed: only tools that read are allowed, and the rules may forbid these too.
    Plan,
    /// What would be asked is allowed, unless an operator locked the question. What is denied, or may be, stays denied.
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

/// What becomes of a call that should be asked about while nobody is there to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unattended {
    /// The run waits as data until someone decides, or the question expires.
    #[default]
    Wait,
    /// The call is not made; the model is told so and goes on.
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

/// What was said about permissions for one session. Sessions below it begin with the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionPermissions {
    /// The agent's, else the platform's, when missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<PermissionMode>,
    /// After those of everyone else; the last ones are those that people answered `always` with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<PermissionRule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unattended: Option<Unattended>,
    /// Who may decide about its calls, by the names of their keys. Everyone with the scope `approve` when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
}

impl SessionPermissions {
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The same for a session below one with these: it goes no farther, and what was said there in the meantime counts here too.
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
