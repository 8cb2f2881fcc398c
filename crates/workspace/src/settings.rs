//! `.openharness/settings.yaml`.

use std::collections::BTreeMap;

use remuda_domain::{
    execution::ExecutionChoice,
    model::ModelParameters,
    permission::{PermissionMode, PermissionRule, Unattended},
};
use serde::{Deserialize, Serialize};

/// What a workspace sets for all its agents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    pub kind: WorkspaceKind,
    pub default_agent: Option<String>,
    /// The template it was made from. Templates only initialise: nothing is read from there.
    pub template: Option<String>,
    /// Names for models with their parameters, which agents may use instead of references.
    pub models: BTreeMap<String, ModelAlias>,
    pub prompt: PromptSettings,
    /// Where tools execute when a session does not say.
    pub execution: ExecutionChoice,
    /// What agents may do here, after what the operator says and before what they say themselves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub permission: Vec<PermissionRule>,
    /// How far agents go without asking that do not say themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_mode: Option<PermissionMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unattended: Option<Unattended>,
    pub memory: MemorySettings,
    pub context: WorkspaceContext,
}

/// Whether anything is executed in a workspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceKind {
    #[default]
    Project,
    /// Agents only talk: no tools.
    Chat,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelAlias {
    pub reference: String,
    #[serde(default)]
    pub parameters: ModelParameters,
}

/// What agents of a workspace remember from one session to the next, in files that they write themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemorySettings {
    pub enabled: bool,
    /// Told as a whole, as seen from the workspace's root.
    pub file: String,
    /// With files of which agents are told the names, as seen from the workspace's root.
    pub directory: String,
    /// What is told of the file.
    pub max_bytes: u32,
}

impl MemorySettings {
    pub const MAX_BYTES: u32 = 256 * 1024;
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self {
            enabled: false,
            file: "MEMORY.md".to_owned(),
            directory: ".openharness/memory".to_owned(),
            max_bytes: 32 * 1024,
        }
    }
}

/// What becomes of conversations that grow too long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkspaceContext {
    /// Whether they are summed up; as the platform has it when missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summarize: Option<bool>,
    /// Who sums up, as an alias, a reference or a bare name; the agent's own model when missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// How the system prompt is put together. All texts are loaded: files were read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PromptSettings {
    pub base: Option<String>,
    /// By provider, such as `anthropic`.
    pub by_provider: BTreeMap<String, String>,
    /// By model, such as `platform/opus`; beats the provider's.
    pub by_model: BTreeMap<String, String>,
    pub order: Vec<Segment>,
    pub include_environment: bool,
}

impl Default for PromptSettings {
    fn default() -> Self {
        Self {
            base: None,
            by_provider: BTreeMap::new(),
            by_model: BTreeMap::new(),
            order: Segment::DEFAULT_ORDER.to_vec(),
            include_environment: false,
        }
    }
}

/// A part of the system prompt. One that is not in the order is not sent; an empty one is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Segment {
    Base,
    LlmOptimized,
    Agent,
    Actions,
    ProjectAgentsMd,
    Memory,
    Skills,
    AgentSwitches,
    Subagents,
    Environment,
}

impl Segment {
    /// As it is written in settings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::LlmOptimized => "llm_optimized",
            Self::Agent => "agent",
            Self::Actions => "actions",
            Self::ProjectAgentsMd => "project_agents_md",
            Self::Memory => "memory",
            Self::Skills => "skills",
            Self::AgentSwitches => "agent_switches",
            Self::Subagents => "subagents",
            Self::Environment => "environment",
        }
    }

    pub const DEFAULT_ORDER: [Self; 10] = [
        Self::Base,
        Self::LlmOptimized,
        Self::Agent,
        Self::Actions,
        Self::ProjectAgentsMd,
        Self::Memory,
        Self::Skills,
        Self::AgentSwitches,
        Self::Subagents,
        Self::Environment,
    ];
}
