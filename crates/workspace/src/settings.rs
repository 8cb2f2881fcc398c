//! `.openharness/settings.yaml`.

use std::collections::BTreeMap;

use remuda_domain::{execution::ExecutionChoice, model::ModelParameters};
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
            Self::Skills => "skills",
            Self::AgentSwitches => "agent_switches",
            Self::Subagents => "subagents",
            Self::Environment => "environment",
        }
    }

    pub const DEFAULT_ORDER: [Self; 9] = [
        Self::Base,
        Self::LlmOptimized,
        Self::Agent,
        Self::Actions,
        Self::ProjectAgentsMd,
        Self::Skills,
        Self::AgentSwitches,
        Self::Subagents,
        Self::Environment,
    ];
}
