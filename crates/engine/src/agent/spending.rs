//! What questions may cost, and what they did.

use remuda_domain::{
    Code, StepId,
    budget::{Amount, Spent},
    error::Result,
    model::{ModelDefinition, ModelParameters, Usage},
    run::{Failure, ParkReason},
};
use remuda_models::Response;
use remuda_store::{Parking, Reserved};

use super::{
    AgentRun,
    asking::Question,
    context::{Gauge, tokens},
};
use crate::patiently;

impl AgentRun<'_> {
    /// Holds what a question may cost in the budgets that cover the run. Says what the run has to wait for if there is no room.
    pub(super) async fn reserve(
        &mut self,
        step: StepId,
        model: &ModelDefinition,
        input: u64,
        output: u64,
    ) -> Result<Option<Parking>> {
        let (grant, engine) = (self.stand.grant, self.stand.engine);
        let Some(budgeted) = self.stand.journal.budgeted() else { return Ok(None) };
        if budgeted.money && model.price.is_none() {
            let message = format!("{} has no price, and the run has a budget in money", model.reference);
            self.failure = Some(Failure::new(Code::ModelUnpriced, message));
            return Ok(None);
        }
        // What is not counted yet would be spent twice.
        self.save_spent().await?;
        let usage = Usage { input_tokens: input, output_tokens: output, ..Usage::default() };
        let micros = model.price.map_or(0, |price| price.of(&usage));
        let amount = Amount { tokens: input.saturating_add(output), micros };
        let reserve = || engine.store.reserve(grant.fence, grant.run.id, step, amount);
        match patiently(&self.stand.control.abandon, reserve).await? {
            Reserved::Held => Ok(None),
            Reserved::Refused(budget) => {
                tracing::info!(run = %grant.run.id, ?budget, ?amount, "the run waits for its budget");
                Ok(Some(Parking { amount: Some(amount), ..Parking::on(ParkReason::Budget) }))
            }
        }
    }

    /// Commits what questions did cost, and their steps.
    async fn save_spent(&mut self) -> Result<()> {
        if self.spent.is_empty() {
            return Ok(());
        }
        let entry = self.take_unsaved();
        self.stand.journal.commit(entry).await
    }

    /// How the acting agent's model is asked. Where something limits the run, an answer may be no longer than what is held for it.
    pub(super) fn parameters(&self, gauge: &Gauge) -> ModelParameters {
        let mut parameters = self.scene.parameters;
        if self.stand.journal.budgeted().is_some() && parameters.max_tokens.is_none() {
            parameters.max_tokens = u32::try_from(gauge.room.reserve).ok();
        }
        parameters
    }

    /// Notes what a question did cost, for the next commit. A provider that does not count is no reason to spend without end:
    /// then the estimate counts.
    pub(super) fn note_spent(
        &mut self,
        question: &Question,
        model: &ModelDefinition,
        response: &Response,
        asked: u64,
    ) {
        let mut usage = response.usage;
        if usage == Usage::default() {
            let calls = response.tool_requests.iter().map(|request| {
                let arguments =
                    request.arguments.as_ref().map_or(0, |it| it.values().map(tokens::json).sum());
                tokens::text(&request.name) + arguments
            });
            let output_tokens = tokens::text(&response.text) + calls.sum::<u64>();
            usage = Usage { input_tokens: asked, output_tokens, ..usage };
        }
        let micros = model.price.map_or(0, |price| price.of(&usage));
        self.spent.push(Spent { step: question.step(), usage, micros });
    }
}
