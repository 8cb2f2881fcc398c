//! Previews an agent's tools and first model call without a run.

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
    context::{TokenEstimator, tokens},
    settings::ContextSettings,
    toolset,
    transcript::Outgoing,
};

/// The tools of an agent at the top level, before permission rules hide any. `all` are the worker's tools;
/// `may_execute` is false in a chat-only session.
pub fn tools_of_agent(
    all: &Registry,
    agent: &AgentDefinition,
    definitions: &Definitions,
    may_execute: bool,
) -> Result<Vec<ToolSpec>> {
    let all = if may_execute { all.clone() } else { Registry::default() };
    toolset::of_agent(&all, agent, definitions, may_execute, true).map(|tools| toolset::specs(&tools))
}

/// Estimated tokens of the first model call of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstModelCall {
    /// Estimated input.
    pub input: u64,
    /// Reserved for the response, in the window and in budgets.
    pub output: u64,
    /// The context window, for input and output together.
    pub window: u64,
}

/// Makes the same estimate as a run does.
pub fn preview_first_model_call(
    (model, parameters): (&ModelDefinition, &ModelParameters),
    settings: &ContextSettings,
    (system, tools): (&str, &[ToolSpec]),
    message: Vec<Part>,
) -> FirstModelCall {
    let estimator = TokenEstimator::new(model, parameters, settings, tokens::fixed(system, tools), None);
    let message = Outgoing::inserted(remuda_domain::message::Role::User, message);
    FirstModelCall {
        input: estimator.expected_tokens(&[message]),
        output: estimator.window.reserve,
        window: estimator.window.capacity,
    }
}
