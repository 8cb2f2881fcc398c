//! One question to a model, and its answer.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Code, EventBody, MessageId, StepId, Timestamp,
    error::{Error, Result},
    message::{Part, Role},
    model::ModelParameters,
    run::Failure,
    step::{ModelOutcome, ModelRequest, Purpose, Sent, Step, StepWork},
    tool::CallStatus,
};
use remuda_models::{Request, Response, ToolChoice};
use remuda_store::{NewApproval, Parking};
use tokio::time::Instant;

use super::{
    AgentRun,
    answer::{self, Fate, Judge, Wanted},
    context::{self, tokens::Lesson},
    deltas::Utterance,
    request,
    summing::Room,
    targets::Tasks,
    transcript::{self, Outgoing},
};
use crate::{
    journal::{Entry, now},
    plan::Slot,
    stand::Killed,
};

/// Where a question stands in its run, and what its answer is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) step: StepId,
    pub(super) message: MessageId,
    pub(super) index: u32,
}

/// A question that was announced.
pub(super) struct Question {
    step: StepId,
    index: u32,
    pub(super) request: Box<ModelRequest>,
    asked_at: Timestamp,
    begun: Instant,
    first_token_ms: Option<u64>,
}

impl Question {
    pub(super) fn step(&self) -> StepId {
        self.step
    }

