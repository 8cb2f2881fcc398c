//! Agents: their definitions, and what they may do.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::ModelParameters;
pub use crate::permission::{PermissionAction, PermissionMode, PermissionRule};

/// An agent definition, independent of the file format it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentDefinition {
    pub name: String,
    pub mode: AgentMode,
    #[serde(default)]
    pub description: String,
    /// Its part of the system prompt.
    pub prompt: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<AgentModel>,
    /// Parameters of its model calls, whichever model is used: an agent may set a temperature and leave the model
    /// open.
    #[serde(default)]
    pub parameters: ModelParameters,
    /// Sent once, with the newest message, when a session switches to this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_reminder: Option<String>,
    #[serde(default)]
    pub tools: ToolSelection,
    #[serde(default)]
    pub disallowed: ToolExclusion,
    /// Agents it may switch its session to.
    #[serde(default)]
    pub switch: Vec<String>,
    /// Agents it may delegate to.
    #[serde(default)]
    pub subagents: Vec<String>,
    #[serde(default)]
    pub policy: AgentPolicy,
    /// Hidden from lists.
    #[serde(default)]
    pub hidden: bool,
    /// Delegations to it run in the background, unless the caller says otherwise.
    #[serde(default)]
    pub background: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub color: Option<String>,
    /// In order; the last match decides.
    #[serde(default)]
    pub permission: Vec<PermissionRule>,
    /// Default permission mode of its sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission_mode: Option<PermissionMode>,
    pub origin: AgentOrigin,
}

impl AgentDefinition {
    /// Whether the agent may use the native tool of that name.
    #[must_use]
    pub fn has_tool(&self, name: &str) -> bool {
        has(self.tools.native.as_deref(), &self.disallowed.native, name)
    }

    /// Whether the agent may use the skill of that name.
    #[must_use]
    pub fn has_skill(&self, name: &str) -> bool {
        has(self.tools.skills.as_deref(), &self.disallowed.skills, name)
    }
}

fn has(selected: Option<&[String]>, excluded: &[String], name: &str) -> bool {
    let listed = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
    selected.is_none_or(listed) && !listed(excluded)
}

/// Whether a name matches a pattern, in which `*` matches anything.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(rest) = name.strip_prefix(head) else { return false };
    (0..=rest.len()).filter(|at| rest.is_char_boundary(*at)).any(|at| matches(tail, &rest[at..]))
}

/// What an agent may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentMode {
    /// May lead a session.
    #[default]
    Primary,
    /// May be delegated to by other agents.
    Subagent,
    All,
}

impl AgentMode {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Subagent => "subagent",
            Self::All => "all",
        }
    }

    /// Whether it may lead a session.
    #[must_use]
    pub const fn may_lead(self) -> bool {
        matches!(self, Self::Primary | Self::All)
    }
}

/// The model that an agent requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentModel {
    /// `platform/<name>`, `workspace/<name>`, or a bare name, which is resolved in the workspace first.
    pub reference: String,
    #[serde(default)]
    pub parameters: ModelParameters,
}

/// Tools that an agent may use, by name or by a pattern with `*`. `None` means all of that kind: the formats of OpenCode
/// and CodingCode list only what they leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolSelection {
    pub native: Option<Vec<String>>,
    pub actions: Option<Vec<String>>,
    pub skills: Option<Vec<String>>,
    pub external: Option<Vec<String>>,
}

/// Tools that an agent may not use, whatever it selects. Names may contain `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolExclusion {
    pub native: Vec<String>,
    pub actions: Vec<String>,
    pub skills: Vec<String>,
    pub external: Vec<String>,
}

/// Limits of an agent's runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentPolicy {
    /// Model calls per run, at least 2. The last one has no tools and instructs the agent to conclude.
    pub max_steps: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_timeout: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_timeout: Option<Duration>,
    pub parallel_tool_calls: bool,
    /// Concurrent delegations per run; more wait in a queue.
    pub max_concurrent_subagents: u32,
    /// Delegations per run in total.
    pub max_subagents: u32,
    /// Agent switches per run.
    pub max_switches: u32,
}

impl AgentPolicy {
    pub const DEFAULT_MAX_STEPS: u32 = 8;
    pub const MIN_MAX_STEPS: u32 = 2;
    pub const MAX_MAX_STEPS: u32 = 10_000;
}

impl Default for AgentPolicy {
    fn default() -> Self {
        Self {
            max_steps: Self::DEFAULT_MAX_STEPS,
            run_timeout: None,
            tool_timeout: None,
            parallel_tool_calls: true,
            max_concurrent_subagents: 4,
            max_subagents: 64,
            max_switches: 16,
        }
    }
}

/// Where an agent was defined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentOrigin {
    pub source: AgentSource,
    /// Relative to the workspace's root, or absolute. `None` for built-in agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentSource {
    BuiltIn,
    Platform,
    OpenHarness,
    OpenCode,
    CodingCode,
}

impl AgentSource {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BuiltIn => "built-in",
            Self::Platform => "platform",
            Self::OpenHarness => "openharness",
            Self::OpenCode => "opencode",
            Self::CodingCode => "codingcode",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_anything() {
        for (pattern, name, expected) in [
            ("Bash", "Bash", true),
            ("Bash", "BashOutput", false),
            ("Bash*", "BashOutput", true),
            ("*", "anything", true),
            ("Web*ch", "WebFetch", true),
            ("Web*ch", "WebFetcher", false),
            ("*é*", "caféine", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn exclusion_overrides_selection() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let selected = names(&["Bash", "Read"]);
        assert!(has(None, &[], "Read") && has(Some(&selected), &[], "Read"));
        assert!(!has(Some(&selected), &[], "Edit") && !has(Some(&[]), &[], "Read"));
        assert!(!has(Some(&selected), &names(&["Ba*"]), "Bash") && has(None, &names(&["Ba*"]), "Read"));
        assert!(has(Some(&names(&["*"])), &[], "Read") && !has(Some(&names(&["Web*"])), &[], "Read"));
    }
}
