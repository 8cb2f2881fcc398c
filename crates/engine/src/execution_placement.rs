//! Decides where a run executes, by the operator's execution policies.

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use remuda_dispatch::retry_until_abandoned;
use remuda_domain::{
    Error, TenantId,
    error::Result,
    execution::{ExecutionChoice, ExecutionPolicy, Policies},
};
use remuda_roots::WorkspaceRoots;
use remuda_sandbox::{LazySandbox, SandboxRequest};
use remuda_store::{Grant, Store};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::Engine;

/// How long a backend may take to check a sandbox request.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of cached tenant names.
const MAX_TENANT_NAMES: usize = 10_000;

/// Where runs execute: the execution policies, the allowed workspace directories, and a cache of tenant names. Policies
/// name tenants; runs carry tenant ids.
#[derive(Debug)]
pub struct Placement {
    policies: Arc<Policies>,
    workspace_roots: Arc<WorkspaceRoots>,
    tenant_names: Mutex<HashMap<TenantId, Arc<str>>>,
}

impl Placement {
    #[must_use]
    pub fn new(policies: Arc<Policies>, workspace_roots: WorkspaceRoots) -> Self {
        Self { policies, workspace_roots: Arc::new(workspace_roots), tenant_names: Mutex::default() }
    }

    /// The real path of a run's workspace, if the operator allows it: links, registrations and settings change.
    pub(crate) async fn workspace(&self, tenant: Arc<str>, grant: &Grant) -> Result<PathBuf> {
        let (roots, root) = (Arc::clone(&self.workspace_roots), PathBuf::from(&grant.workspace_root));
        let admitted = tokio::task::spawn_blocking(move || roots.admit(&tenant, &root)).await;
        let admitted = admitted.map_err(|error| Error::internal("a check failed").with_source(error))?;
        admitted.map_err(|refusal| {
            let session = grant.fence.session;
            tracing::warn!(%session, path = %refusal.path.display(), why = refusal.why(), "workspace refused");
            refusal.for_tenant()
        })
    }

    /// Repeats the decision that the control plane made when the session was created: policies change, and they are
    /// enforced here.
    fn decide(&self, tenant: &str, choice: &ExecutionChoice) -> Result<ExecutionPolicy> {
        self.policies.of(tenant).decide(choice)
    }

    async fn tenant_name(&self, store: &dyn Store, tenant: TenantId) -> Result<Arc<str>> {
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
    /// The name of a run's tenant.
    pub(crate) async fn tenant_name(&self, grant: &Grant, abandon: &CancellationToken) -> Result<Arc<str>> {
        let tenant = grant.fence.tenant;
        retry_until_abandoned(abandon, || self.placement.tenant_name(&*self.store, tenant)).await
    }

    /// The sandbox of a run, acquired at its first use. Fails if the run has nowhere to execute. With `needed`, the
    /// workspace and the backend are checked before the first call.
    pub(crate) async fn sandbox_for(
        &self,
        grant: &Grant,
        tenant: &Arc<str>,
        choice: &ExecutionChoice,
        needed: bool,
    ) -> Result<Arc<LazySandbox>> {
        let fence = grant.fence;
        let policy = self.placement.decide(tenant, choice)?;
        // Fails for a session without a backend: its `tools` runs end, and its agents get no tools.
        let backend = self.backends.get(policy.backend)?;
        let workspace_root = match needed {
            true => self.placement.workspace(Arc::clone(tenant), grant).await?,
            // No call of the run opens it.
            false => PathBuf::from(&grant.workspace_root),
        };
        let request = SandboxRequest {
            tenant: fence.tenant,
            session: fence.session,
            epoch: fence.epoch,
            worker: fence.worker,
            workspace_root,
            policy,
        };
        if needed {
            let timed_out = |_| Error::unavailable("the execution backend does not answer");
            timeout(CHECK_TIMEOUT, backend.check(&request)).await.map_err(timed_out)??;
        }
        Ok(Arc::new(LazySandbox::new(Arc::clone(backend), request)))
    }
}
