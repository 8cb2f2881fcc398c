//! The way of a `message` run: an agent works until it has an answer.
//!
//! A run is a chain of steps: the model is asked, the calls it wants are made, it is asked again. Everything is in the store before
//! it matters: an asked model is announced together with the messages that it is sent, an answer is committed before its calls
//! begin, and each call as in a `tools` run. So whoever takes the run over knows from the steps alone where it stands ([`resume`]),
//! asks no finished question again and makes no finished call again.

mod answer;
mod deltas;
mod ending;
mod render;
mod repeats;
mod request;
mod resume;
mod runtime;
mod scene;
mod settings;
mod skill;
mod toolset;
mod transcript;

use remuda_domain::{
    EventBody, MessageId, StepId, Timestamp,
    error::Result,
    message::{Part, Role},
    run::{Failure, MessageInput},
    step::{ModelOutcome, ModelRequest, Purpose, Step, StepWork},
    tool::{CallStatus, ToolOutcome},
};
use remuda_models::{Request, Response, ToolChoice};
use remuda_store::{Grant, NewMessage};
use tokio::time::Instant;

use self::{
    answer::{Judge, Wanted},
    deltas::Utterance,
    repeats::Repeats,
    scene::Scene,
    transcript::{Outgoing, Said},
};
use crate::{
    Engine, Execution, RunControl,
    journal::{Entry, now},
    plan::{self, Slot},
    stand::{Killed, Stand, Walked},
};

pub use self::{
    runtime::AgentRuntime,
    settings::{AgentSettings, ContextSettings, DelegationSettings, OnExpiry, PermissionSettings},
};

/// A run of an agent on its way.
struct AgentRun<'a> {
    stand: Stand<'a>,
    scene: Scene,
    /// What was said in the session, with what is pending.
    said: Vec<Said>,
    /// What lost runs of the session have left, to complete what was said.
    earlier: Vec<Step>,
    /// Messages that enter the transcript with the next commit.
    pending: Vec<NewMessage>,
    /// The question that an earlier owner announced and got no answer to.
    announced: Option<(StepId, MessageId, u32)>,
    /// Questions that were answered.
    answered: u32,
    next_index: u32,
    /// The calls of the newest answer, and which of them an earlier owner left unfinished.
    slots: Vec<Slot>,
    interrupted: Vec<usize>,
    repeats: Repeats,
    /// How calls of earlier answers ended.
    outcomes: Vec<ToolOutcome>,
    /// Steps that the run's end carries.
    unsaved: Vec<Step>,
    /// Nothing more is to be asked.
    concluded: bool,
    failure: Option<Failure>,
}

/// A question that was announced.
struct Question {
    step: StepId,
    index: u32,
    request: Box<ModelRequest>,
    asked_at: Timestamp,
    begun: Instant,
}

impl Question {
    fn duration_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Engine {
    /// Fails only when the journal cannot be written, that is when the session is lost.
    pub(crate) async fn agent_run(
        &self,
        input: &MessageInput,
        grant: &Grant,
        control: &RunControl,
    ) -> Result<Execution> {
        let scene = match self.scene(input, grant, &control.abandon).await {
            Ok(scene) => scene,
            Err(error) => return Ok(self.refuse(input, grant, control, &error).await),
        };
        let mut stand = Stand::new(self, grant, control, scene.sandbox.clone(), scene.time(grant));
        stand.calls.tools = scene.tools.clone();
        stand.limit = scene.limit(grant);
        let mut run = match AgentRun::resume(stand, scene, input).await {
            Ok(run) => run,
            Err(error) => return Ok(self.refuse(input, grant, control, &error).await),
        };
        let walked = run.walk().await;
        // Whichever way it goes on, nothing of this run is left here.
        run.stand.calls.background.shutdown().await;
        match walked? {
            Walked::Abandoned => Ok(Execution::Abandoned),
            Walked::HandOver => Ok(Execution::HandedOver(Box::new(run.hand_over()))),
            Walked::ToTheEnd => {
                let reason = run.stand.cancel_reason().await;
                Ok(Execution::Ended(Box::new(run.end(&reason))))
            }
        }
    }
}

impl AgentRun<'_> {
    async fn walk(&mut self) -> Result<Walked> {
        self.stand.report_interrupted(&mut self.slots, &self.interrupted).await?;
        loop {
            for group in plan::groups(&self.slots) {
                let todo: Vec<usize> = group.filter(|index| !self.slots[*index].is_done()).collect();
                if self.stand.killed.is_some() {
                    break;
                }
                if !todo.is_empty() {
                    if self.stand.control.drain.is_cancelled() {
                        return Ok(Walked::HandOver);
                    }
                    self.stand.run_group(&mut self.slots, &todo, false).await?;
                }
            }
            if self.stand.killed.is_some() {
                return Ok(self.stand.walked());
            }
            self.collect_results();
            if self.concluded {
                return Ok(self.stand.walked());
            }
            if self.stand.control.drain.is_cancelled() {
                return Ok(Walked::HandOver);
            }
            self.ask().await?;
        }
    }

