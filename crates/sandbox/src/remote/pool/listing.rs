//! Lists instances and what they share, as the engine reports them.

use std::collections::HashMap;

use remuda_domain::{SandboxId, SessionId, error::Result, execution::Holder};

use super::Pool;
use crate::{
    remote::{
        labels,
        provisioner::{FoundResource, ListFilter},
    },
    traits::{EngineResource, EngineResourceKind},
};

impl Pool {
    /// Lists the instances of this installation: all, or those of one backend or session.
    pub(in crate::remote) async fn find(
        &self,
        backend: Option<&str>,
        session: Option<SessionId>,
    ) -> Result<Vec<EngineResource>> {
        let filter = ListFilter { installation: &self.options.installation, backend, session };
        let found = self.context.provisioner.list(&filter).await?;
        let holders = self.holders();
        let read = |found: &FoundResource| {
            let mut existing = self.existing(EngineResourceKind::Container, found)?;
            // For its own instances, the backend's state is newer than what the engine reports.
            existing.holder = holders.get(&existing.sandbox).copied().or(existing.holder);
            Some(existing)
        };
        Ok(found.iter().filter_map(read).collect())
    }

    /// Lists what instances of this installation share.
    pub(in crate::remote) async fn find_shared(&self) -> Result<Vec<EngineResource>> {
        let installation = &self.options.installation;
        let filter = ListFilter { installation, backend: None, session: None };
        let found = self.context.provisioner.list_shared(&filter).await?;
        Ok(found.iter().filter_map(|found| self.existing(EngineResourceKind::Volume, found)).collect())
    }

    fn existing(&self, kind: EngineResourceKind, found: &FoundResource) -> Option<EngineResource> {
        let mut existing = labels::existing(&self.options.installation, kind, found)?;
        existing.ours = self.is_ours(&found.labels, existing.sandbox);
        Some(existing)
    }

    fn holders(&self) -> HashMap<SandboxId, Holder> {
        let state = self.lock();
        let holders = state.sessions.iter().filter_map(|(&(tenant, session), entry)| {
            let instance = entry.get()?;
            Some((instance.sandbox, Holder { tenant, session, epoch: instance.epoch() }))
        });
        holders.collect()
    }

    /// Whether this backend created it, even if it no longer knows it: the backend cleans up after itself.
    fn is_ours(&self, labels: &HashMap<String, String>, sandbox: SandboxId) -> bool {
        labels.get(labels::BACKEND).is_some_and(|backend| *backend == self.backend)
            || self.limit.contains(sandbox)
    }
}
