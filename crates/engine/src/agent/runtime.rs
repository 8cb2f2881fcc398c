//! What agents need besides tools, for all runs of a worker.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use remuda_domain::{
    Code, Error, TenantId,
    agent::AgentDefinition,
    content::{Content, ContentHash},
    error::Result,
    model::ModelParameters,
};
use remuda_models::Models;
use remuda_store::Grant;
use remuda_workspace::{Definitions, Loader};

/// Texts that are remembered to be in the store.
const MAX_KNOWN: usize = 10_000;

/// Reads workspaces and asks models.
#[derive(Debug)]
pub struct AgentRuntime {
    pub(super) workspaces: Loader,
    pub(super) models: Models,
    /// The model of agents that name none, in sessions that name none.
    default_model: Option<String>,
    known: Mutex<HashSet<(TenantId, ContentHash)>>,
}

impl AgentRuntime {
    #[must_use]
    pub fn new(workspaces: Loader, models: Models, default_model: Option<String>) -> Self {
        Self { workspaces, models, default_model, known: Mutex::default() }
    }

    /// The model of a run that begins: the session's, its agent's, the installation's, or the only one there is.
    pub(super) fn choose_model(
        &self,
        definitions: &Definitions,
        agent: &AgentDefinition,
        grant: &Grant,
    ) -> Result<(String, ModelParameters)> {
        let wanted = agent.model.as_ref();
        let own = agent.parameters.or(wanted.map(|model| model.parameters).unwrap_or_default());
        let named = grant.model.as_ref().or(wanted.map(|model| &model.reference));
        if let Some(name) = named.or(self.default_model.as_ref()) {
            return Ok(match definitions.settings.models.get(name) {
                Some(alias) => (alias.reference.clone(), own.or(alias.parameters)),
                None => (name.clone(), own),
            });
        }
        let mut models = definitions.models.keys();
        match (models.next(), models.next()) {
            (Some(only), None) => Ok((only.to_string(), own)),
            (none_or_many, _) => {
                let message = match none_or_many {
                    None => {
                        "there is no model: define one in .openharness/models/*.yaml or in platform.models_dir"
                    }
                    Some(_) => {
                        "nothing says which model to use: name one in the agent, or set platform.default_model"
                    }
                };
                Err(Error::new(Code::MissingModel, message).at("model"))
            }
        }
    }

    /// Those of the contents that may not be in the store yet.
    pub(super) fn unknown<'a>(
        &self,
        tenant: TenantId,
        contents: impl IntoIterator<Item = &'a Content>,
    ) -> Vec<Content> {
        let known = self.lock();
        let unknown = contents.into_iter().filter(|content| !known.contains(&(tenant, content.hash)));
        unknown.cloned().collect()
    }

    /// Remembers that these are in the store.
    pub(super) fn remember(&self, tenant: TenantId, hashes: impl IntoIterator<Item = ContentHash>) {
        let mut known = self.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.extend(hashes.into_iter().map(|hash| (tenant, hash)));
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<(TenantId, ContentHash)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
