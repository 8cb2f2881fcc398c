//! What the operator decides about agents.

use std::{collections::BTreeMap, time::Duration};

use remuda_domain::{
    budget::Limit,
    permission::{PermissionMode, PermissionRule, Unattended},
};

/// How agents of this worker behave, whatever workspace they come from.
#[derive(Clone, Debug, Default)]
pub struct AgentSettings {
    /// The model of agents that name none, in sessions that name none.
    pub default_model: Option<String>,
    pub permissions: PermissionSettings,
    pub delegation: DelegationSettings,
    pub context: ContextSettings,
    /// How much a run and those below it may spend when nobody said.
    pub run_budget: Limit,
}

/// Who may do what, and who is asked.
#[derive(Clone, Debug)]
pub struct PermissionSettings {
    pub mode: PermissionMode,
    /// The platform's rules.
    pub rules: Vec<PermissionRule>,
    /// Those of single tenants, by the tenant's name.
    pub tenants: BTreeMap<String, Vec<PermissionRule>>,
    pub unattended: Unattended,
    /// Who may decide; everyone with the scope `approve` when empty.
    pub approvers: Vec<String>,
    /// How long a question stays open; for ever when missing.
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

/// What becomes of a call about which nobody decided in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpiry {
    /// The model is told that nobody decided, and goes on.
    #[default]
    Tell,
    /// The run fails.
    Fail,
}

#[derive(Clone, Copy, Debug)]
pub struct DelegationSettings {
    /// How many sessions may be above one that agents make.
    pub max_depth: u32,
}

impl Default for DelegationSettings {
    fn default() -> Self {
        Self { max_depth: 5 }
    }
}

/// How long conversations may grow.
#[derive(Clone, Copy, Debug)]
pub struct ContextSettings {
    /// Tokens of models that do not say.
    pub window: u64,
    /// Share of the room from which old results of tools are left out.
    pub clear_at: f64,
    /// Share of the room from which what was said is summed up.
    pub summarize_at: f64,
    /// Newest results of tools that are never left out.
    pub keep_results: usize,
    /// Summaries that may fail one after the other before a run no longer tries.
    pub max_failures: u32,
}

impl Default for ContextSettings {
    fn default() -> Self {
        Self { window: 128_000, clear_at: 0.5, summarize_at: 0.8, keep_results: 5, max_failures: 3 }
    }
}
