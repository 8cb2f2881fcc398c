//! Reads agent definitions in all supported formats.
//!
//! Each format is parsed into [`UnresolvedAgent`]s: a definition plus the references that can only be checked after
//! everything else is loaded. [`merge`] combines the layers: agents of the workspace replace those of the operator, which
//! replace the built-in ones. [`resolve`] then resolves the references.

mod built_in;
mod codingcode;
mod merge;
mod opencode;
mod openharness;
pub(crate) mod permission;
mod resolve;

use remuda_domain::{agent::AgentDefinition, model::ModelParameters};

pub(crate) use self::{
    built_in::read as read_built_in,
    codingcode::read as read_codingcode,
    merge::MergedAgents,
    opencode::{OpenCodeProject, read as read_opencode},
    openharness::{PLATFORM_AGENTS, WORKSPACE_AGENTS, read as read_openharness},
    resolve::{Catalog, resolve_agents},
};
use crate::parse::LocatedText;

/// A parsed agent whose references are not resolved yet.
#[derive(Clone)]
pub(crate) struct UnresolvedAgent {
    pub definition: AgentDefinition,
    pub file: String,
    pub model: Option<RequestedModel>,
    /// Names in it that must exist: agents, tools, actions, skills.
    pub references: Vec<NameReference>,
    /// Kinds of capabilities that its format requires to be listed, and that it does not list: it has none of them.
    pub undeclared: Vec<ReferenceKind>,
    pub delegation: DelegationTargets,
}

/// The model an agent names, as written in its definition.
#[derive(Clone)]
pub(crate) struct RequestedModel {
    pub name: LocatedText,
    /// The file that names the model, which need not be the agent's own file.
    pub file: String,
    pub parameters: ModelParameters,
    pub naming: ModelNaming,
}

/// Whose model names a definition uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelNaming {
    /// Ours: an alias of the settings, a reference, or a bare name.
    Native,
    /// Another system's: if the model does not exist here, the agent uses the default model.
    Foreign,
}

#[derive(Clone)]
pub(crate) struct NameReference {
    pub kind: ReferenceKind,
    pub name: LocatedText,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReferenceKind {
    Switch,
    Subagent,
    NativeTool,
    Action,
    Skill,
    ToolServer,
}

/// Which agents an agent may delegate to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DelegationTargets {
    /// The agents it lists.
    Listed,
    /// All agents that its permissions do not deny, as in OpenCode.
    AllowedByPermission,
}

/// The result of parsing one agent definition.
#[derive(Clone)]
pub(crate) enum LoadOutcome {
    Usable(Box<UnresolvedAgent>),
    /// A definition disables the agent of this name.
    Disabled,
    /// The definition has an error. The name stays unusable instead of falling back to a lower layer, whose agent might be
    /// allowed more.
    Invalid,
}

/// One agent definition of one layer.
#[derive(Clone)]
pub(crate) struct LoadedAgent {
    pub name: String,
    pub file: String,
    pub outcome: LoadOutcome,
}
