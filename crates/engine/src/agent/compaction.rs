//! Compaction: fits the transcript into the model's context window, and summarizes what does not fit.

use remuda_domain::{
    Code, EventBody, MessageId, StepId,
    budget::Micros,
    error::{Error, Result},
    message::{Part, Role},
    model::{FinishReason, ModelDefinition, ModelParameters},
    run::Failure,
    step::{ModelOutcome, Purpose},
    tool::CallStatus,
};
use remuda_models::Response;
use remuda_store::{NewMessage, ParkRequest};

use super::{
    AgentRun,
    context::{self, Cut, FittedMessages, SummaryRequest, TokenEstimator, tokens::TokenCalibration},
    model_call::{ModelCall, ModelCallIds},
    repeated_calls::RepeatedCalls,
    transcript::{self, TranscriptMessage},
};
use crate::journal::Entry;

/// How far the context of a run was compacted.
#[derive(Debug, Default)]
pub(super) struct CompactionState {
    /// The last message whose tool results are cleared.
    pub(super) cleared: Option<MessageId>,
    /// Token calibration from the last response, and the model it is for.
    pub(super) calibration: Option<(remuda_domain::model::ModelRef, TokenCalibration)>,
    /// Consecutive failed summaries.
    pub(super) failures: u32,
    /// The provider rejected the request as too long, whatever the estimate was.
    pub(super) forced: bool,
    /// The request was already shortened once for that reason.
    pub(super) retried: bool,
}

/// Result of fitting the context.
pub(super) enum FitOutcome {
    Fitted(FittedMessages),
    /// The run has to wait before a summary can be made.
    Park(ParkRequest),
    /// There was a reason to stop.
    Stopped,
}

