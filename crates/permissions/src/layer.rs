//! The layers of rules.

use serde::{Deserialize, Serialize};

/// The origin of a rule. Later layers override earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Built in.
    Default,
    Platform,
    Tenant,
    Workspace,
    Agent,
    /// Set for one session, or added by the decision `always`.
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

    /// Only operators may lock rules, so that later layers cannot relax them.
    pub(crate) const fn may_lock(self) -> bool {
        matches!(self, Self::Platform | Self::Tenant)
    }
}
