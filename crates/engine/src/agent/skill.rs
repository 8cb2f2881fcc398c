//! `Skill`: what an agent can look up when it needs it.

use std::{collections::BTreeMap, io::Read as _, path::Path};

use async_trait::async_trait;
use remuda_domain::{
    agent::AgentDefinition,
    error::{Code, Error, Result},
    tool::Effects,
};
use remuda_tools::{CallResult, Tool, ToolContext};
use remuda_workspace::{Definitions, Skill};
use serde::Deserialize;
use serde_json::{Value, json};

use super::toolset::excluded;

/// A skill's own files are texts that are meant to be read whole.
const MAX_RESOURCE_BYTES: u64 = 256 * 1024;

/// Gives an agent its skills.
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
    /// Nothing if the agent has no skill.
    pub(super) fn of_agent(agent: &AgentDefinition, definitions: &Definitions) -> Option<Self> {
        let wanted = |name: &str| {
            let selected = agent.tools.skills.as_ref().is_none_or(|names| names.iter().any(|it| it == name));
            selected && !excluded(&agent.disallowed.skills, name)
        };
        let skills: BTreeMap<String, Skill> = definitions
            .skills
            .iter()
            .filter(|(name, _)| wanted(name))
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
    fn name(&self) -> &str {
        "Skill"
    }

    fn description(&self) -> &str {
        "Reads a skill: instructions for a kind of task. Read it before you begin such a task. With resource_path, reads a \
         file that belongs to the skill."
    }

    fn effects(&self) -> Effects {
        Effects::ReadOnly
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
        let directory = skill.directory.clone();
        let read = tokio::task::spawn_blocking(move || read_resource(&directory, &resource)).await;
        let read = read.map_err(|error| Error::internal("a skill could not be read").with_source(error))?;
        Ok(Value::String(read?))
    }
}

fn read_resource(directory: &Path, resource: &str) -> Result<String> {
    let field = "arguments.resource_path";
    let missing = || Error::new(Code::FileNotFound, "the skill has no such file").at(field);
    let directory = directory.canonicalize().map_err(|_| missing())?;
    let path = directory.join(resource).canonicalize().map_err(|_| missing())?;
    if !path.starts_with(&directory) {
        return Err(Error::new(Code::PathNotAllowed, "expected a file of the skill").at(field));
    }
    let file = std::fs::File::open(&path).map_err(|_| missing())?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(missing());
    }
    let mut bytes = Vec::new();
    file.take(MAX_RESOURCE_BYTES).read_to_end(&mut bytes).map_err(|_| missing())?;
    Ok(String::from_utf8_lossy(&bytes).replace('\0', "\u{fffd}"))
}
