//! Execution policies and sandboxes.

use std::collections::HashSet;

use remuda_domain::{
    WorkerId,
    error::Result,
    execution::{ExecutionChoice, SandboxRecord},
    identity::Principal,
};

use super::App;

const MAX_SANDBOXES: u32 = 1000;

impl App {
    /// Refuses a choice that the caller's tenant may not make. Workers check again at execution, since policies change.
    pub(super) async fn check_execution(&self, caller: &Principal, choice: &ExecutionChoice) -> Result<()> {
        let tenant = self.store.get_tenant(caller.tenant).await?;
        self.policies.of(&tenant.name).decide(choice).map(drop)
    }

    /// All known sandboxes, newest first, and whether their workers are alive.
    pub async fn list_sandboxes(&self) -> Result<Vec<(SandboxRecord, bool)>> {
        let records = self.store.list_sandboxes(MAX_SANDBOXES).await?;
        let workers = self.store.list_workers(false).await?;
        let alive: HashSet<WorkerId> = workers.into_iter().map(|worker| worker.registration.id).collect();
        Ok(records.into_iter().map(|record| (record.clone(), alive.contains(&record.worker))).collect())
    }
}
