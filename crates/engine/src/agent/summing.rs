//! Making room: what is sent is fitted to the model's window, and what does not fit is summed up.

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
use remuda_store::{NewMessage, Parking};

use super::{
    AgentRun,
    asking::{Place, Question},
    context::{self, Cut, Fitted, Gauge, SummaryRequest, tokens::Lesson},
    transcript::{self, Said},
};
use crate::journal::Entry;

/// How far the conversation of a run was made shorter.
#[derive(Debug, Default)]
pub(super) struct Shortened {
    /// The last message whose results of tools are left out.
    pub(super) cleared: Option<MessageId>,
    /// What the last answer taught about estimates, and which model that was.
    pub(super) lesson: Option<(remuda_domain::model::ModelRef, Lesson)>,
    /// Summaries that failed, one after the other.
    pub(super) failures: u32,
    /// The provider found the question too long, whatever was estimated.
    pub(super) forced: bool,
    /// It was shortened for that once.
    pub(super) retried: bool,
}

/// What came of making room.
pub(super) enum Room {
    Made(Fitted),
    /// The run has to wait before anything can be summed up.
    Waits(Parking),
    /// There was a reason to stop.
    Stopped,
}

impl AgentRun<'_> {
    pub(super) fn gauge(&self) -> Gauge {
        let scene = &self.scene;
        let lesson = self.shortened.lesson.as_ref().filter(|(model, _)| *model == scene.model.reference);
        let settings = &self.stand.engine.agents.settings.context;
        Gauge::new(&scene.model, &scene.parameters, settings, scene.fixed, lesson.map(|(_, lesson)| *lesson))
    }

    /// What of the conversation is sent: all of it, or what there is room for.
    pub(super) async fn make_room(&mut self) -> Result<Room> {
        loop {
            let gauge = self.gauge();
            let repaired = transcript::repair(&self.said, &self.earlier);
            let fitted = context::fit(repaired, self.shortened.cleared, &gauge, self.shortened.forced);
            self.shortened.cleared = fitted.cleared;
            let Some(cut) = &fitted.cut else { return Ok(Room::Made(fitted)) };
            // What is not in the transcript yet has no name that a summary could go by.
            if self.pending.iter().any(|message| message.id == cut.through) {
                return Ok(Room::Made(fitted));
            }
            let fits =
                gauge.expected(&fitted.outgoing) <= gauge.room.window.saturating_sub(gauge.room.reserve);
            let summarize = self.stage.definitions().settings.context.summarize.unwrap_or(true);
            let most = self.stand.engine.agents.settings.context.max_failures;
            let tired = !summarize || self.shortened.failures >= most;
            if tired && fits && !self.shortened.forced {
                return Ok(Room::Made(fitted));
            }
            let before = gauge.expected(&fitted.outgoing);
            let summed = if tired { Summed::Not } else { self.ask_for_summary(cut, &gauge).await? };
            let text = match summed {
                Summed::Up(text) => {
                    self.shortened.failures = 0;
                    text
                }
                Summed::Waits(parking) => return Ok(Room::Waits(parking)),
                Summed::Stopped => return Ok(Room::Stopped),
                Summed::Not => {
                    self.shortened.failures += u32::from(!tired);
                    if fits && !self.shortened.forced {
                        return Ok(Room::Made(fitted));
                    }
                    context::fallback(cut)
                }
            };
            self.take_summary(&text, cut, before).await?;
        }
    }

    /// Whether there is anything left to leave out, of a question that was not shortened by force before.
    pub(super) fn can_be_shorter(&self) -> bool {
        let repaired = transcript::repair(&self.said, &self.earlier);
        let fitted = context::fit(repaired, self.shortened.cleared, &self.gauge(), true);
        let mut outgoing = fitted.outgoing;
        !self.shortened.retried
            && (fitted.cut.is_some()
                || fitted.cleared != self.shortened.cleared
                || context::squeeze(&mut outgoing, &self.gauge(), true))
    }

    /// The model that sums up: the workspace's choice, or else that of the acting agent.
    fn summarizer(&self) -> Summarizer {
        let definitions = self.stage.definitions();
        let chosen = definitions.settings.context.model.as_deref().map(|name| definitions.named_model(name));
        let chosen = chosen.and_then(|choice| {
            let choice = choice.ok()?;
            let model = self.stage.model(&choice.model.reference).ok()?.clone();
            Some(Summarizer { parameters: choice.parameters.or(model.parameters), model })
        });
        chosen.unwrap_or_else(|| Summarizer {
            model: self.scene.model.clone(),
            parameters: self.scene.parameters,
        })
    }

    async fn ask_for_summary(&mut self, cut: &Cut, gauge: &Gauge) -> Result<Summed> {
        let Summarizer { model, parameters } = self.summarizer();
        let other = (model.reference != self.scene.model.reference).then(|| {
            let settings = &self.stand.engine.agents.settings.context;
            Gauge::new(&model, &parameters, settings, 0, None)
        });
        let wanted = context::summary_request(cut, other.as_ref().unwrap_or(gauge));
        let (asked, most) = (size(&wanted), u64::from(wanted.max_tokens));
        let place = Place { step: StepId::new(), message: MessageId::new(), index: self.take_index() };
        if let Some(parking) = self.reserve(place.step, &model, asked, most).await? {
            return Ok(Summed::Waits(parking));
        }
        if self.failure.is_some() {
            return Ok(Summed::Stopped);
        }
        let mut question = self.question(place, transcript::record(&cut.to_sum_up), false);
        question.request.purpose = Purpose::Summary;
        question.request.model = model.reference.clone();
        question.request.provider = Some(model.provider);
        question.request.model_name.clone_from(&model.name);
        question.request.parameters = parameters;
        let contents = vec![remuda_domain::content::Content::new(wanted.system.clone())];
        question.request.system = contents[0].hash;
        let steps = vec![self.to_step(&question, None)];
        self.stand.journal.commit(Entry { steps, contents, ..Entry::default() }).await?;
        let request = wanted.to_request(&parameters, self.stand.trace.passed_on(place.step));
        let engine = self.stand.engine;
        let asking = engine.agents.models.generate(&model, &request, &|_| {});
        let asking = engine.agents.meters.model_call(self.stand.grant.fence.tenant, &model, asking);
        match self.stand.unless_killed(asking).await {
            None => Ok(Summed::Stopped),
            Some(Ok(response)) if !response.text.trim().is_empty() => {
                self.note_spent(&question, &model, &response, asked);
                let cost = model.price.map(|price| price.of(&response.usage));
                let text = response.text.clone();
                self.close_summary(&question, &response, cost);
                Ok(Summed::Up(text))
            }
            Some(answer) => {
                let error = answer.err().unwrap_or_else(|| {
                    Error::new(Code::ModelAnswerInvalid, "the model answered with nothing")
                });
                tracing::warn!(run = %self.stand.grant.run.id, error = error.chain(), "a summary could not be made");
                let failure = Failure::new(error.code(), error.to_string());
                let outcome = ModelOutcome::without_answer(CallStatus::Failed, Some(failure));
                self.close(&question, outcome);
                Ok(Summed::Not)
            }
        }
    }

    fn close_summary(&mut self, question: &Question, response: &Response, cost: Option<Micros>) {
        let outcome = ModelOutcome {
            parts: vec![Part::text(response.text.clone())],
            finish: Some(FinishReason::Stop),
            usage: response.usage,
            cost,
            attempts: response.attempts,
            duration_ms: question.duration_ms(),
            response_id: response.id.clone(),
            ..ModelOutcome::without_answer(CallStatus::Completed, None)
        };
        self.close(question, outcome);
    }

    /// Puts a summary in place of what it stands for. The transcript keeps both.
    async fn take_summary(&mut self, text: &str, cut: &Cut, before: u64) -> Result<()> {
        let message = NewMessage {
            id: MessageId::new(),
            role: Role::System,
            agent: Some(self.scene.agent.name.clone()),
            parts: context::summary_message(text, cut),
        };
        self.said.push(Said::new(&message, self.stand.grant.run.id));
        self.said = context::view(std::mem::take(&mut self.said));
        let after = self.gauge().expected(&transcript::repair(&self.said, &self.earlier));
        // Results stand right after their calls. What is told of children belongs to the next question.
        let notices: Vec<NewMessage> =
            self.pending.extract_if(.., |it| self.notices.contains(&it.id)).collect();
        self.pending.push(message.clone());
        let messages = self.take_pending();
        self.pending = notices;
        self.stand.journal.note(EventBody::ContextCompacted {
            message: message.id,
            through: cut.through,
            tokens_before: before,
            tokens_after: after,
        });
        self.shortened.forced = false;
        let entry = Entry {
            steps: std::mem::take(&mut self.unsaved),
            messages,
            spent: std::mem::take(&mut self.spent),
            ..Entry::default()
        };
        self.stand.journal.commit(entry).await
    }
}

/// Who sums up, and how it is asked.
struct Summarizer {
    model: ModelDefinition,
    parameters: ModelParameters,
}

enum Summed {
    Up(String),
    /// The model could not.
    Not,
    Waits(Parking),
    Stopped,
}

/// What a question for a summary has in tokens.
fn size(request: &SummaryRequest) -> u64 {
    let messages: u64 = request.messages.iter().map(context::tokens::message).sum();
    context::tokens::text(&request.system) + messages
}
