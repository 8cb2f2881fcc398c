//! One model call: build the request, send it, and commit the response.

use std::{pin::pin, sync::Arc, time::Duration};

use remuda_domain::{
    Code, EventBody, MessageId, StepId, Timestamp,
    error::{Error, Result},
    message::{Part, Role},
    model::ModelParameters,
    run::Failure,
    step::{ModelOutcome, ModelRequest, Purpose, SentMessages, Step, StepWork, StopReason},
    tool::CallStatus,
};
use remuda_models::{Request, Response, ToolChoice};
use remuda_store::ParkRequest;
use tokio::time::Instant;

use super::{
    AgentRun,
    call_targets::TaskAgents,
    compaction::FitOutcome,
    context::{self, tokens::TokenCalibration},
    model_request,
    response::{self, CallChecker, CallDecision, RequestedCall},
    response_stream::ResponseStream,
    transcript::{self, Outgoing},
};
use crate::{
    call_plan::PlannedCall,
    journal::{Entry, now},
    run_context::KillReason,
};

/// The ids of a model call: its step, its response message, and its index in the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelCallIds {
    pub(super) step: StepId,
    pub(super) message: MessageId,
    pub(super) index: u32,
}

/// A model call whose request was committed.
pub(super) struct ModelCall {
    step: StepId,
    index: u32,
    pub(super) request: Box<ModelRequest>,
    started_at: Timestamp,
    started: Instant,
    first_token_ms: Option<u64>,
}

impl ModelCall {
    pub(super) fn step(&self) -> StepId {
        self.step
    }