    /// Makes a message of the results of the newest answer's calls.
    fn collect_results(&mut self) {
        if self.slots.is_empty() {
            return;
        }
        let mut parts = Vec::with_capacity(self.slots.len());
        for slot in std::mem::take(&mut self.slots) {
            let Some(outcome) = slot.outcome else { continue };
            self.repeats.note(&slot.call, &outcome);
            self.outcomes.push(outcome.clone());
            parts.push(Part::ToolResult { outcome });
        }
        self.say(MessageId::new(), Role::Tool, parts);
    }

    /// Notes what was said, for the next commit.
    fn say(&mut self, id: MessageId, role: Role, parts: Vec<Part>) {
        let message = NewMessage { id, role, agent: Some(self.scene.agent.name.clone()), parts };
        self.said.push(Said::new(&message, self.stand.grant.run.id));
        self.pending.push(message);
    }

    /// Takes what was noted, with the events that tell of it.
    fn take_pending(&mut self) -> Vec<NewMessage> {
        let pending = std::mem::take(&mut self.pending);
        for message in &pending {
            self.stand.journal.note(EventBody::MessageCompleted {
                message: message.id,
                role: message.role,
                agent: message.agent.clone(),
                parts: message.parts.clone(),
            });
        }
        pending
    }

    /// Asks the model once.
    async fn ask(&mut self) -> Result<()> {
        let concluding = self.answered + 1 >= self.scene.agent.policy.max_steps;
        let outgoing = self.outgoing(concluding);
        let question = self.announce(&outgoing, concluding).await?;
        let utterance = Utterance::new(self.stand.grant.run.id, question.request.message);
        let asked = self.put(&outgoing, concluding, &utterance).await;
        match asked {
            Some(Ok(response)) => self.take_answer(&question, response, concluding).await,
            Some(Err(error)) => {
                let failure = Failure::new(error.code(), error.to_string());
                let message = question.request.message;
                self.stand.journal.note(EventBody::ModelFailed { message, failure: failure.clone() });
                let mut outcome = ModelOutcome::without_answer(CallStatus::Failed, Some(failure.clone()));
                outcome.parts = utterance.parts(&self.scene.model.reference.to_string());
                outcome.duration_ms = question.duration_ms();
                self.close(&question, outcome);
                self.failure = Some(failure);
                self.concluded = true;
                Ok(())
            }
            None => {
                self.cut_short(&question, &utterance);
                Ok(())
            }
        }
    }

    /// What the model is sent.
    fn outgoing(&self, concluding: bool) -> Vec<Outgoing> {
        let mut outgoing = transcript::repair(&self.said, &self.earlier);
        if let Some(reminder) = &self.scene.agent.system_reminder
            && transcript::agent_changed(&self.said, &self.scene.agent.name)
        {
            transcript::remind(&mut outgoing, reminder);
        }
        if concluding {
            transcript::add(&mut outgoing, request::CONCLUDE);
        }
        outgoing
    }

