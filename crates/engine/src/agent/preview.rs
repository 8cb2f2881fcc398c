//! What an agent would be given, for whoever asks before there is a run.

use remuda_domain::{
    agent::AgentDefinition,
    error::Result,
    message::Part,
    model::{ModelDefinition, ModelParameters},
};
use remuda_models::ToolSpec;
use remuda_tools::Registry;
use remuda_workspace::Definitions;

use super::{
    context::{Gauge, tokens},
    settings::ContextSettings,
    toolset,
    transcript::Outgoing,
};

/// The tools that an agent at the top of a tree would be given, before rules hide any. `all` are those of the worker;
/// `may_execute` is false in a session that only talks.
pub fn tools_of_agent(
    all: &Registry,
    agent: &AgentDefinition,
    definitions: &Definitions,
    may_execute: bool,
) -> Result<Vec<ToolSpec>> {
    let all = if may_execute { all.clone() } else { Registry::default() };
    toolset::of_agent(&all, agent, definitions, may_execute, true).map(|tools| toolset::specs(&tools))
}

/// What the first question of a conversation would have, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstQuestion {
    /// As estimated.
    pub input: u64,
    /// What is kept free, and held in budgets, for the answer.
    pub output: u64,
    /// What both may have together.
    pub window: u64,
}

/// Estimates it the way that runs do.
pub fn first_question(
    (model, parameters): (&ModelDefinition, &ModelParameters),
    settings: &ContextSettings,
    (system, tools): (&str, &[ToolSpec]),
    message: Vec<Part>,
) -> FirstQuestion {
    let gauge = Gauge::new(model, parameters, settings, tokens::fixed(system, tools), None);
    let message = Outgoing::given(remuda_domain::message::Role::User, message);
    FirstQuestion { input: gauge.expected(&[message]), output: gauge.room.reserve, window: gauge.room.window }
}