    pub(super) fn duration_ms(&self) -> u64 {
        millis(self.started.elapsed())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl AgentRun<'_> {
    /// Calls the model once. Returns what the run has to wait for, if it cannot.
    pub(super) async fn call_model(&mut self) -> Result<Option<ParkRequest>> {
        let concluding = self.steps_taken + 1 >= self.active.agent.policy.max_steps;
        let fitted = match self.fit_context().await? {
            FitOutcome::Fitted(fitted) => fitted,
            FitOutcome::Park(park) => return Ok(Some(park)),
            FitOutcome::Stopped => return Ok(None),
        };
        let (mut outgoing, estimator) = (fitted.outgoing, self.estimator());
        context::truncate_results(&mut outgoing, &estimator, self.compaction.forced);
        let outgoing = self.with_reminders(outgoing, concluding);
        let ids = self.unanswered.take().unwrap_or_else(|| ModelCallIds {
            step: StepId::new(),
            message: MessageId::new(),
            index: self.next_step_index(),
        });
        let estimate = estimator.estimate(&outgoing);
        let (model, expected_tokens) = (self.active.model.clone(), estimator.to_model_tokens(estimate));
        if let Some(park) = self.reserve(ids.step, &model, expected_tokens, estimator.window.reserve).await? {
            return Ok(Some(park));
        }
        if self.failure.is_some() {
            return Ok(None);
        }
        self.concluded = false;
        let parameters = self.parameters(&estimator);
        let mut model_call = self.commit_request(ids, &outgoing, parameters, concluding).await?;
        let stream = ResponseStream::new(self.ctx.grant.run.id, ids.message);
        let response = self.send(&model_call, &outgoing, parameters, concluding, &stream).await?;
        model_call.first_token_ms = stream.time_to_first_delta(model_call.started).map(millis);
        match response {
            Some(Ok(response)) => {
                let calibration = TokenCalibration::of(estimate, &response.usage);
                self.compaction.calibration =
                    calibration.map(|calibration| (model.reference.clone(), calibration));
                self.compaction.forced = false;
                self.compaction.retried = false;
                self.add_spent(&model_call, &model, &response, expected_tokens);
                self.handle_response(&model_call, response, concluding).await?;
            }
            Some(Err(error)) if error.code() == Code::ContextTooLong && self.can_be_shortened() => {
                tracing::info!(run = %self.ctx.grant.run.id, "provider rejected the request as too long; compacting");
                self.compaction.forced = true;
                self.compaction.retried = true;
                self.unanswered = Some(ids);
                self.reported = model_call.request.reported;
            }
            Some(Err(error)) => self.handle_failure(&model_call, &error, &stream),
            None => self.handle_interruption(&model_call, &stream),
        }
        Ok(None)
    }

    /// Adds reminders to the messages of the transcript.
    fn with_reminders(&self, mut outgoing: Vec<Outgoing>, concluding: bool) -> Vec<Outgoing> {
        // An agent that takes over within a run gets its reminder in the result of the switch.
        let starting_agent = self.transcript.iter().rev().find(|message| message.role == Role::User);
        let starting_agent = starting_agent.and_then(|message| message.agent.as_deref());
        if let Some(reminder) = &self.active.agent.system_reminder
            && starting_agent == Some(self.active.agent.name.as_str())
            && transcript::agent_changed(&self.transcript, &self.active.agent.name)
        {
            transcript::insert_reminder(&mut outgoing, reminder);
        }
        if self.last_response_empty {
            transcript::append_note(&mut outgoing, model_request::EMPTY_RESPONSE_REMINDER);
        }
        if concluding {
            transcript::append_note(&mut outgoing, model_request::CONCLUDE_REMINDER);
        }
        outgoing
    }

    pub(super) fn next_step_index(&mut self) -> u32 {
        let index = self.next_index;
        self.next_index += 1;
        index
    }

    /// A new model call of the active agent.
    pub(super) fn new_model_call(
        &self,
        ids: ModelCallIds,
        messages: Vec<SentMessages>,
        concluding: bool,
    ) -> ModelCall {
        let active = &self.active;
        let request = Box::new(ModelRequest {
            message: ids.message,
            agent: active.agent.name.clone(),
            definitions: self.setup.content.hash,
            model: active.model.reference.clone(),
            provider: Some(active.model.provider),
            model_name: active.model.name.clone(),
            parameters: active.parameters,
            system: active.system.hash,
            tools: active.specs_content.hash,
            messages,
            concluding,
            purpose: Purpose::Answer,
            reported: Vec::new(),
            cleared: self.compaction.cleared,
            retry: None,
        });
        ModelCall {
            step: ids.step,
            index: ids.index,
            request,
            started_at: now(),
            started: Instant::now(),
            first_token_ms: None,
        }
    }

    /// Commits the request, with the messages that are new to the transcript.
    async fn commit_request(
        &mut self,
        ids: ModelCallIds,
        outgoing: &[Outgoing],
        parameters: ModelParameters,
        concluding: bool,
    ) -> Result<ModelCall> {
        let mut model_call = self.new_model_call(ids, transcript::sent_messages(outgoing), concluding);
        model_call.request.parameters = parameters;
        model_call.request.reported = std::mem::take(&mut self.reported);
        let (active, message) = (&self.active, ids.message);
        let tenant = self.ctx.grant.fence.tenant;
        let agents = &self.ctx.engine.agents;
        let contents =
            agents.not_stored(tenant, [&self.setup.content, &active.system, &active.specs_content]);
        let hashes: Vec<_> = contents.iter().map(|content| content.hash).collect();
        let started = EventBody::ModelStarted {
            message,
            agent: active.agent.name.clone(),
            model: active.model.reference.clone(),
        };
        for event in std::mem::take(&mut self.next_call_events) {
            self.ctx.journal.add_event(event);
        }
        let messages = self.take_pending_messages();
        self.ctx.journal.add_event(started);
        let mut steps = std::mem::take(&mut self.pending_steps);
        steps.push(self.to_step(&model_call, None));
        let spent = std::mem::take(&mut self.spent);
        self.ctx.journal.commit(Entry { steps, messages, contents, spent, ..Entry::default() }).await?;
        agents.mark_stored(tenant, hashes);
        Ok(model_call)
    }

    pub(super) fn to_step(&self, model_call: &ModelCall, outcome: Option<ModelOutcome>) -> Step {
        let finished_at = outcome.is_some().then(now);
        let work =
            StepWork::ModelCall { request: model_call.request.clone(), outcome: outcome.map(Box::new) };
        Step {
            id: model_call.step,
            index: model_call.index,
            work,
            started_at: model_call.started_at,
            finished_at,
            epoch: self.ctx.grant.fence.epoch,
        }
    }

    /// Sends the request and publishes the response while it streams. Commits each failed attempt that the provider is
    /// given another one after. `None` if there was a reason to stop.
    async fn send(
        &mut self,
        model_call: &ModelCall,
        outgoing: &[Outgoing],
        parameters: ModelParameters,
        concluding: bool,
        stream: &ResponseStream,
    ) -> Result<Option<Result<Response>>> {
        let unfinished = self.to_step(model_call, None);
        let active = &self.active;
        let request = Request {
            system: active.system.text.clone(),
            messages: model_request::chat_messages(outgoing, &active.model.reference),
            tools: Arc::clone(&active.specs),
            tool_choice: if concluding { ToolChoice::None } else { ToolChoice::Auto },
            parallel_tool_calls: active.agent.policy.parallel_tool_calls,
            parameters,
            trace: self.ctx.trace.passed_on(model_call.step),
        };
        let (engine, fence) = (self.ctx.engine, self.ctx.grant.fence);
        let push = |delta| stream.push(delta);
        let call = engine.agents.models.generate(&active.model, &request, &push);
        let call = engine.agents.meters.model_call(fence.tenant, &active.model, call);
        let resend = &self.ctx.control.resend_deltas;
        let mut publishing = pin!(stream.publish_while(call, &*engine.transport, fence, resend));
        loop {
            let response_or_retry = async {
                tokio::select! {
                    biased;
                    response = &mut publishing => Ok(response),
                    retry = stream.next_retry() => Err(retry),
                }
            };
            let retry = match self.ctx.unless_killed(response_or_retry).await {
                None => return Ok(None),
                Some(Ok(response)) => return Ok(Some(response)),
                Some(Err(retry)) => retry,
            };
            let (message, model) = (model_call.request.message, active.model.reference.clone());
            self.ctx.journal.add_event(EventBody::ModelRetrying { message, model, retry: retry.clone() });
            let mut step = unfinished.clone();
            if let StepWork::ModelCall { request, .. } = &mut step.work {
                request.retry = Some(retry);
            }
            self.ctx.journal.commit(Entry::steps(vec![step])).await?;
        }
    }

    /// Commits a response and plans its tool calls. The last response is left to the run's end.
    async fn handle_response(
        &mut self,
        model_call: &ModelCall,
        response: Response,
        concluding: bool,
    ) -> Result<()> {
        let tasks = self.task_agents(&response.tool_requests).await?;
        let requested = self.check_calls(&response, &tasks, concluding);
        let is_empty = requested.is_empty() && response.text.trim().is_empty();
        let parts = response::response_parts(&response, &requested, &self.active.model.reference.to_string());
        let message = model_call.request.message;
        let outcome = ModelOutcome {
            status: CallStatus::Completed,
            parts: parts.clone(),
            finish: Some(response.finish),
            usage: response.usage,
            cost: self.active.model.price.map(|price| price.of(&response.usage)),
            failure: None,
            duration_ms: model_call.duration_ms(),
            first_token_ms: model_call.first_token_ms,
            attempts: response.attempts,
            response_id: response.id,
        };
        self.ctx.journal.add_event(EventBody::ModelCompleted {
            message,
            finish: response.finish,
            usage: outcome.usage,
            cost: outcome.cost,
            attempts: outcome.attempts,
            duration_ms: outcome.duration_ms,
        });
        if is_empty {
            self.handle_empty_response(model_call, outcome);
            return Ok(());
        }
        self.last_response_empty = false;
        self.steps_taken += 1;
        self.append_message(message, Role::Assistant, parts);
        self.concluded = requested.is_empty() || concluding;
        if concluding && (self.steps_taken > 1 || !requested.is_empty()) {
            let (agent, reason) = (self.active.agent.name.clone(), StopReason::MaxSteps);
            tracing::info!(run = %self.ctx.grant.run.id, agent, steps = self.steps_taken, "agent stopped at max_steps");
            self.ctx.journal.add_event(EventBody::AgentStopped { agent, reason, steps: self.steps_taken });
        }
        if requested.is_empty() {
            self.finish_model_call(model_call, outcome);
            return Ok(());
        }
        let step = self.to_step(model_call, Some(outcome));
        self.commit_calls(step, requested).await?;
        self.failure = self.fatal_refusal();
        Ok(())
    }

    /// Decides which of the requested tool calls are made.
    fn check_calls(&self, response: &Response, tasks: &TaskAgents, concluding: bool) -> Vec<RequestedCall> {
        let checker = CallChecker {
            tools: &self.active.tools,
            policy: &self.active.agent.policy,
            repeated_calls: &self.repeated_calls,
            verdict: &|call| self.permission_verdict(&self.with_target(call, tasks)),
            unattended: self.active.unattended,
            concluding,
        };
        checker.check_all(response.tool_requests.clone())
    }

    /// Retries an empty response once, with a reminder.
    fn handle_empty_response(&mut self, model_call: &ModelCall, outcome: ModelOutcome) {
        self.finish_model_call(model_call, outcome);
        if self.last_response_empty {
            let error = Error::new(Code::ModelAnswerInvalid, "the model answered with nothing, twice");
            self.failure = Some(Failure::new(error.code(), error.to_string()));
        }
        self.last_response_empty = true;
    }

    /// Commits a response together with the known state of its calls: refused calls, and calls that await approval.
    async fn commit_calls(&mut self, step: Step, requested: Vec<RequestedCall>) -> Result<()> {
        let mut entry = Entry {
            steps: std::mem::take(&mut self.pending_steps),
            messages: self.take_pending_messages(),
            spent: std::mem::take(&mut self.spent),
            ..Entry::default()
        };
        entry.steps.push(step);
        let epoch = self.ctx.grant.fence.epoch;
        self.plan = Vec::with_capacity(requested.len());
        for RequestedCall { call, decision } in requested {
            let mut planned = PlannedCall::new(call, self.next_index, epoch);
            self.next_index += 1;
            match decision {
                CallDecision::Execute => {}
                CallDecision::Refused(outcome) => {
                    self.ctx.add_outcome_event(&outcome);
                    planned.finish(outcome);
                    planned.stored = true;
                    entry.steps.push(planned.to_step());
                }
                CallDecision::NeedsApproval(ask) => {
                    self.ctx.request_approval(&mut planned, ask, &self.active.agent.name, &mut entry);
                }
            }
            self.plan.push(planned);
        }
        self.ctx.journal.commit(entry).await
    }

    fn handle_failure(&mut self, model_call: &ModelCall, error: &Error, stream: &ResponseStream) {
        let failure = Failure::new(error.code(), error.to_string());
        let message = model_call.request.message;
        self.ctx.journal.add_event(EventBody::ModelFailed { message, failure: failure.clone() });
        let mut outcome = ModelOutcome::without_answer(CallStatus::Failed, Some(failure.clone()));
        outcome.parts = stream.parts(&self.active.model.reference.to_string());
        outcome.duration_ms = model_call.duration_ms();
        self.finish_model_call(model_call, outcome);
        self.failure = Some(failure);
    }

    /// Leaves a model call with its outcome to the next commit.
    pub(super) fn finish_model_call(&mut self, model_call: &ModelCall, outcome: ModelOutcome) {
        let step = self.to_step(model_call, Some(outcome));
        self.pending_steps.push(step);
    }

    /// The model call was dropped. A new owner makes it again. A run that ends keeps the text received so far.
    fn handle_interruption(&mut self, model_call: &ModelCall, stream: &ResponseStream) {
        if !matches!(self.ctx.killed, Some(KillReason::Cancelled | KillReason::TimedOut)) {
            return;
        }
        let parts = stream.parts(&self.active.model.reference.to_string());
        let message = model_call.request.message;
        let mut outcome = ModelOutcome::without_answer(CallStatus::Cancelled, None);
        outcome.parts.clone_from(&parts);
        outcome.duration_ms = model_call.duration_ms();
        self.finish_model_call(model_call, outcome);
        let text: Vec<Part> = parts.into_iter().filter(|part| matches!(part, Part::Text { .. })).collect();
        if !text.is_empty() {
            self.append_message(message, Role::Assistant, text);
        }
    }
}
