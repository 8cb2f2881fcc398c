//! `SubAgent`: gives a task to another agent, whose run is a child of this one.

use std::sync::LazyLock;

use async_trait::async_trait;
use remuda_domain::{
    agent::AgentDefinition,
    display::sanitize,
    error::{Error, Result},
    limits,
    tool::{
        CallSubject, DisplayFields, Effects, ForeignFormat, ResultBody, ResultDisplay, SimilarCalls,
        ToolDescriptor, ToolOffer, ToolRole,
    },
};
use remuda_tools::{CallResult, Tool, ToolContext};
use remuda_workspace::Definitions;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Target, describe, made_by_the_run, names, parse, targets};
use crate::agent::delegation::task_session;

pub(in crate::agent) const DELEGATE: &str = "SubAgent";

pub(in crate::agent) static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
    permission: "task".into(),
    subject: |arguments| {
        let agent = arguments["subagent_type"].as_str().or_else(|| arguments["agent"].as_str());
        CallSubject::Text { text: agent, similar: SimilarCalls::None }
    },
    // Sub-agents inherit the mode.
    allowed_in_plan_mode: true,
    offer: ToolOffer::Automatic,
    role: Some(ToolRole::Delegate),
    foreign_names: &[(ForeignFormat::OpenHarness, "agent"), (ForeignFormat::CodingCode, "dispatch_agent")],
    headline: |arguments| match (arguments.text("subagent_type"), arguments.text("description")) {
        (Some(agent), Some(what)) => Some(format!("{agent}: {what}")),
        (agent, what) => what.or(agent),
    },
    result: for_people,
    ..ToolDescriptor::new(DELEGATE, Effects::Idempotent)
});

fn for_people(output: DisplayFields<'_>) -> ResultDisplay {
    let state = output.text("state").filter(|state| state != "completed");
    let message = output.0["result"].as_str().map(sanitize);
    let body = message.map(|text| ResultBody::Lines(text.lines().map(str::to_owned).collect()));
    let summary = [output.text("agent"), state, output.text("task_id")];
    ResultDisplay::new(summary, body.unwrap_or(ResultBody::Nothing))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::agent) struct DelegateArguments {
    /// A short title, for people.
    #[serde(default)]
    pub(in crate::agent) description: String,
    pub(in crate::agent) prompt: String,
    #[serde(default, alias = "agent")]
    pub(in crate::agent) subagent_type: Option<String>,
    /// The session of an earlier delegation, to continue there.
    #[serde(default)]
    pub(in crate::agent) task_id: Option<String>,
    #[serde(default, alias = "background")]
    pub(in crate::agent) run_in_background: Option<bool>,
}

/// `SubAgent`.
#[derive(Debug)]
pub(in crate::agent) struct DelegateTool {
    targets: Vec<Target>,
    description: String,
}

impl DelegateTool {
    /// `None` if the agent may delegate to no other agent.
    pub(in crate::agent) fn of_agent(agent: &AgentDefinition, definitions: &Definitions) -> Option<Self> {
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
    fn descriptor(&self) -> &ToolDescriptor {
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        &self.description
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
            task_session(task)?;
        }
        limits::check_text("arguments.description", &arguments.description, limits::MAX_TITLE_CHARS)
    }

    async fn call(&self, _arguments: &Value, _context: &ToolContext) -> CallResult {
        Err(made_by_the_run(DELEGATE).into())
    }
}
