//! Budget reservations and costs of model calls.

use remuda_domain::{
    Code, StepId,
    budget::{Amount, Spent},
    error::Result,
    model::{ModelDefinition, ModelParameters, Usage},
    run::{Failure, ParkReason},
};
use remuda_models::Response;
use remuda_store::{ParkRequest, Reserved};

use super::{
    AgentRun,
    context::{TokenEstimator, tokens},
    model_call::ModelCall,
};
use remuda_dispatch::retry_until_abandoned;

impl AgentRun<'_> {
    /// Reserves the estimated cost of a model call in the budgets that cover the run. Returns what the run has to
    /// wait for if a budget is exhausted.
    pub(super) async fn reserve(
        &mut self,
        step: StepId,
        model: &ModelDefinition,
        input: u64,
        output: u64,
    ) -> Result<Option<ParkRequest>> {
        let (grant, engine) = (self.ctx.grant, self.ctx.engine);
        let Some(budgeted) = self.ctx.journal.budgeted() else { return Ok(None) };
        if budgeted.money && model.price.is_none() {
            let message = format!("{} has no price, and the run has a budget in money", model.reference);
            self.failure = Some(Failure::new(Code::ModelUnpriced, message));
            return Ok(None);
        }
        // Uncommitted costs are missing from the budget and would be spent twice.
        self.commit_spent().await?;
        let usage = Usage { input_tokens: input, output_tokens: output, ..Usage::default() };
        let micros = model.price.map_or(0, |price| price.of(&usage));
        let amount = Amount { tokens: input.saturating_add(output), micros };
        let reserve = || engine.store.reserve(grant.fence, grant.run.id, step, amount);
        match retry_until_abandoned(&self.ctx.control.abandon, reserve).await? {
            Reserved::Held => Ok(None),
            Reserved::Refused(budget) => {
                tracing::info!(run = %grant.run.id, ?budget, ?amount, "budget exhausted; run waits");
                Ok(Some(ParkRequest { amount: Some(amount), ..ParkRequest::on(ParkReason::Budget) }))
            }
        }
    }

    /// Commits the costs of model calls, and their steps.
    async fn commit_spent(&mut self) -> Result<()> {
        if self.spent.is_empty() {
            return Ok(());
        }
        let entry = self.take_unsaved_entry();
        self.ctx.journal.commit(entry).await
    }

    /// The parameters of the active agent's model. If a budget limits the run, the response may be no longer than the
    /// reservation.
    pub(super) fn parameters(&self, estimator: &TokenEstimator) -> ModelParameters {
        let mut parameters = self.active.parameters;
        if self.ctx.journal.budgeted().is_some() && parameters.max_tokens.is_none() {
            parameters.max_tokens = u32::try_from(estimator.window.reserve).ok();
        }
        parameters
    }

    /// Records the cost of a model call, for the next commit. If the provider reports no usage, the estimate is
    /// charged, so that the budget still limits the run.
    pub(super) fn add_spent(
        &mut self,
        model_call: &ModelCall,
        model: &ModelDefinition,
        response: &Response,
        estimated_input: u64,
    ) {
        let mut usage = response.usage;
        if usage == Usage::default() {
            let calls = response.tool_requests.iter().map(|request| {
                let arguments =
                    request.arguments.as_ref().map_or(0, |it| it.values().map(tokens::json).sum());
                tokens::text(&request.name) + arguments
            });
            let output_tokens = tokens::text(&response.text) + calls.sum::<u64>();
            usage = Usage { input_tokens: estimated_input, output_tokens, ..usage };
        }
        let micros = model.price.map_or(0, |price| price.of(&usage));
        self.spent.push(Spent { step: model_call.step(), usage, micros });
    }
}
