//! The settings of a workspace: `.openharness/settings.yaml`.

use std::collections::BTreeMap;

use remuda_domain::{
    execution::ExecutionChoice,
    model::ModelParameters,
    permission::{PermissionMode, PermissionRule, Unattended},
};
use serde::{Deserialize, Serialize};

/// Settings for all agents of a workspace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    pub kind: WorkspaceKind,
    pub default_agent: Option<String>,
    /// The template that the workspace was created from; for information only.
    pub template: Option<String>,
    /// Aliases for models with parameters, which agents may use instead of references.
    pub models: BTreeMap<String, ModelAlias>,
    pub prompt: PromptSettings,
    /// Where tools execute, unless the session sets it.
    pub execution: ExecutionChoice,
    /// Permission rules of the workspace. They come after the operator's rules and before those of the agents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub permission: Vec<PermissionRule>,
    /// The permission mode of agents that set none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_mode: Option<PermissionMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unattended: Option<Unattended>,
    pub memory: MemorySettings,
    pub context: WorkspaceContext,
}

/// Whether agents of a workspace have tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceKind {
    #[default]
    Project,
    /// Conversation only, without tools.
    Chat,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelAlias {
    pub reference: String,
    #[serde(default)]
    pub parameters: ModelParameters,
}

/// Settings of the memory: notes that agents write to files and that later sessions read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemorySettings {
    pub enabled: bool,
    /// The file whose text is part of the prompt, relative to the workspace.
    pub file: String,
    /// The directory whose files are listed in the prompt, relative to the workspace.
    pub directory: String,
    /// Bytes of `file` that are part of the prompt.
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

/// Compaction of conversations that grow too long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkspaceContext {
    /// Whether to summarize; the platform's setting if missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summarize: Option<bool>,
    /// The model that summarizes: an alias, a reference or a bare name; the agent's own model if missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// The composition of the system prompt. Texts from files are loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PromptSettings {
    pub base: Option<String>,
    /// By provider, such as `anthropic`.
    pub by_provider: BTreeMap<String, String>,
    /// By model, such as `platform/opus`; overrides `by_provider`.
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

/// A segment of the system prompt. Segments that are not in the order are not sent; empty ones are skipped.
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
    /// The name in settings.
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
