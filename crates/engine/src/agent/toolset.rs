//! Selects the tools of an agent.

use std::sync::Arc;

use remuda_domain::{
    agent::AgentDefinition,
    error::Result,
    tool::{ToolCatalog, ToolDescriptor, ToolOffer},
};
use remuda_models::ToolSpec;
use remuda_tools::{Registry, Tool};
use remuda_workspace::Definitions;

use super::{
    agent_tools::{self, DelegateTool, SwitchTool},
    skill::{self, SkillTool},
};

/// What is known about the tools of `all`, and about those that agents get automatically.
pub fn tool_catalog(all: &Registry) -> ToolCatalog {
    let automatic =
        [&*skill::DESCRIPTOR, &agent_tools::delegate::DESCRIPTOR, &agent_tools::switch::DESCRIPTOR];
    all.catalog().iter().chain(automatic).cloned().collect()
}

/// The tools of `all` that the agent may use, its skills, and its switch and delegation tools. A chat-only session
/// has only the latter two.
pub(super) fn of_agent(
    all: &Registry,
    agent: &AgentDefinition,
    definitions: &Definitions,
    may_execute: bool,
    may_delegate: bool,
) -> Result<Registry> {
    let wanted = |tool: &ToolDescriptor| tool.offer == ToolOffer::Listed && agent.has_tool(&tool.name);
    let mut tools = all.only(wanted);
    if may_execute && let Some(skills) = SkillTool::of_agent(agent, definitions) {
        tools = tools.with(Arc::new(skills))?;
    }
    if let Some(switch) = SwitchTool::of_agent(agent, definitions) {
        tools = tools.with(Arc::new(switch))?;
    }
    if may_delegate && let Some(delegate) = DelegateTool::of_agent(agent, definitions) {
        tools = tools.with(Arc::new(delegate))?;
    }
    Ok(tools)
}

/// The tool definitions for a model, in order of their names.
pub(super) fn specs(tools: &Registry) -> Vec<ToolSpec> {
    let spec = |tool: &Arc<dyn Tool>| ToolSpec {
        name: tool.name().to_owned(),
        description: tool.description().to_owned(),
        schema: tool.schema(),
    };
    tools.iter().map(spec).collect()
}
