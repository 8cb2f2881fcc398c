//! Where a run executes.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use remuda_domain::{
    Error, TenantId,
    error::Result,
    execution::{ExecutionChoice, ExecutionPolicy, Policies},
};
use remuda_sandbox::{LazySandbox, SandboxRequest};
use remuda_store::{Grant, Store};
use tokio::time::timeout;

use crate::Engine;

/// How long an engine may take to say whether it could.
const CHECK_PATIENCE: Duration = Duration::from_secs(30);
/// Tenants whose names are remembered at most.
const MAX_NAMES: usize = 10_000;

/// The operator's rules, and who they are about. Rules name tenants; runs carry their ids.
#[derive(Debug, Default)]
pub struct Placement {
    policies: Arc<Policies>,
    names: Mutex<HashMap<TenantId, Arc<str>>>,
}

impl Placement {
    #[must_use]
    pub fn new(policies: Arc<Policies>) -> Self {
        Self { policies, names: Mutex::default() }
    }

    /// Decides again what the control plane decided when the session was made: rules change, and this is where they hold.
    async fn decide(
        &self,
        store: &dyn Store,
        tenant: TenantId,
        choice: &ExecutionChoice,
    ) -> Result<ExecutionPolicy> {
        if self.policies.tenants.is_empty() {
            return self.policies.default.decide(choice);
        }
        let name = self.name(store, tenant).await?;
        self.policies.of(&name).decide(choice)
    }

    pub(crate) async fn name(&self, store: &dyn Store, tenant: TenantId) -> Result<Arc<str>> {
        let names = || self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = names().get(&tenant) {
            return Ok(Arc::clone(name));
        }
        let name: Arc<str> = store.get_tenant(tenant).await?.name.into();
        let mut names = names();
        if names.len() >= MAX_NAMES {
            names.clear();
        }
        names.insert(tenant, Arc::clone(&name));
        Ok(name)
    }
}

impl Engine {
    /// The sandbox of a run, acquired at its first use. Fails when the run could execute nowhere: before its first call, if
    /// any call will need it.
    pub(crate) async fn place(
        &self,
        grant: &Grant,
        choice: &ExecutionChoice,
        needed: bool,
    ) -> Result<Arc<LazySandbox>> {
        let fence = grant.fence;
        let policy = self.placement.decide(&*self.store, fence.tenant, choice).await?;
        // A session that only talks has no backend, and that is where every run of it ends.
        let backend = self.backends.get(policy.backend)?;
        let request = SandboxRequest {
            tenant: fence.tenant,
            session: fence.session,
            epoch: fence.epoch,
            worker: fence.worker,
            workspace_root: grant.workspace_root.clone().into(),
            policy,
        };
        if needed {
            let slow = |_| Error::unavailable("the execution backend does not answer");
            timeout(CHECK_PATIENCE, backend.check(&request)).await.map_err(slow)??;
        }
        Ok(Arc::new(LazySandbox::new(Arc::clone(backend), request)))
    }
}
