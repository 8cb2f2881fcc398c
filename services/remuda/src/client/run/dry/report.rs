//! What a dry run found.

use std::{path::PathBuf, time::Duration};

use remuda_domain::{
    agent::AgentDefinition,
    budget::{Amount, Budget, Limit},
    execution::ExecutionPolicy,
    model::ModelDefinition,
};
use remuda_models::ToolSpec;

use crate::workspace::rules::Rules;

/// What would happen.
pub(super) struct Report {
    pub(super) root: PathBuf,
    pub(super) version: String,
    pub(super) notes: Vec<String>,
    pub(super) agent: Option<Chosen<AgentDefinition>>,
    pub(super) model: Option<ModelLook>,
    pub(super) execution: Option<Executes>,
    pub(super) tools: Tools,
    pub(super) rules: Option<Rules>,
    pub(super) switches: Vec<String>,
    pub(super) delegates: Vec<String>,
    pub(super) skills: Vec<String>,
    pub(super) memory: Option<String>,
    pub(super) prompt: Option<Prompt>,
    pub(super) budget: Budgeted,
    pub(super) problems: Vec<Trouble>,
}

impl Report {
    pub(super) fn would_run(&self) -> bool {
        !self.problems.iter().any(|problem| problem.blocks)
    }
}

/// Something, and why it was chosen.
pub(super) struct Chosen<T> {
    pub(super) what: T,
    pub(super) why: &'static str,
}

pub(super) struct ModelLook {
    pub(super) model: ModelDefinition,
    pub(super) why: &'static str,
    pub(super) answer: Answer,
    pub(super) window: u64,
}

/// Whether a model answers.
pub(super) enum Answer {
    Answered(Duration),
    /// Why not is among the problems.
    Silent,
    NotAsked,
}

/// Where tools would be executed.
pub(super) enum Executes {
    Here(Box<ExecutionPolicy>),
    /// The session only talks.
    Nowhere(&'static str),
}

#[derive(Default)]
pub(super) struct Tools {
    pub(super) offered: Vec<String>,
    /// The agent has them, but a rule denies all of what they do.
    pub(super) hidden: Vec<String>,
    /// The agent does not have them.
    pub(super) disallowed: Vec<String>,
    /// What models are told of those that are offered.
    pub(super) specs: Vec<ToolSpec>,
}

/// How long the first question is.
pub(super) struct Prompt {
    /// Parts of the system prompt in bytes.
    pub(super) segments: Vec<(&'static str, usize)>,
    pub(super) system_bytes: usize,
    pub(super) tools_bytes: usize,
    pub(super) message_bytes: usize,
    /// As estimated.
    pub(super) tokens: u64,
}

pub(super) struct Budgeted {
    pub(super) limit: Limit,
    pub(super) of: &'static str,
    /// What the session has besides.
    pub(super) session: Option<Budget>,
    /// What the first question may cost at most; money only if the model has a price.
    pub(super) first: Option<(Amount, bool)>,
}

/// Something that is wrong, and what to do about it.
pub(super) struct Trouble {
    /// The run would not work.
    pub(super) blocks: bool,
    pub(super) what: String,
    pub(super) mend: String,
}
