//! Which model an agent gets, as workers decide it.

use remuda_config::Config;
use remuda_domain::{Code, Error, agent::AgentDefinition, error::Result, model::ModelDefinition};
use remuda_workspace::Definitions;

/// The model of that name: an alias of the workspace, a reference, or a bare name.
pub(crate) fn model_named<'a>(definitions: &'a Definitions, name: &str) -> Result<&'a ModelDefinition> {
    let alias = definitions.settings.models.get(name);
    definitions.model(alias.map_or(name, |alias| alias.reference.as_str()))
}

/// The model that an agent works with in a session that names none: its own, the installation's, or the only one there is.
pub(super) fn model_of<'a>(
    definitions: &'a Definitions,
    agent: &AgentDefinition,
    config: &Config,
) -> Result<&'a ModelDefinition> {
    if let Some(model) = &agent.model {
        return model_named(definitions, &model.reference);
    }
    let default = &config.platform.default_model;
    if !default.is_empty() {
        return model_named(definitions, default);
    }
    let mut models = definitions.models.values();
    match (models.next(), models.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(Error::new(Code::MissingModel, "there is no model").at("model")),
        _ => Err(Error::new(Code::MissingModel, "nothing says which model to use").at("model")),
    }
}
