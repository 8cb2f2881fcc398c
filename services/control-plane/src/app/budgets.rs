//! How much may be spent.

use remuda_domain::{RunId, budget::Limit, error::Result, identity::Principal};
use remuda_store::{BudgetChange, BudgetOf};

use super::App;

/// What a caller sets a budget of.
#[derive(Clone, Debug)]
pub enum Spender {
    Run(RunId),
    /// Id or name.
    Session(String),
}

impl App {
    /// Sets the limit, in all, and lets runs go on that waited for more.
    pub async fn set_budget(&self, caller: &Principal, of: Spender, limit: Limit) -> Result<BudgetChange> {
        limit.check("limit")?;
        let of = match of {
            Spender::Run(run) => BudgetOf::Run(run),
            Spender::Session(session) => BudgetOf::Session(self.session_id(caller, &session).await?),
        };
        let (app, tenant) = (self.clone(), caller.tenant);
        self.to_the_end(async move {
            let change = app.store.set_budget(tenant, of, limit).await?;
            for change in &change.changes {
                app.waker.announce_change(change.clone());
            }
            Ok(change)
        })
        .await
    }
}
