//! Budgets: limits on tokens and money, and reservations against them.

use async_trait::async_trait;
use remuda_domain::{
    Fence, RunId, SessionId, StepId, TenantId,
    budget::{Amount, Budget, Limit},
    error::Result,
};

use crate::SessionChange;

/// Reserves amounts and changes limits.
#[async_trait]
pub trait Budgets {
    /// Reserves an amount for a model call before the call is made, in every budget that covers the run. A run makes
    /// one model call at a time: the reservation replaces the run's previous one, and a refusal leaves the run without
    /// any. The reservation ends when a commit reports what the step [spent](crate::Commit::spent), or when the run
    /// ends. Fails with `ownership_lost` if the fence is outdated.
    async fn reserve(&self, fence: Fence, run: RunId, step: StepId, amount: Amount) -> Result<Reserved>;
    /// Sets a limit: changes the budget of the target or creates one, and resumes parked runs that now have room. A new
    /// budget starts with what the target and its descendants have spent so far. Fails with `run_not_found` or
    /// `session_not_found`, and with `not_parked` for a run that has ended.
    async fn set_budget(&self, tenant: TenantId, target: BudgetTarget, limit: Limit) -> Result<BudgetChange>;
}

/// Whether an amount was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// Reserved, or no budget covers the run.
    Held,
    /// This budget has no room for the amount.
    Refused(Budget),
}

/// The run or session that a budget belongs to. It also covers everything below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetTarget {
    Run(RunId),
    Session(SessionId),
}

/// What setting a limit did.
#[derive(Clone, Debug)]
pub struct BudgetChange {
    pub budget: Budget,
    /// Parked runs that were resumed.
    pub resumed: Vec<RunId>,
    pub changes: Vec<SessionChange>,
}
