//! Who made a rule.

use serde::{Deserialize, Serialize};

/// Who made a rule. Later layers decide over earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Built in.
    Default,
    Platform,
    Tenant,
    Workspace,
    Agent,
    /// Said for one session, or answered with `always` in it.
    Session,
}

impl Layer {
    pub const ALL: [Self; 6] =
        [Self::Default, Self::Platform, Self::Tenant, Self::Workspace, Self::Agent, Self::Session];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Platform => "platform",
            Self::Tenant => "tenant",
            Self::Workspace => "workspace",
            Self::Agent => "agent",
            Self::Session => "session",
        }
    }

    /// Only operators can say what nobody after them may make milder.
    pub(crate) const fn may_lock(self) -> bool {
        matches!(self, Self::Platform | Self::Tenant)
    }
}
