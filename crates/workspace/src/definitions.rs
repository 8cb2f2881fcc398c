//! What a workspace declares, read and checked.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use remuda_domain::{
    Code, Error,
    agent::AgentDefinition,
    content::Content,
    error::Result,
    model::{ModelDefinition, ModelRef, Registry, Secret},
};
use serde::{Deserialize, Serialize};

use crate::{
    memory::Memory,
    problem::{Problem, Severity},
    settings::Settings,
};

/// Everything that a run needs to know of its workspace. Serialized, it is what a run keeps as the version it started with:
/// without keys, which are not part of any version, and without problems.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Definitions {
    pub settings: Settings,
    /// The text of `AGENTS.md`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// What was remembered; missing unless the settings want it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// By name: built-in, platform's, workspace's, each replacing those before.
    pub agents: BTreeMap<String, AgentDefinition>,
    /// Agents that someone defined and that are not there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub absent: BTreeMap<String, Absence>,
    /// By reference.
    pub models: BTreeMap<ModelRef, ModelDefinition>,
    /// By name.
    pub skills: BTreeMap<String, Skill>,
    /// By name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub actions: BTreeMap<String, Action>,
    /// By name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tool_servers: BTreeMap<String, ToolServer>,
    /// What could not be used, and why.
    #[serde(skip)]
    pub problems: Vec<Problem>,
}

/// Why an agent that someone defined is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Absence {
    /// Someone said that there shall be none of that name.
    Disabled,
    /// Its definition has a problem.
    Broken,
}

/// Something an agent can look up when it needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skill {
    pub name: String,
    pub description: String,
    /// What none of its files may lie outside of: the workspace, or the operator's directory.
    pub root: PathBuf,
    /// The directory of its `SKILL.md`, in full.
    pub directory: PathBuf,
    /// What it says, without the frontmatter.
    pub body: String,
}

/// A command of the workspace that agents, users or programs may have executed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// The directory of its `ACTION.yaml`, as seen from the workspace's root.
    pub directory: PathBuf,
    /// For a shell.
    pub command: String,
    /// Values may be secrets, so they are not written anywhere.
    #[serde(skip)]
    pub environment: BTreeMap<String, Secret>,
    /// Within its directory, which is where it is executed otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    pub to_llm: bool,
    pub callable_by_user: bool,
    pub callable_by_api: bool,
    #[serde(default)]
    pub retry: RetryPolicy,
    /// A JSON schema of what it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<serde_json::Value>,
}

/// Whether something that was cut short may be done again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryPolicy {
    /// Someone has to decide.
    #[default]
    Manual,
    Safe,
}

/// Something outside that offers tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolServer {
    pub name: String,
    pub enabled: bool,
    pub transport: ToolTransport,
    /// Values may be secrets, so they are not written anywhere.
    #[serde(skip)]
    pub environment: BTreeMap<String, Secret>,
    /// The same.
    #[serde(skip)]
    pub headers: BTreeMap<String, Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// Put before the names of its tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Its tools that are offered; `None` means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// How a tool server is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolTransport {
    /// As a process, over its standard input and output.
    Command { command: String },
    /// Over HTTP.
    Url { url: String },
}

impl Definitions {
    /// This version, to be stored under its hash.
    pub fn to_content(&self) -> Result<Content> {
        let text = serde_json::to_string(self)
            .map_err(|error| Error::internal("definitions cannot be written").with_source(error))?;
        Ok(Content::new(text))
    }

    /// A version that was stored.
    pub fn from_content(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|error| Error::internal("stored definitions cannot be read").with_source(error))
    }

    /// The agent that leads a session which named none.
    pub fn default_agent(&self) -> Result<&AgentDefinition> {
        if let Some(name) = &self.settings.default_agent {
            return self.leading_agent(name);
        }
        let assistant = self.agents.get("assistant").filter(|agent| agent.mode.may_lead());
        let first = || self.agents.values().find(|agent| agent.mode.may_lead() && !agent.hidden);
        assistant.or_else(first).ok_or_else(|| {
            Error::new(Code::MissingDefaultAgent, "the workspace has no agent that could lead a session")
        })
    }

    /// The agent of that name, which must be one that leads sessions.
    pub fn leading_agent(&self, name: &str) -> Result<&AgentDefinition> {
        let agent = self.agent(name)?;
        if agent.mode.may_lead() {
            return Ok(agent);
        }
        let message = format!("the agent {name} only works for other agents (mode: subagent)");
        Err(Error::new(Code::AgentNotAllowed, message).at("agent"))
    }

    pub fn agent(&self, name: &str) -> Result<&AgentDefinition> {
        self.agents.get(name).ok_or_else(|| {
            let message = match (self.problem_of(name), self.absent.get(name)) {
                (Some(problem), _) => format!("the agent {name} cannot be used: {problem}"),
                (None, Some(Absence::Disabled)) => format!("the agent {name} is disabled"),
                (None, _) => format!("there is no agent {name}; there are {}", self.agent_names()),
            };
            Error::new(Code::AgentNotFound, message).at("agent")
        })
    }

    /// Why an agent cannot be used.
    pub(crate) fn problem_of(&self, name: &str) -> Option<&Problem> {
        let of_it = |problem: &&Problem| {
            problem.severity == Severity::Error && problem.subject.as_deref() == Some(name)
        };
        self.problems.iter().find(of_it)
    }

    fn agent_names(&self) -> String {
        let shown = self.agents.values().filter(|agent| !agent.hidden).map(|agent| agent.name.as_str());
        shown.collect::<Vec<_>>().join(", ")
    }

    /// The model of a full reference, or of a bare name, which is looked for in the workspace first.
    pub fn model(&self, name: &str) -> Result<&ModelDefinition> {
        let found = match name.parse::<ModelRef>() {
            Ok(reference) => self.models.get(&reference),
            Err(_) => [Registry::Workspace, Registry::Platform]
                .into_iter()
                .find_map(|registry| self.models.get(&ModelRef::new(registry, name))),
        };
        found.ok_or_else(|| {
            let known: Vec<String> = self.models.keys().map(ToString::to_string).collect();
            let message = if known.is_empty() {
                format!("there is no model {name}, nor any other: see `remuda models --help`")
            } else {
                format!("there is no model {name}; there are {}", known.join(", "))
            };
            Error::new(Code::ModelNotFound, message).at("model")
        })
    }
}
