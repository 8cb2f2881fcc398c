//! Chooses the model of an agent.

use remuda_domain::{
    Code, Error,
    agent::AgentDefinition,
    error::Result,
    model::{ModelDefinition, ModelParameters},
};

use crate::definitions::Definitions;

/// A model with the parameters set by the agent and the alias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelChoice<'a> {
    pub model: &'a ModelDefinition,
    pub parameters: ModelParameters,
}

impl Definitions {
    /// The model of this name: an alias of the workspace, a reference, or a bare name.
    pub fn named_model(&self, name: &str) -> Result<ModelChoice<'_>> {
        Ok(match self.settings.models.get(name) {
            Some(alias) => ModelChoice { model: self.model(&alias.reference)?, parameters: alias.parameters },
            None => ModelChoice { model: self.model(name)?, parameters: ModelParameters::default() },
        })
    }

    /// The model of an agent: the session's, else its own, else the installation's default, else the only model there is.
    pub fn choose_model(
        &self,
        agent: &AgentDefinition,
        session: Option<&str>,
        installation: Option<&str>,
    ) -> Result<ModelChoice<'_>> {
        let own = agent.model.as_ref();
        let named = session.or(own.map(|model| model.reference.as_str())).or(installation);
        let choice = match named {
            Some(name) => self.named_model(name)?,
            None => ModelChoice { model: self.only_model()?, parameters: ModelParameters::default() },
        };
        let wanted = agent.parameters.or(own.map(|model| model.parameters).unwrap_or_default());
        Ok(ModelChoice { parameters: wanted.or(choice.parameters), ..choice })
    }

    fn only_model(&self) -> Result<&ModelDefinition> {
        let mut models = self.models.values();
        let message = match (models.next(), models.next()) {
            (Some(only), None) => return Ok(only),
            (None, _) => {
                "there is no model: define one in .openharness/models/*.yaml or in platform.models_dir"
            }
            _ => "no model is chosen: name one in the agent, or set platform.default_model",
        };
        Err(Error::new(Code::MissingModel, message).at("model"))
    }
}
