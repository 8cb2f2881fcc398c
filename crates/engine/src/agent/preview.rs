//! What an agent would be given, for whoever asks before there is a run.

use remuda_domain::{agent::AgentDefinition, error::Result};
use remuda_models::ToolSpec;
use remuda_tools::Registry;
use remuda_workspace::Definitions;

use super::toolset;

/// The tools that an agent at the top of a tree would be given, before rules hide any. `all` are those of the worker;
/// `may_execute` is false in a session that only talks.
pub fn tools_of_agent(
    all: &Registry,
    agent: &AgentDefinition,
    definitions: &Definitions,
    may_execute: bool,
) -> Result<Vec<ToolSpec>> {
    let all = if may_execute { all.clone() } else { Registry::default() };
    toolset::of_agent(&all, agent, definitions, may_execute, true).map(|tools| toolset::specs(&tools))
}
