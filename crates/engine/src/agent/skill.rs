//! The `Skill` tool: reads instructions that an agent needs only for certain tasks.

use std::{collections::BTreeMap, sync::LazyLock};

use async_trait::async_trait;
use remuda_domain::{
    agent::AgentDefinition,
    error::{Error, Result},
    tool::{
        CallSubject, Effects, LongResults, ResultBody, ResultDisplay, SimilarCalls, ToolDescriptor,
        ToolOffer, ToolRole,
    },
};
use remuda_tools::{CallResult, Tool, ToolContext};
use remuda_workspace::{Definitions, Skill};
use serde::Deserialize;
use serde_json::{Value, json};

pub(super) static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
    permission: "skill".into(),
    subject: |arguments| {
        let skill = arguments["skill"].as_str().or_else(|| arguments["name"].as_str());
        CallSubject::Text { text: skill, similar: SimilarCalls::None }
    },
    offer: ToolOffer::Automatic,
    role: Some(ToolRole::ReadSkills),
    long_results: LongResults::Keep,
    headline: |arguments| arguments.text("skill").or_else(|| arguments.text("name")),
    result: |_| ResultDisplay::new([], ResultBody::OutputIfFull),
    ..ToolDescriptor::new("Skill", Effects::ReadOnly)
});

/// Reads the skills of one agent.
#[derive(Debug)]
pub(super) struct SkillTool {
    skills: BTreeMap<String, Skill>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    #[serde(alias = "name")]
    skill: String,
    resource_path: Option<String>,
}

impl SkillTool {
    /// `None` if the agent has no skills.
    pub(super) fn of_agent(agent: &AgentDefinition, definitions: &Definitions) -> Option<Self> {
        let skills: BTreeMap<String, Skill> = definitions
            .skills
            .iter()
            .filter(|(name, _)| agent.has_skill(name))
            .map(|(name, skill)| (name.clone(), skill.clone()))
            .collect();
        (!skills.is_empty()).then_some(Self { skills })
    }

    fn parse(&self, arguments: &Value) -> Result<(&Skill, Option<String>)> {
        let arguments: Arguments = serde_json::from_value(arguments.clone())
            .map_err(|error| Error::invalid("arguments", error.to_string()))?;
        let skill = self.skills.get(&arguments.skill).ok_or_else(|| {
            let names: Vec<&str> = self.skills.keys().map(String::as_str).collect();
            Error::invalid("arguments.skill", format!("expected one of {}", names.join(", ")))
        })?;
        Ok((skill, arguments.resource_path))
    }
}

#[async_trait]
impl Tool for SkillTool {
    fn descriptor(&self) -> &ToolDescriptor {
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Reads a skill: instructions for a kind of task. Read it before you begin such a task. With resource_path, reads a \
         file that belongs to the skill."
    }

    fn needs_sandbox(&self) -> bool {
        false
    }

    fn schema(&self) -> Value {
        let names: Vec<&str> = self.skills.keys().map(String::as_str).collect();
        json!({
            "type": "object",
            "properties": {
                "skill": { "type": "string", "enum": names, "description": "The skill." },
                "resource_path": {
                    "type": "string",
                    "description": "A file of the skill, as seen from its directory.",
                },
            },
            "required": ["skill"],
            "additionalProperties": false,
        })
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        self.parse(arguments).map(drop)
    }

    async fn call(&self, arguments: &Value, _context: &ToolContext) -> CallResult {
        let (skill, resource) = self.parse(arguments)?;
        let Some(resource) = resource else {
            return Ok(Value::String(skill.body.clone()));
        };
        let skill = skill.clone();
        let read = tokio::task::spawn_blocking(move || skill.read_resource(&resource)).await;
        let read = read.map_err(|error| Error::internal("a skill could not be read").with_source(error))?;
        let text = read.map_err(|error| error.at("arguments.resource_path"))?;
        Ok(Value::String(text.replace('\0', "\u{fffd}")))
    }
}
