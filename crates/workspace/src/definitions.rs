//! The definitions of a workspace, after loading and checking.

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

/// Everything that a run needs to know about its workspace.
///
/// The serialized form is the version that a run keeps from its start. It contains no keys and no problems.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Definitions {
    pub settings: Settings,
    /// The text of `AGENTS.md`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The memory of earlier sessions; `None` unless the settings enable it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// By name. Agents of the workspace replace those of the platform, which replace the built-in ones.
    pub agents: BTreeMap<String, AgentDefinition>,
    /// Agents that are defined but not usable.
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
    /// Errors and warnings about definitions.
    #[serde(skip)]
    pub problems: Vec<Problem>,
}

/// Why a defined agent is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Absence {
    /// A definition disables the agent.
    Disabled,
    /// Its definition has an error.
    #[serde(rename = "broken")]
    Invalid,
}

/// Instructions that an agent can read when it needs them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skill {
    pub name: String,
    pub description: String,
    /// All files of the skill must be beneath this directory: the workspace, or the operator's skill directory.
    pub root: PathBuf,
    /// The absolute path of the directory with its `SKILL.md`.
    pub directory: PathBuf,
    /// The text without the frontmatter.
    pub body: String,
}

/// A command of the workspace that agents, users or API clients may execute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// The directory of its `ACTION.yaml`, relative to the workspace.
    pub directory: PathBuf,
    /// A shell command.
    pub command: String,
    /// Values may be secrets, so they are not serialized.
    #[serde(skip)]
    pub environment: BTreeMap<String, Secret>,
    /// The working directory, relative to `directory`, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    pub to_llm: bool,
    pub callable_by_user: bool,
    pub callable_by_api: bool,
    #[serde(default)]
    pub retry: RetryPolicy,
    /// A JSON schema of its input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<serde_json::Value>,
}

/// Whether an interrupted action may be repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryPolicy {
    /// A person has to decide.
    #[default]
    Manual,
    Safe,
}

/// An external server that offers tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolServer {
    pub name: String,
    pub enabled: bool,
    pub transport: ToolTransport,
    /// Values may be secrets, so they are not serialized.
    #[serde(skip)]
    pub environment: BTreeMap<String, Secret>,
    /// Values may be secrets, so they are not serialized.
    #[serde(skip)]
    pub headers: BTreeMap<String, Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// A prefix for the names of its tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The tools to offer; `None` means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// How to connect to a tool server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolTransport {
    /// A process, over its standard input and output.
    Command { command: String },
    /// HTTP.
    Url { url: String },
}

impl Definitions {
    /// Serializes this version, to be stored under its hash.
    pub fn to_content(&self) -> Result<Content> {
        let text = serde_json::to_string(self)
            .map_err(|error| Error::internal("definitions cannot be serialized").with_source(error))?;
        Ok(Content::new(text))
    }

    /// Reads a stored version.
    pub fn from_content(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|error| Error::internal("stored definitions cannot be read").with_source(error))
    }

    /// The agent of a session that names none.
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

    /// The agent of this name, which must be able to lead sessions.
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

    /// The first error about an agent.
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

    /// Finds a model by reference, or by bare name: first in the workspace's registry, then in the platform's.
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
                format!("there is no model {name}: no models are defined, see `remuda models --help`")
            } else {
                format!("there is no model {name}; there are {}", known.join(", "))
            };
            Error::new(Code::ModelNotFound, message).at("model")
        })
    }
}
