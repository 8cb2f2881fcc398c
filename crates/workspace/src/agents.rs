//! Agents, from whichever system they were defined for.
//!
//! Each format is read into [`Draft`]s: a definition, and what can only be checked once everything is known. The drafts
//! are laid over each other in [`merge`], where the workspace's win over the operator's, and those over the built-in
//! ones.

mod built_in;
mod codingcode;
mod links;
mod merge;
mod opencode;
mod openharness;
pub(crate) mod permission;
mod tools;

use remuda_domain::{agent::AgentDefinition, model::ModelParameters};

pub(crate) use self::{
    built_in::read as read_built_in,
    codingcode::read as read_codingcode,
    links::{Known, link},
    merge::Merged,
    opencode::{Project, read as read_opencode},
    openharness::{PLATFORM_AGENTS, WORKSPACE_AGENTS, read as read_openharness},
};
use crate::text::Text;

/// An agent that was read.
#[derive(Clone)]
pub(crate) struct Draft {
    pub definition: AgentDefinition,
    pub file: String,
    pub model: Option<WantedModel>,
    /// Names in it that should be those of something.
    pub mentions: Vec<Mention>,
    pub delegates: Delegates,
}

/// The model an agent asked for, as it is called there.
#[derive(Clone)]
pub(crate) struct WantedModel {
    pub name: Text,
    /// Where it says so, which need not be the agent's own file.
    pub file: String,
    pub parameters: ModelParameters,
    pub naming: Naming,
}

/// How a system calls models.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    /// An alias of the settings, a reference, or a bare name.
    Ours,
    /// Of another system: if there is no such model here, the agent takes what it is given.
    Foreign,
}

#[derive(Clone)]
pub(crate) struct Mention {
    pub kind: MentionKind,
    pub name: Text,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MentionKind {
    Switch,
    Subagent,
    NativeTool,
    Action,
    Skill,
    ToolServer,
}

/// Whom an agent may delegate to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delegates {
    /// Those it lists.
    Listed,
    /// Everyone whom its permissions do not deny, as OpenCode has it.
    AllowedByPermission,
}

/// What became of a definition.
#[derive(Clone)]
pub(crate) enum Outcome {
    Usable(Box<Draft>),
    /// Someone said that there shall be no agent of that name.
    Disabled,
    /// It has a problem. There is no agent of that name, rather than another one that might be allowed more.
    Broken,
}

/// An agent of one system.
#[derive(Clone)]
pub(crate) struct Found {
    pub name: String,
    pub file: String,
    pub outcome: Outcome,
}
