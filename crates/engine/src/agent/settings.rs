//! Operator settings for agents.

use std::{collections::BTreeMap, time::Duration};

use remuda_domain::{
    budget::Limit,
    permission::{PermissionMode, PermissionRule, Unattended},
};

/// Settings of all agents on this worker, whatever their workspace.
#[derive(Clone, Debug, Default)]
pub struct AgentSettings {
    /// The model of agents that name none, in sessions that name none.
    pub default_model: Option<String>,
    pub permissions: PermissionSettings,
    pub delegation: DelegationSettings,
    pub context: ContextSettings,
    /// Default budget of a run and its descendants.
    pub run_budget: Limit,
}

/// Permission and approval settings.
#[derive(Clone, Debug)]
pub struct PermissionSettings {
    pub mode: PermissionMode,
    /// The platform's rules.
    pub rules: Vec<PermissionRule>,
    /// Rules of single tenants, by tenant name.
    pub tenants: BTreeMap<String, Vec<PermissionRule>>,
    pub unattended: Unattended,
    /// Who may decide approvals; everyone with the scope `approve` if empty.
    pub approvers: Vec<String>,
    /// How long an approval stays pending; without end if missing.
    pub expire_after: Option<Duration>,
    pub on_expiry: OnExpiry,
}

impl Default for PermissionSettings {
    fn default() -> Self {
        Self {
            mode: PermissionMode::Default,
            rules: Vec::new(),
            tenants: BTreeMap::new(),
            unattended: Unattended::Wait,
            approvers: Vec::new(),
            expire_after: Some(Duration::from_secs(7 * 24 * 60 * 60)),
            on_expiry: OnExpiry::Tell,
        }
    }
}

/// What happens to a call whose approval expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpiry {
    /// The model gets the expiry as the call's result and continues.
    #[default]
    Tell,
    /// The run fails.
    Fail,
}

#[derive(Clone, Copy, Debug)]
pub struct DelegationSettings {
    /// Maximum depth of nested delegations.
    pub max_depth: u32,
}

impl Default for DelegationSettings {
    fn default() -> Self {
        Self { max_depth: 5 }
    }
}

/// Context window and compaction settings.
#[derive(Clone, Copy, Debug)]
pub struct ContextSettings {
    /// Window of models that declare none, in tokens.
    pub window: u64,
    /// Share of the window from which old tool results are cleared.
    pub clear_at: f64,
    /// Share of the window from which the transcript is summarized.
    pub summarize_at: f64,
    /// Newest tool results that are never cleared.
    pub keep_results: usize,
    /// Consecutive failed summaries after which a run stops trying.
    pub max_failures: u32,
}

impl Default for ContextSettings {
    fn default() -> Self {
        Self { window: 128_000, clear_at: 0.5, summarize_at: 0.8, keep_results: 5, max_failures: 3 }
    }
}
