//! The sections about agents: platform, models, permissions, delegation, context, budget.

use std::{path::PathBuf, time::Duration};

use remuda_domain::{
    budget::{Limit, Micros},
    permission::{PermissionAction, PermissionMode, PermissionRule, Unattended},
};
use serde::{Deserialize, Serialize};

use crate::duration;

/// Definitions for agents of all workspaces. Directories are absolute after [`Config::load`], or empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Platform {
    pub models_dir: PathBuf,
    pub agents_dir: PathBuf,
    pub skills_dir: PathBuf,
    pub tools_dir: PathBuf,
    pub templates_dir: PathBuf,
    pub default_model: String,
    /// Names, prefixes that end in `*`, or `!` with one of these to exclude it. The last one that fits decides.
    pub workspace_env: Vec<String>,
}

/// Calls of models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Models {
    #[serde(with = "duration")]
    pub connect_timeout: Duration,
    #[serde(with = "duration")]
    pub first_byte_timeout: Duration,
    #[serde(with = "duration")]
    pub idle_timeout: Duration,
    pub max_attempts: u32,
    #[serde(with = "duration")]
    pub retry_delay: Duration,
    pub workspace_allowed: Vec<String>,
}

impl Default for Models {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(120),
            idle_timeout: Duration::from_secs(120),
            max_attempts: 5,
            retry_delay: Duration::from_secs(2),
            workspace_allowed: Vec::new(),
        }
    }
}

/// Permissions of agents of all tenants, and approvals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Permissions {
    pub mode: PermissionMode,
    pub rules: Vec<Rule>,
    pub unattended: Unattended,
    /// Names of API keys; if empty, all keys with the scope `approve`.
    pub approvers: Vec<String>,
    /// Zero means that approvals do not expire.
    #[serde(with = "duration")]
    pub expire_after: Duration,
    pub on_expiry: OnExpiry,
}

impl Default for Permissions {
    fn default() -> Self {
        Self {
            mode: PermissionMode::Default,
            rules: Vec::new(),
            unattended: Unattended::Wait,
            approvers: Vec::new(),
            expire_after: Duration::from_secs(7 * 24 * 60 * 60),
            on_expiry: OnExpiry::Tell,
        }
    }
}

/// A permission rule as written by operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub permission: String,
    #[serde(default = "match_all")]
    pub pattern: String,
    pub action: PermissionAction,
    #[serde(default)]
    pub locked: bool,
}

fn match_all() -> String {
    "*".to_owned()
}

impl Rule {
    /// Bounds the cost of a tool call, which is matched against all rules.
    const MAX_RULES: usize = 500;
    const MAX_TEXT: usize = 512;

    /// The problem of a list of rules, if any.
    pub(crate) fn problem(rules: &[Self]) -> Option<String> {
        if rules.len() > Self::MAX_RULES {
            return Some(format!("expected at most {} rules, found {}", Self::MAX_RULES, rules.len()));
        }
        let fits = |text: &str| (1..=Self::MAX_TEXT).contains(&text.len()) && !text.contains('\0');
        let wrong = rules.iter().position(|rule| !fits(&rule.permission) || !fits(&rule.pattern))?;
        let most = Self::MAX_TEXT;
        Some(format!("expected a permission and a pattern of 1 to {most} bytes in rule {}", wrong + 1))
    }
}

impl From<Rule> for PermissionRule {
    fn from(rule: Rule) -> Self {
        let Rule { permission, pattern, action, locked } = rule;
        Self { permission, pattern, action, locked }
    }
}

/// What to do with a call whose approval has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnExpiry {
    #[default]
    Tell,
    Fail,
}

/// Delegation to sub-agents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Delegation {
    pub max_depth: u32,
}

impl Default for Delegation {
    fn default() -> Self {
        Self { max_depth: 5 }
    }
}

/// Size of conversations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Context {
    /// In tokens.
    pub window: u32,
    pub clear_at: f64,
    pub summarize_at: f64,
    pub keep_results: u32,
    pub max_failures: u32,
}

impl Default for Context {
    fn default() -> Self {
        Self { window: 128_000, clear_at: 0.5, summarize_at: 0.8, keep_results: 5, max_failures: 3 }
    }
}

/// The default budget of a run. Zero means no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    pub run_tokens: u32,
    /// In dollars.
    pub run_cost: f64,
}

impl Budget {
    pub(crate) const MAX_COST: f64 = 1_000_000.0;

    /// The budget as a limit.
    #[must_use]
    pub fn limit(&self) -> Limit {
        Limit {
            tokens: (self.run_tokens > 0).then(|| self.run_tokens.into()),
            micros: micros(self.run_cost).filter(|micros| *micros > 0),
        }
    }
}

/// Converts dollars to millionths, rounded; `None` if the amount is out of range.
fn micros(dollars: f64) -> Option<Micros> {
    // Formatting as decimals avoids a lossy cast.
    (0.0..=Budget::MAX_COST)
        .contains(&dollars)
        .then(|| format!("{dollars:.6}").replace('.', "").parse().ok())
        .flatten()
}

#[cfg(test)]
#[path = "agents_tests.rs"]
mod tests;
