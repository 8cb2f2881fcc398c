//! Setting spending limits.

use remuda_domain::{RunId, budget::Limit, error::Result, identity::Principal};
use remuda_store::{BudgetChange, BudgetTarget};

use super::App;

/// The run or session whose budget is set.
#[derive(Clone, Debug)]
pub enum BudgetRef {
    Run(RunId),
    /// Id or name.
    Session(String),
}

impl App {
    /// Sets the total limit and resumes runs that waited for more budget.
    pub async fn set_budget(
        &self,
        caller: &Principal,
        target: BudgetRef,
        limit: Limit,
    ) -> Result<BudgetChange> {
        limit.check("limit")?;
        let target = match target {
            BudgetRef::Run(run) => BudgetTarget::Run(run),
            BudgetRef::Session(session) => BudgetTarget::Session(self.session_id(caller, &session).await?),
        };
        let (app, tenant) = (self.clone(), caller.tenant);
        self.run_to_completion(async move {
            let change = app.store.set_budget(tenant, target, limit).await?;
            for change in &change.changes {
                app.announcer.announce_change(change.clone());
            }
            Ok(change)
        })
        .await
    }
}