    pub(super) fn duration_ms(&self) -> u64 {
        millis(self.begun.elapsed())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl AgentRun<'_> {
    /// Asks the model once. Says what the run has to wait for before it can.
    pub(super) async fn ask(&mut self) -> Result<Option<Parking>> {
        let concluding = self.answered + 1 >= self.scene.agent.policy.max_steps;
        let fitted = match self.make_room().await? {
            Room::Made(fitted) => fitted,
            Room::Waits(parking) => return Ok(Some(parking)),
            Room::Stopped => return Ok(None),
        };
        let (mut outgoing, gauge) = (fitted.outgoing, self.gauge());
        context::squeeze(&mut outgoing, &gauge, self.shortened.forced);
        let outgoing = self.outgoing(outgoing, concluding);
        let place = self.announced.take().unwrap_or_else(|| Place {
            step: StepId::new(),
            message: MessageId::new(),
            index: self.take_index(),
        });
        let estimate = gauge.estimate(&outgoing);
        let (model, expected) = (self.scene.model.clone(), gauge.really(estimate));
        if let Some(parking) = self.reserve(place.step, &model, expected, gauge.room.reserve).await? {
            return Ok(Some(parking));
        }
        if self.failure.is_some() {
            return Ok(None);
        }
        self.concluded = false;
        let parameters = self.parameters(&gauge);
        let mut question = self.announce(place, &outgoing, parameters, concluding).await?;
        let utterance = Utterance::new(self.stand.grant.run.id, place.message);
        let asked = self.put(&question, &outgoing, parameters, concluding, &utterance).await;
        question.first_token_ms = utterance.first_after(question.begun).map(millis);
        match asked {
            Some(Ok(response)) => {
                let lesson = Lesson::of(estimate, &response.usage);
                self.shortened.lesson = lesson.map(|lesson| (model.reference.clone(), lesson));
                self.shortened.forced = false;
                self.shortened.retried = false;
                self.note_spent(&question, &model, &response, expected);
                self.take_answer(&question, response, concluding).await?;
            }
            Some(Err(error)) if error.code() == Code::ContextTooLong && self.can_be_shorter() => {
                tracing::info!(run = %self.stand.grant.run.id, "the question was too long for its model");
                self.shortened.forced = true;
                self.shortened.retried = true;
                self.announced = Some(place);
                self.reported = question.request.reported;
            }
            Some(Err(error)) => self.take_failure(&question, &error, &utterance),
            None => self.cut_short(&question, &utterance),
        }
        Ok(None)
    }

    /// What the model is sent besides what was said.
    fn outgoing(&self, mut outgoing: Vec<Outgoing>, concluding: bool) -> Vec<Outgoing> {
        // An agent that takes over within a run is reminded by the result of the switch.
        let began = self.said.iter().rev().find(|message| message.role == Role::User);
        let began = began.and_then(|message| message.agent.as_deref());
        if let Some(reminder) = &self.scene.agent.system_reminder
            && began == Some(self.scene.agent.name.as_str())
            && transcript::agent_changed(&self.said, &self.scene.agent.name)
        {
            transcript::remind(&mut outgoing, reminder);
        }
        if self.speechless {
            transcript::add(&mut outgoing, request::SPEECHLESS);
        }
        if concluding {
            transcript::add(&mut outgoing, request::CONCLUDE);
        }
        outgoing
    }

    pub(super) fn take_index(&mut self) -> u32 {
        let index = self.next_index;
        self.next_index += 1;
        index
    }

    /// A question that the acting agent has.
    pub(super) fn question(&self, place: Place, messages: Vec<Sent>, concluding: bool) -> Question {
        let scene = &self.scene;
        let request = Box::new(ModelRequest {
            message: place.message,
            agent: scene.agent.name.clone(),
            definitions: self.stage.content.hash,
            model: scene.model.reference.clone(),
            provider: Some(scene.model.provider),
            model_name: scene.model.name.clone(),
            parameters: scene.parameters,
            system: scene.system.hash,
            tools: scene.offered.hash,
            messages,
            concluding,
            purpose: Purpose::Answer,
            reported: Vec::new(),
            cleared: self.shortened.cleared,
        });
        Question {
            step: place.step,
            index: place.index,
            request,
            asked_at: now(),
            begun: Instant::now(),
            first_token_ms: None,
        }
    }

    /// Commits what will be asked, with the messages that are new to the transcript.
    async fn announce(
        &mut self,
        place: Place,
        outgoing: &[Outgoing],
        parameters: ModelParameters,
        concluding: bool,
    ) -> Result<Question> {
        let mut question = self.question(place, transcript::record(outgoing), concluding);
        question.request.parameters = parameters;
        question.request.reported = std::mem::take(&mut self.reported);
        let (scene, message) = (&self.scene, place.message);
        let tenant = self.stand.grant.fence.tenant;
        let agents = &self.stand.engine.agents;
        let contents = agents.unknown(tenant, [&self.stage.content, &scene.system, &scene.offered]);
        let hashes: Vec<_> = contents.iter().map(|content| content.hash).collect();
        let started = EventBody::ModelStarted {
            message,
            agent: scene.agent.name.clone(),
            model: scene.model.reference.clone(),
        };
        for event in std::mem::take(&mut self.with_question) {
            self.stand.journal.note(event);
        }
        let messages = self.take_pending();
        self.stand.journal.note(started);
        let mut steps = std::mem::take(&mut self.unsaved);
        steps.push(self.to_step(&question, None));
        let spent = std::mem::take(&mut self.spent);
        self.stand.journal.commit(Entry { steps, messages, contents, spent, ..Entry::default() }).await?;
        agents.remember(tenant, hashes);
        Ok(question)
    }

    pub(super) fn to_step(&self, question: &Question, outcome: Option<ModelOutcome>) -> Step {
        let finished_at = outcome.is_some().then(now);
        let work = StepWork::ModelCall { request: question.request.clone(), outcome: outcome.map(Box::new) };
        Step {
            id: question.step,
            index: question.index,
            work,
            started_at: question.asked_at,
            finished_at,
            epoch: self.stand.grant.fence.epoch,
        }
    }

    /// Sends the question and waits for the answer, telling of its pieces. `None` if there was a reason to stop.
    async fn put(
        &mut self,
        question: &Question,
        outgoing: &[Outgoing],
        parameters: ModelParameters,
        concluding: bool,
        utterance: &Utterance,
    ) -> Option<Result<Response>> {
        let scene = &self.scene;
        let request = Request {
            system: scene.system.text.clone(),
            messages: request::chat(outgoing, &scene.model.reference),
            tools: Arc::clone(&scene.specs),
            tool_choice: if concluding { ToolChoice::None } else { ToolChoice::Auto },
            parallel_tool_calls: scene.agent.policy.parallel_tool_calls,
            parameters,
            trace: self.stand.trace.passed_on(question.step),
        };
        let (engine, fence) = (self.stand.engine, self.stand.grant.fence);
        let hear = |piece| utterance.hear(piece);
        let asking = engine.agents.models.generate(&scene.model, &request, &hear);
        let asking = engine.agents.meters.model_call(fence.tenant, &scene.model, asking);
        let again = &self.stand.control.tell_again;
        let telling = utterance.tell_while(asking, &*engine.transport, fence, again);
        self.stand.unless_killed(telling).await
    }

    /// Commits an answer and prepares its calls. The last answer is left to the run's end.
    async fn take_answer(&mut self, question: &Question, response: Response, concluding: bool) -> Result<()> {
        let tasks = self.agents_of_tasks(&response.tool_requests).await?;
        let wanted = self.judge(&response, &tasks, concluding);
        let nothing = wanted.is_empty() && response.text.trim().is_empty();
        let parts = answer::parts(&response, &wanted, &self.scene.model.reference.to_string());
        let message = question.request.message;
        let outcome = ModelOutcome {
            status: CallStatus::Completed,
            parts: parts.clone(),
            finish: Some(response.finish),
            usage: response.usage,
            cost: self.scene.model.price.map(|price| price.of(&response.usage)),
            failure: None,
            duration_ms: question.duration_ms(),
            first_token_ms: question.first_token_ms,
            attempts: response.attempts,
            response_id: response.id,
        };
        self.stand.journal.note(EventBody::ModelCompleted {
            message,
            finish: response.finish,
            usage: outcome.usage,
            cost: outcome.cost,
            attempts: outcome.attempts,
            duration_ms: outcome.duration_ms,
        });
        if nothing {
            self.take_silence(question, outcome);
            return Ok(());
        }
        self.speechless = false;
        self.answered += 1;
        self.say(message, Role::Assistant, parts);
        self.concluded = wanted.is_empty() || concluding;
        if wanted.is_empty() {
            self.close(question, outcome);
            return Ok(());
        }
        let step = self.to_step(question, Some(outcome));
        self.commit_calls(step, wanted).await?;
        self.failure = self.fatal_refusal();
        Ok(())
    }

    /// Which of the calls that an answer wants are made.
    fn judge(&self, response: &Response, tasks: &Tasks, concluding: bool) -> Vec<Wanted> {
        let judge = Judge {
            tools: &self.scene.tools,
            policy: &self.scene.agent.policy,
            repeats: &self.repeats,
            verdict: &|call| self.judge_call(&self.with_target(call, tasks)),
            unattended: self.scene.unattended,
            concluding,
        };
        judge.wanted(response.tool_requests.clone())
    }

    /// A model that says nothing is asked once more, and told so.
    fn take_silence(&mut self, question: &Question, outcome: ModelOutcome) {
        self.close(question, outcome);
        if self.speechless {
            let error = Error::new(Code::ModelAnswerInvalid, "the model answered with nothing, twice");
            self.failure = Some(Failure::new(error.code(), error.to_string()));
        }
        self.speechless = true;
    }

    /// Commits an answer together with what is known of its calls: those that are not made, and those that people are asked about.
    async fn commit_calls(&mut self, step: Step, wanted: Vec<Wanted>) -> Result<()> {
        let mut entry = Entry {
            steps: std::mem::take(&mut self.unsaved),
            messages: self.take_pending(),
            spent: std::mem::take(&mut self.spent),
            ..Entry::default()
        };
        entry.steps.push(step);
        let epoch = self.stand.grant.fence.epoch;
        self.slots = Vec::with_capacity(wanted.len());
        for Wanted { call, fate } in wanted {
            let mut slot = Slot::new(call, self.next_index, epoch);
            self.next_index += 1;
            match fate {
                Fate::Made => {}
                Fate::Refused(outcome) => {
                    self.stand.note_outcome(&outcome);
                    slot.finish(outcome);
                    slot.stored = true;
                    entry.steps.push(slot.to_step());
                }
                Fate::Asked(ask) => {
                    let approval = self.new_approval(&slot, ask);
                    slot.links.approval = Some(approval.id);
                    slot.stored = true;
                    entry.steps.push(slot.to_step());
                    entry.approvals.push(approval);
                }
            }
            self.slots.push(slot);
        }
        self.stand.journal.commit(entry).await
    }

    fn new_approval(&mut self, slot: &Slot, ask: remuda_permissions::Ask) -> NewApproval {
        let settings = &self.stand.engine.agents.settings.permissions;
        let own = &self.stand.grant.permissions.approvers;
        let approvers = if own.is_empty() { &settings.approvers } else { own };
        let (id, request) =
            answer::approval_request(&slot.call, ask, &self.scene.agent.name, approvers.clone());
        let expires_in = settings.expire_after;
        let expires_at =
            expires_in.and_then(|after| now().checked_add_signed(chrono::TimeDelta::from_std(after).ok()?));
        self.stand.journal.note(EventBody::ApprovalRequested {
            approval: id,
            request: Box::new(request.clone()),
            expires_at,
        });
        NewApproval { id, request, expires_in }
    }

    fn take_failure(&mut self, question: &Question, error: &Error, utterance: &Utterance) {
        let failure = Failure::new(error.code(), error.to_string());
        let message = question.request.message;
        self.stand.journal.note(EventBody::ModelFailed { message, failure: failure.clone() });
        let mut outcome = ModelOutcome::without_answer(CallStatus::Failed, Some(failure.clone()));
        outcome.parts = utterance.parts(&self.scene.model.reference.to_string());
        outcome.duration_ms = question.duration_ms();
        self.close(question, outcome);
        self.failure = Some(failure);
    }

    /// Leaves a question with its outcome to the next commit.
    pub(super) fn close(&mut self, question: &Question, outcome: ModelOutcome) {
        let step = self.to_step(question, Some(outcome));
        self.unsaved.push(step);
    }

    /// The question was dropped. Whoever takes the run over asks it again; in a run that ends, what was said until then stays.
    fn cut_short(&mut self, question: &Question, utterance: &Utterance) {
        if !matches!(self.stand.killed, Some(Killed::Cancelled | Killed::TimedOut)) {
            return;
        }
        let parts = utterance.parts(&self.scene.model.reference.to_string());
        let message = question.request.message;
        let mut outcome = ModelOutcome::without_answer(CallStatus::Cancelled, None);
        outcome.parts.clone_from(&parts);
        outcome.duration_ms = question.duration_ms();
        self.close(question, outcome);
        let text: Vec<Part> = parts.into_iter().filter(|part| matches!(part, Part::Text { .. })).collect();
        if !text.is_empty() {
            self.say(message, Role::Assistant, text);
        }
    }
}
