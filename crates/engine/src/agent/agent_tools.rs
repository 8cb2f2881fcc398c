//! The tools by which agents use other agents: `AgentSwitch` and `SubAgent`.
//!
//! Models see them like any other tool, but no sandbox executes them: the run itself does ([`super::tool_calls`]).

pub(super) mod delegate;
pub(super) mod switch;

use remuda_domain::{
    agent::AgentDefinition,
    error::{Error, Result},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(super) use self::{
    delegate::{DELEGATE, DelegateArguments, DelegateTool},
    switch::{SWITCH, SwitchArguments, SwitchTool},
};

/// Whether the run itself executes calls of this tool.
pub(super) fn is_agent_tool(tool: &str) -> bool {
    matches!(tool, SWITCH | DELEGATE)
}

pub(super) fn parse<T: DeserializeOwned>(arguments: &Value) -> Result<T> {
    serde_json::from_value(arguments.clone()).map_err(|error| Error::invalid("arguments", error.to_string()))
}

/// An agent that the tool can name.
#[derive(Debug)]
struct Target {
    name: String,
    description: String,
}

fn targets(agents: Vec<&AgentDefinition>) -> Vec<Target> {
    let target =
        |agent: &AgentDefinition| Target { name: agent.name.clone(), description: agent.description.clone() };
    agents.into_iter().map(target).collect()
}

fn describe(what: &str, targets: &[Target]) -> String {
    let line = |target: &Target| match target.description.as_str() {
        "" => format!("\n- {}", target.name),
        description => format!("\n- {}: {description}", target.name),
    };
    targets.iter().fold(what.to_owned(), |text, target| text + &line(target))
}

fn names(targets: &[Target]) -> Vec<&str> {
    targets.iter().map(|target| target.name.as_str()).collect()
}

fn made_by_the_run(tool: &str) -> Error {
    Error::internal(format!("{tool} is not made by a sandbox"))
}
