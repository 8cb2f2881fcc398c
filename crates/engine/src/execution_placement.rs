//! Decides where a run executes, by the operator's execution policies.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use remuda_domain::{
    Error, TenantId,
    error::Result,
    execution::{ExecutionChoice, ExecutionPolicy, Policies},
};
use remuda_sandbox::{LazySandbox, SandboxRequest};
use remuda_store::{Grant, Store};
use tokio::time::timeout;

use crate::Engine;

/// How long a backend may take to check a sandbox request.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of cached tenant names.
const MAX_TENANT_NAMES: usize = 10_000;

/// The execution policies, and a cache of tenant names. Policies name tenants; runs carry tenant ids.
#[derive(Debug, Default)]
pub struct Placement {
    policies: Arc<Policies>,
    tenant_names: Mutex<HashMap<TenantId, Arc<str>>>,
}

impl Placement {
    #[must_use]
    pub fn new(policies: Arc<Policies>) -> Self {
        Self { policies, tenant_names: Mutex::default() }
    }

    /// Repeats the decision that the control plane made when the session was created: policies change, and they are
    /// enforced here.
    async fn decide(
        &self,
        store: &dyn Store,
        tenant: TenantId,
        choice: &ExecutionChoice,
    ) -> Result<ExecutionPolicy> {
        if self.policies.tenants.is_empty() {
            return self.policies.default.decide(choice);
        }
        let name = self.tenant_name(store, tenant).await?;
        self.policies.of(&name).decide(choice)
    }

    pub(crate) async fn tenant_name(&self, store: &dyn Store, tenant: TenantId) -> Result<Arc<str>> {
        let tenant_names = || self.tenant_names.lock();
        if let Some(name) = tenant_names().get(&tenant) {
            return Ok(Arc::clone(name));
        }
        let name: Arc<str> = store.get_tenant(tenant).await?.name.into();
        let mut tenant_names = tenant_names();
        if tenant_names.len() >= MAX_TENANT_NAMES {
            tenant_names.clear();
        }
        tenant_names.insert(tenant, Arc::clone(&name));
        Ok(name)
    }
}

impl Engine {
    /// The sandbox of a run, acquired at its first use. Fails if the run has nowhere to execute. With `needed`, the
    /// backend checks the request before the first call.
    pub(crate) async fn sandbox_for(
        &self,
        grant: &Grant,
        choice: &ExecutionChoice,
        needed: bool,
    ) -> Result<Arc<LazySandbox>> {
        let fence = grant.fence;
        let policy = self.placement.decide(&*self.store, fence.tenant, choice).await?;
        // Fails for a session without a backend: its `tools` runs end, and its agents get no tools.
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
            let timed_out = |_| Error::unavailable("the execution backend does not answer");
            timeout(CHECK_TIMEOUT, backend.check(&request)).await.map_err(timed_out)??;
        }
        Ok(Arc::new(LazySandbox::new(Arc::clone(backend), request)))
    }
}
