//! What agents need besides tools, shared by all runs of a worker.

use std::collections::HashSet;

use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{
    TenantId,
    content::{Content, ContentHash},
    tool::ToolCatalog,
};
use remuda_models::Models;
use remuda_workspace::Loader;

use super::settings::AgentSettings;
use crate::{meters::Meters, operator_rules::OperatorRules};

/// Maximum number of cached content hashes.
const MAX_STORED_HASHES: usize = 10_000;

/// Workspace loader, model clients and settings.
#[derive(Debug)]
pub struct AgentRuntime {
    pub(super) workspaces: Loader,
    pub(super) models: Models,
    pub(crate) settings: AgentSettings,
    pub(crate) operator_rules: OperatorRules,
    stored_contents: Mutex<HashSet<(TenantId, ContentHash)>>,
    pub(crate) meters: Meters,
}

impl AgentRuntime {
    #[must_use]
    pub fn new(workspaces: Loader, models: Models, settings: AgentSettings) -> Self {
        let operator_rules = OperatorRules::new(&settings.permissions);
        let (stored_contents, meters) = (Mutex::default(), Meters::new());
        Self { workspaces, models, settings, operator_rules, stored_contents, meters }
    }

    /// All tools that agents may have, as the definitions of workspaces know them.
    pub(super) fn tools(&self) -> &ToolCatalog {
        self.workspaces.tools()
    }

    /// The model of agents that name none, in sessions that name none.
    pub(super) fn default_model(&self) -> Option<&str> {
        self.settings.default_model.as_deref()
    }

    /// The contents that may not be in the store yet.
    pub(super) fn not_stored<'a>(
        &self,
        tenant: TenantId,
        contents: impl IntoIterator<Item = &'a Content>,
    ) -> Vec<Content> {
        let stored_contents = self.lock();
        let not_stored =
            contents.into_iter().filter(|content| !stored_contents.contains(&(tenant, content.hash)));
        not_stored.cloned().collect()
    }

    /// Remembers that these contents are in the store.
    pub(super) fn mark_stored(&self, tenant: TenantId, hashes: impl IntoIterator<Item = ContentHash>) {
        let mut stored_contents = self.lock();
        if stored_contents.len() >= MAX_STORED_HASHES {
            stored_contents.clear();
        }
        stored_contents.extend(hashes.into_iter().map(|hash| (tenant, hash)));
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<(TenantId, ContentHash)>> {
        self.stored_contents.lock()
    }
}