    /// Commits what will be asked, with the messages that are new to the transcript.
    async fn announce(&mut self, outgoing: &[Outgoing], concluding: bool) -> Result<Question> {
        let scene = &self.scene;
        let (step, message, index) = self.announced.take().unwrap_or_else(|| {
            let index = self.next_index;
            self.next_index += 1;
            (StepId::new(), MessageId::new(), index)
        });
        let request = Box::new(ModelRequest {
            message,
            agent: scene.agent.name.clone(),
            definitions: scene.definitions.hash,
            model: scene.model.reference.clone(),
            model_name: scene.model.name.clone(),
            parameters: scene.parameters,
            system: scene.system.hash,
            tools: scene.offered.hash,
            messages: transcript::record(outgoing),
            concluding,
            purpose: Purpose::Answer,
            reported: Vec::new(),
            cleared: None,
        });
        let question = Question { step, index, request, asked_at: now(), begun: Instant::now() };
        let tenant = self.stand.grant.fence.tenant;
        let agents = &self.stand.engine.agents;
        let contents = agents.unknown(tenant, [&scene.definitions, &scene.system, &scene.offered]);
        let hashes: Vec<_> = contents.iter().map(|content| content.hash).collect();
        let started = EventBody::ModelStarted {
            message,
            agent: scene.agent.name.clone(),
            model: scene.model.reference.clone(),
        };
        let messages = self.take_pending();
        self.stand.journal.note(started);
        let intent = self.to_step(&question, None);
        self.stand.journal.commit(Entry { steps: vec![intent], messages, contents, ..Entry::default() }).await?;
        agents.remember(tenant, hashes);
        Ok(question)
    }

    fn to_step(&self, question: &Question, outcome: Option<ModelOutcome>) -> Step {
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
        outgoing: &[Outgoing],
        concluding: bool,
        utterance: &Utterance,
    ) -> Option<Result<Response>> {
        let scene = &self.scene;
        let request = Request {
            system: scene.system.text.clone(),
            messages: request::chat(outgoing, &scene.model.reference),
            tools: scene.specs.clone(),
            tool_choice: if concluding { ToolChoice::None } else { ToolChoice::Auto },
            parallel_tool_calls: scene.agent.policy.parallel_tool_calls,
            parameters: scene.parameters,
        };
        let (engine, fence) = (self.stand.engine, self.stand.grant.fence);
        let hear = |piece| utterance.hear(piece);
        let asking = engine.agents.models.generate(&scene.model, &request, &hear);
        let telling = utterance.tell_while(asking, &*engine.transport, fence);
        self.stand.unless_killed(telling).await
    }

    /// Commits an answer and prepares its calls. The last answer is left to the run's end.
    async fn take_answer(&mut self, question: &Question, response: Response, concluding: bool) -> Result<()> {
        self.answered += 1;
        let judge = Judge {
            tools: &self.scene.tools,
            policy: &self.scene.agent.policy,
            repeats: &self.repeats,
            concluding,
        };
        let wanted = judge.wanted(response.tool_requests.clone());
        let parts = answer::parts(&response, &wanted, &self.scene.model.reference.to_string());
        let message = question.request.message;
        let outcome = ModelOutcome {
            status: CallStatus::Completed,
            parts: parts.clone(),
            finish: Some(response.finish),
            usage: response.usage,
            cost: None,
            failure: None,
            duration_ms: question.duration_ms(),
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
        // Providers refuse messages without content, so an empty answer leaves none.
        if !parts.is_empty() {
            self.say(message, Role::Assistant, parts);
        }
        if wanted.is_empty() || concluding {
            self.concluded = true;
        }
        if wanted.is_empty() {
            self.close(question, outcome);
            return Ok(());
        }
        let mut steps = vec![self.to_step(question, Some(outcome))];
        let messages = self.take_pending();
        self.slots = self.slots_of(wanted);
        for slot in self.slots.iter().filter(|slot| slot.is_done()) {
            self.stand.journal.note(EventBody::ToolFailed(
                slot.outcome
                    .clone()
                    .unwrap_or_else(|| ToolOutcome::without_result(&slot.call, CallStatus::Failed, None)),
            ));
            steps.push(slot.to_step());
        }
        self.stand.journal.commit(Entry { steps, messages, ..Entry::default() }).await
    }

    fn slots_of(&mut self, wanted: Vec<Wanted>) -> Vec<Slot> {
        let epoch = self.stand.grant.fence.epoch;
        let slots = wanted.into_iter().map(|Wanted { call, refusal }| {
            let mut slot = Slot::new(call, self.next_index, epoch);
            self.next_index += 1;
            if let Some(refusal) = refusal {
                slot.finish(refusal);
                slot.stored = true;
            }
            slot
        });
        slots.collect()
    }

    /// Leaves a question with its outcome to the run's end.
    fn close(&mut self, question: &Question, outcome: ModelOutcome) {
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
