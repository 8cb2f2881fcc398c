//! Finds the model of an agent in a session without a model of its own.

use remuda_config::Config;
use remuda_domain::{agent::AgentDefinition, error::Result, model::ModelDefinition};
use remuda_workspace::Definitions;

pub(super) fn model_of<'a>(
    definitions: &'a Definitions,
    agent: &AgentDefinition,
    config: &Config,
) -> Result<&'a ModelDefinition> {
    let default = Some(config.platform.default_model.as_str()).filter(|model| !model.is_empty());
    definitions.choose_model(agent, None, default).map(|choice| choice.model)
}
