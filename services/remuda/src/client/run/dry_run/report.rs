//! The findings of a dry run.

use std::{path::PathBuf, time::Duration};

use remuda_domain::{
    agent::AgentDefinition,
    budget::{Amount, Budget, Limit},
    execution::ExecutionPolicy,
    model::ModelDefinition,
    tool::ToolRole,
};
use remuda_models::ToolSpec;

use crate::workspace::rules::Rules;

/// What the run would do, and its problems.
pub(super) struct Report {
    pub(super) root: PathBuf,
    pub(super) version: String,
    pub(super) notes: Vec<String>,
    pub(super) agent: Option<Chosen<AgentDefinition>>,
    pub(super) model: Option<ModelReport>,
    pub(super) execution: Option<Execution>,
    pub(super) tools: Tools,
    pub(super) rules: Option<Rules>,
    pub(super) switches: Vec<String>,
    pub(super) delegates: Vec<String>,
    pub(super) skills: Vec<String>,
    pub(super) memory: Option<String>,
    pub(super) prompt: Option<Prompt>,
    pub(super) budget: BudgetReport,
    pub(super) problems: Vec<Problem>,
}

impl Report {
    pub(super) fn would_run(&self) -> bool {
        !self.problems.iter().any(|problem| problem.blocks)
    }
}

/// A choice and its reason.
pub(super) struct Chosen<T> {
    pub(super) value: T,
    pub(super) reason: &'static str,
}

pub(super) struct ModelReport {
    pub(super) model: ModelDefinition,
    pub(super) reason: &'static str,
    pub(super) test: ModelTest,
    pub(super) window: u64,
}

/// The result of the test message to the model.
pub(super) enum ModelTest {
    Passed(Duration),
    /// The reason is among the problems.
    Failed,
    Skipped,
}

/// Where tools would execute.
pub(super) enum Execution {
    Backend(Box<ExecutionPolicy>),
    /// No tools execute, for this reason.
    Disabled(&'static str),
}

#[derive(Default)]
pub(super) struct Tools {
    pub(super) offered: Vec<String>,
    /// Tools of the agent that permission rules deny entirely.
    pub(super) hidden: Vec<String>,
    /// Tools that the agent does not have.
    pub(super) disallowed: Vec<String>,
    /// The definitions of the offered tools, as sent to the model.
    pub(super) specs: Vec<ToolSpec>,
}

impl Tools {
    /// Whether the tool with this role is offered.
    pub(super) fn has(&self, role: ToolRole) -> bool {
        let tool = remuda_node::tool_catalog().with_role(role);
        tool.is_some_and(|tool| self.offered.iter().any(|name| *name == tool.name))
    }
}

/// The size of the first model call.
pub(super) struct Prompt {
    /// Segments of the system prompt with their sizes in bytes.
    pub(super) segments: Vec<(&'static str, usize)>,
    pub(super) system_bytes: usize,
    pub(super) tools_bytes: usize,
    pub(super) message_bytes: usize,
    /// An estimate.
    pub(super) tokens: u64,
}

pub(super) struct BudgetReport {
    pub(super) limit: Limit,
    pub(super) source: &'static str,
    /// The session's budget, which applies too.
    pub(super) session: Option<Budget>,
    /// Maximum cost of the first model call, and whether the model has a price.
    pub(super) first_call: Option<(Amount, bool)>,
}

/// A problem and how to fix it.
pub(super) struct Problem {
    /// The run would fail.
    pub(super) blocks: bool,
    pub(super) message: String,
    pub(super) fix: String,
}
