//! `AgentSwitch`: hands the session over to another agent.

use std::sync::LazyLock;

use async_trait::async_trait;
use remuda_domain::{
    agent::AgentDefinition,
    error::Result,
    tool::{
        CallSubject, Effects, ResultBody, ResultDisplay, SimilarCalls, ToolDescriptor, ToolOffer, ToolRole,
    },
};
use remuda_tools::{CallResult, Tool, ToolContext};
use remuda_workspace::Definitions;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Target, describe, made_by_the_run, names, parse, targets};

pub(in crate::agent) const SWITCH: &str = "AgentSwitch";

pub(in crate::agent) static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
    permission: "switch".into(),
    subject: |arguments| {
        let agent = arguments["agent"].as_str().or_else(|| arguments["to"].as_str());
        CallSubject::Text { text: agent, similar: SimilarCalls::None }
    },
    allowed_in_plan_mode: true,
    offer: ToolOffer::Automatic,
    role: Some(ToolRole::SwitchAgents),
    headline: |arguments| arguments.text("to"),
    result: |output| {
        let agent = output.text("agent").map(|agent| format!("{agent} now leads the session"));
        ResultDisplay::new([agent], ResultBody::Nothing)
    },
    ..ToolDescriptor::new(SWITCH, Effects::Idempotent)
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::agent) struct SwitchArguments {
    #[serde(alias = "to")]
    pub(in crate::agent) agent: String,
    #[serde(default)]
    #[expect(dead_code, reason = "models like to say why, and the call shows it")]
    pub(in crate::agent) reason: Option<String>,
}

/// `AgentSwitch`.
#[derive(Debug)]
pub(in crate::agent) struct SwitchTool {
    targets: Vec<Target>,
    description: String,
}

impl SwitchTool {
    /// `None` if the agent may switch to no other agent.
    pub(in crate::agent) fn of_agent(agent: &AgentDefinition, definitions: &Definitions) -> Option<Self> {
        let targets = targets(definitions.switch_targets(agent));
        let what = "Hands this conversation over to another agent, who goes on with everything that was said so far. Agents:";
        let description = describe(what, &targets);
        (!targets.is_empty()).then_some(Self { targets, description })
    }
}

#[async_trait]
impl Tool for SwitchTool {
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
