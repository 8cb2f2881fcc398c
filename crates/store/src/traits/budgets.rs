//! What may be spent.

use async_trait::async_trait;
use remuda_domain::{
    Fence, RunId, SessionId, StepId, TenantId,
    budget::{Amount, Budget, Limit},
    error::Result,
};

use crate::SessionChange;

/// What may be spent.
#[async_trait]
pub trait Budgets {
    /// Holds an amount for a question before it is asked, in every budget that covers the run. A run has one question at a time:
    /// the amount replaces what the run held before, and a refusal leaves it with nothing. It is given back with what the step
    /// [spent](Commit::spent), or with the run's end.
    async fn reserve(&self, fence: Fence, run: RunId, step: StepId, amount: Amount) -> Result<Reserved>;
    /// Changes a limit, or makes one, and lets runs go on that wait for it and now have room. Fails with `run_not_found` or
    /// `session_not_found`, and with `not_parked` for a run that is over.
    async fn set_budget(&self, tenant: TenantId, of: BudgetOf, limit: Limit) -> Result<BudgetChange>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// Also when no budget covers the run.
    Held,
    /// There is no room for it in this one.
    Refused(Budget),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetOf {
    Run(RunId),
    Session(SessionId),
}

#[derive(Clone, Debug)]
pub struct BudgetChange {
    pub budget: Budget,
    /// Runs that go on.
    pub resumed: Vec<RunId>,
    pub changes: Vec<SessionChange>,
}
