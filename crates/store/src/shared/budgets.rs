//! What may be spent.

use async_trait::async_trait;
use remuda_domain::{
    Code, Error, Fence, RunId, StepId, TenantId,
    budget::{Amount, Limit},
    error::Result,
};

use super::store::SqlStore;
use crate::{BudgetChange, BudgetOf, Budgets, Reserved};

#[async_trait]
impl Budgets for SqlStore {
    async fn reserve(&self, _fence: Fence, _run: RunId, _step: StepId, _amount: Amount) -> Result<Reserved> {
        Err(Error::new(Code::Unimplemented, "reserve"))
    }

    async fn set_budget(&self, _tenant: TenantId, _of: BudgetOf, _limit: Limit) -> Result<BudgetChange> {
        Err(Error::new(Code::Unimplemented, "set_budget"))
    }
}