impl AgentRun<'_> {
    pub(super) fn estimator(&self) -> TokenEstimator {
        let active = &self.active;
        let calibration =
            self.compaction.calibration.as_ref().filter(|(model, _)| *model == active.model.reference);
        let settings = &self.ctx.engine.agents.settings.context;
        TokenEstimator::new(
            &active.model,
            &active.parameters,
            settings,
            active.fixed,
            calibration.map(|(_, calibration)| *calibration),
        )
        .with_tools(self.ctx.engine.agents.tools())
    }

    /// The messages to send: the whole transcript, or what fits into the window.
    pub(super) async fn fit_context(&mut self) -> Result<FitOutcome> {
        loop {
            let estimator = self.estimator();
            let repaired = transcript::repair(&self.transcript, &self.repair_steps);
            let fitted = context::fit(repaired, self.compaction.cleared, &estimator, self.compaction.forced);
            self.compaction.cleared = fitted.cleared;
            let Some(cut) = &fitted.cut else { return Ok(FitOutcome::Fitted(fitted)) };
            // A message that is not stored yet cannot be the end of a summary.
            if self.pending_messages.iter().any(|message| message.id == cut.through) {
                return Ok(FitOutcome::Fitted(fitted));
            }
            let fits = estimator.expected_tokens(&fitted.outgoing)
                <= estimator.window.capacity.saturating_sub(estimator.window.reserve);
            let summarize = self.setup.definitions().settings.context.summarize.unwrap_or(true);
            let max_failures = self.ctx.engine.agents.settings.context.max_failures;
            let gives_up = !summarize || self.compaction.failures >= max_failures;
            if gives_up && fits && !self.compaction.forced {
                return Ok(FitOutcome::Fitted(fitted));
            }
            let before = estimator.expected_tokens(&fitted.outgoing);
            let summary =
                if gives_up { SummaryOutcome::Failed } else { self.request_summary(cut, &estimator).await? };
            let text = match summary {
                SummaryOutcome::Done(text) => {
                    self.compaction.failures = 0;
                    text
                }
                SummaryOutcome::Park(park) => return Ok(FitOutcome::Park(park)),
                SummaryOutcome::Stopped => return Ok(FitOutcome::Stopped),
                SummaryOutcome::Failed => {
                    self.compaction.failures += u32::from(!gives_up);
                    if fits && !self.compaction.forced {
                        return Ok(FitOutcome::Fitted(fitted));
                    }
                    context::fallback(cut)
                }
            };
            self.apply_summary(&text, cut, before).await?;
        }
    }

    /// Whether a request that the provider rejected as too long can be shortened, and was not shortened for that
    /// before.
    pub(super) fn can_be_shortened(&self) -> bool {
        let repaired = transcript::repair(&self.transcript, &self.repair_steps);
        let fitted = context::fit(repaired, self.compaction.cleared, &self.estimator(), true);
        let mut outgoing = fitted.outgoing;
        !self.compaction.retried
            && (fitted.cut.is_some()
                || fitted.cleared != self.compaction.cleared
                || context::truncate_results(&mut outgoing, &self.estimator(), true))
    }

    /// The model that summarizes: the workspace's choice, or the active agent's model.
    fn summarizer(&self) -> Summarizer {
        let definitions = self.setup.definitions();
        let chosen = definitions.settings.context.model.as_deref().map(|name| definitions.named_model(name));
        let chosen = chosen.and_then(|choice| {
            let choice = choice.ok()?;
            let model = self.setup.model(&choice.model.reference).ok()?.clone();
            Some(Summarizer { parameters: choice.parameters.or(model.parameters), model })
        });
        chosen.unwrap_or_else(|| Summarizer {
            model: self.active.model.clone(),
            parameters: self.active.parameters,
        })
    }

    async fn request_summary(&mut self, cut: &Cut, estimator: &TokenEstimator) -> Result<SummaryOutcome> {
        let Summarizer { model, parameters } = self.summarizer();
        let own_estimator = (model.reference != self.active.model.reference).then(|| {
            let settings = &self.ctx.engine.agents.settings.context;
            TokenEstimator::new(&model, &parameters, settings, 0, None)
        });
        let request = context::summary_request(cut, own_estimator.as_ref().unwrap_or(estimator));
        let (input_tokens, output_limit) = (request_tokens(&request), u64::from(request.max_tokens));
        let ids =
            ModelCallIds { step: StepId::new(), message: MessageId::new(), index: self.next_step_index() };
        if let Some(park) = self.reserve(ids.step, &model, input_tokens, output_limit).await? {
            return Ok(SummaryOutcome::Park(park));
        }
        if self.failure.is_some() {
            return Ok(SummaryOutcome::Stopped);
        }
        let mut model_call = self.new_model_call(ids, transcript::sent_messages(&cut.to_summarize), false);
        model_call.request.purpose = Purpose::Summary;
        model_call.request.model = model.reference.clone();
        model_call.request.provider = Some(model.provider);
        model_call.request.model_name.clone_from(&model.name);
        model_call.request.parameters = parameters;
        let contents = vec![remuda_domain::content::Content::new(request.system.clone())];
        model_call.request.system = contents[0].hash;
        let steps = vec![self.to_step(&model_call, None)];
        self.ctx.journal.commit(Entry { steps, contents, ..Entry::default() }).await?;
        let model_request = request.to_request(&parameters, self.ctx.trace.passed_on(ids.step));
        let engine = self.ctx.engine;
        let call = engine.agents.models.generate(&model, &model_request, &|_| {});
        let call = engine.agents.meters.model_call(self.ctx.grant.fence.tenant, &model, call);
        match self.ctx.unless_killed(call).await {
            None => Ok(SummaryOutcome::Stopped),
            Some(Ok(response)) if !response.text.trim().is_empty() => {
                self.add_spent(&model_call, &model, &response, input_tokens);
                let cost = model.price.map(|price| price.of(&response.usage));
                let text = response.text.clone();
                self.finish_summary_call(&model_call, &response, cost);
                Ok(SummaryOutcome::Done(text))
            }
            Some(result) => {
                let error = result.err().unwrap_or_else(|| {
                    Error::new(Code::ModelAnswerInvalid, "the model answered with nothing")
                });
                tracing::warn!(run = %self.ctx.grant.run.id, error = error.chain(), "summary request failed");
                let failure = Failure::new(error.code(), error.to_string());
                let outcome = ModelOutcome::without_answer(CallStatus::Failed, Some(failure));
                self.finish_model_call(&model_call, outcome);
                Ok(SummaryOutcome::Failed)
            }
        }
    }

    fn finish_summary_call(&mut self, model_call: &ModelCall, response: &Response, cost: Option<Micros>) {
        let outcome = ModelOutcome {
            parts: vec![Part::text(response.text.clone())],
            finish: Some(FinishReason::Stop),
            usage: response.usage,
            cost,
            attempts: response.attempts,
            duration_ms: model_call.duration_ms(),
            response_id: response.id.clone(),
            ..ModelOutcome::without_answer(CallStatus::Completed, None)
        };
        self.finish_model_call(model_call, outcome);
    }

    /// Replaces the summarized messages by their summary. The stored transcript keeps both.
    async fn apply_summary(&mut self, text: &str, cut: &Cut, before: u64) -> Result<()> {
        let message = NewMessage {
            id: MessageId::new(),
            role: Role::System,
            agent: Some(self.active.agent.name.clone()),
            parts: context::summary_message(text, cut),
        };
        self.transcript.push(TranscriptMessage::new(&message, self.ctx.grant.run.id));
        self.transcript = context::view(std::mem::take(&mut self.transcript));
        let after =
            self.estimator().expected_tokens(&transcript::repair(&self.transcript, &self.repair_steps));
        // Tool results have to follow their calls. Reports of children belong to the next model call.
        let notices: Vec<NewMessage> =
            self.pending_messages.extract_if(.., |it| self.notices.contains(&it.id)).collect();
        self.pending_messages.push(message.clone());
        let messages = self.take_pending_messages();
        self.pending_messages = notices;
        self.ctx.journal.add_event(EventBody::ContextCompacted {
            message: message.id,
            through: cut.through,
            tokens_before: before,
            tokens_after: after,
        });
        self.compaction.forced = false;
        // The agent cannot see the results of its calls any more, so it may repeat them.
        self.repeated_calls = RepeatedCalls::default();
        let entry = Entry {
            steps: std::mem::take(&mut self.pending_steps),
            messages,
            spent: std::mem::take(&mut self.spent),
            ..Entry::default()
        };
        self.ctx.journal.commit(entry).await
    }
}

/// The model that summarizes, and its parameters.
struct Summarizer {
    model: ModelDefinition,
    parameters: ModelParameters,
}

enum SummaryOutcome {
    Done(String),
    /// The model call failed.
    Failed,
    Park(ParkRequest),
    Stopped,
}

/// Estimated tokens of a summary request.
fn request_tokens(request: &SummaryRequest) -> u64 {
    let messages: u64 = request.messages.iter().map(context::tokens::message).sum();
    context::tokens::text(&request.system) + messages
}
