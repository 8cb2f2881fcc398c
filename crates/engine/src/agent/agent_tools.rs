//! The tools by which agents use other agents: `AgentSwitch` and `SubAgent`.
//!
//! Models see them like any other tool, but no sandbox executes them: the run itself does ([`super::tool_calls`]).

use async_trait::async_trait;
use remuda_domain::{
    agent::AgentDefinition,
    error::{Error, Result},
    limits,
    tool::Effects,
};
use remuda_tools::{CallResult, Tool, ToolContext};
use remuda_workspace::Definitions;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub(super) const SWITCH: &str = "AgentSwitch";
pub(super) const DELEGATE: &str = "SubAgent";

/// Whether the run itself executes calls of this tool.
pub(super) fn is_agent_tool(tool: &str) -> bool {
    matches!(tool, SWITCH | DELEGATE)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchArguments {
    #[serde(alias = "to")]
    pub(super) agent: String,
    #[serde(default)]
    #[expect(dead_code, reason = "models like to say why, and the call shows it")]
    pub(super) reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DelegateArguments {
    /// A short title, for people.
    #[serde(default)]
    pub(super) description: String,
    pub(super) prompt: String,
    #[serde(default, alias = "agent")]
    pub(super) subagent_type: Option<String>,
    /// The session of an earlier delegation, to continue there.
    #[serde(default)]
    pub(super) task_id: Option<String>,
    #[serde(default, alias = "background")]
    pub(super) run_in_background: Option<bool>,
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

/// `AgentSwitch`.
#[derive(Debug)]
pub(super) struct SwitchTool {
    targets: Vec<Target>,
    description: String,
}

impl SwitchTool {
    /// `None` if the agent may switch to no other agent.
    pub(super) fn of_agent(agent: &AgentDefinition, definitions: &Definitions) -> Option<Self> {
        let targets = targets(definitions.switch_targets(agent));
        let what = "Hands this conversation over to another agent, who goes on with everything that was said so far. Agents:";
        let description = describe(what, &targets);
        (!targets.is_empty()).then_some(Self { targets, description })
    }
}

#[async_trait]
impl Tool for SwitchTool {
    fn name(&self) -> &str {
        SWITCH
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn effects(&self) -> Effects {
        Effects::Idempotent
    }

    fn needs_sandbox(&self) -> bool {
        false
    }

    fn schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "agent": { "type": "string", "enum": names(&self.targets), "description": "Who goes on." },
                "reason": { "type": "string", "description": "Why." },
            },
            "required": ["agent"],
            "additionalProperties": false,
        })
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        parse::<SwitchArguments>(arguments).map(drop)
    }

    async fn call(&self, _arguments: &Value, _context: &ToolContext) -> CallResult {
        Err(made_by_the_run(SWITCH).into())
    }
}

/// `SubAgent`.
#[derive(Debug)]
pub(super) struct DelegateTool {
    targets: Vec<Target>,
    description: String,
}

impl DelegateTool {
    /// `None` if the agent may delegate to no other agent.
    pub(super) fn of_agent(agent: &AgentDefinition, definitions: &Definitions) -> Option<Self> {
        let targets = targets(definitions.delegation_targets(agent));
        let what = "Gives a task to another agent, who works on it by itself, in a conversation of its own, and sees nothing \
                    of this one: say in the prompt all that it needs to know. Its last message comes back as the result. \
                    Several calls in one answer work at the same time. With run_in_background, the result comes later by \
                    itself. With task_id, an agent goes on where it ended. Agents:";
        let description = describe(what, &targets);
        (!targets.is_empty()).then_some(Self { targets, description })
    }
}

#[async_trait]
impl Tool for DelegateTool {
    fn name(&self) -> &str {
        DELEGATE
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn effects(&self) -> Effects {
        Effects::Idempotent
    }

    fn needs_sandbox(&self) -> bool {
        false
    }

    fn schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "description": { "type": "string", "description": "The task in a few words, for people." },
                "prompt": { "type": "string", "description": "The task." },
                "subagent_type": {
                    "type": "string",
                    "enum": names(&self.targets),
                    "description": "Who does it. May be left out if there is only one, or with task_id.",
                },
                "task_id": { "type": "string", "description": "The task_id of an earlier result, to go on there." },
                "run_in_background": { "type": "boolean", "description": "Do not wait for the result." },
            },
            "required": ["prompt"],
            "additionalProperties": false,
        })
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        let arguments: DelegateArguments = parse(arguments)?;
        if arguments.prompt.trim().is_empty() {
            return Err(Error::invalid("arguments.prompt", "expected a task"));
        }
        if let Some(task) = &arguments.task_id {
            super::delegation::task_session(task)?;
        }
        limits::check_text("arguments.description", &arguments.description, limits::MAX_TITLE_CHARS)
    }

    async fn call(&self, _arguments: &Value, _context: &ToolContext) -> CallResult {
        Err(made_by_the_run(DELEGATE).into())
    }
}

fn made_by_the_run(tool: &str) -> Error {
    Error::internal(format!("{tool} is not made by a sandbox"))
}
