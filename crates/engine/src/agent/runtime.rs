//! What agents need besides tools, for all runs of a worker.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use remuda_domain::{
    TenantId,
    content::{Content, ContentHash},
};
use remuda_models::Models;
use remuda_workspace::Loader;

use super::settings::AgentSettings;
use crate::meters::Meters;

/// Texts that are remembered to be in the store.
const MAX_KNOWN: usize = 10_000;

/// Reads workspaces and asks models.
#[derive(Debug)]
pub struct AgentRuntime {
    pub(super) workspaces: Loader,
    pub(super) models: Models,
    pub(super) settings: AgentSettings,
    known: Mutex<HashSet<(TenantId, ContentHash)>>,
    pub(crate) meters: Meters,
}

impl AgentRuntime {
    #[must_use]
    pub fn new(workspaces: Loader, models: Models, settings: AgentSettings) -> Self {
        Self { workspaces, models, settings, known: Mutex::default(), meters: Meters::new() }
    }

    /// The model of agents that name none, in sessions that name none.
    pub(super) fn default_model(&self) -> Option<&str> {
        self.settings.default_model.as_deref()
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
