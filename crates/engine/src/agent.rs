//! The way of a `message` run: an agent works until it has an answer.
//!
//! A run is a chain of steps: the model is asked, the calls it wants are made, it is asked again. Everything is in the store before
//! it matters: an asked model is announced together with the messages that it is sent, an answer is committed before its calls
//! begin, and each call as in a `tools` run. So whoever takes the run over knows from the steps alone where it stands ([`resume`]),
//! asks no finished question again and makes no finished call again.

mod advance;
mod answer;
mod asking;
mod context;
mod control;
mod delegation;
mod deltas;
mod ending;
mod preview;
mod render;
mod repeats;
mod request;
mod resume;
mod runtime;
mod scene;
mod settings;
mod skill;
mod spending;
mod summing;
mod targets;
mod toolset;
mod transcript;

use remuda_domain::{
    EventBody, MessageId, RunId, ToolCallId,
    budget::Spent,
    error::Result,
    message::{Part, Role},
    run::{Failure, MessageInput, ParkReason},
    step::Step,
    tool::{ToolCall, ToolOutcome},
};
use remuda_permissions::{Asked, Verdict};
use remuda_store::{Grant, NewMessage, Parking};

pub(crate) use self::context::Overlong;
use self::{
    asking::Place,
    delegation::Sent,
    repeats::Repeats,
    scene::{Scene, Stage},
    summing::Shortened,
    transcript::Said,
};
pub use self::{
    preview::{FirstQuestion, first_question, tools_of_agent},
    runtime::AgentRuntime,
    settings::{AgentSettings, ContextSettings, DelegationSettings, OnExpiry, PermissionSettings},
};
use crate::{
    Engine, Execution, RunControl,
    plan::{self, Slot},
    stand::{Stand, Walked},
};

/// A run of an agent on its way.
struct AgentRun<'a> {
    stand: Stand<'a>,
    stage: Stage,
    scene: Scene,
    /// What was said in the session, with what is pending.
    said: Vec<Said>,
    /// What lost runs of the session have left, to complete what was said.
    earlier: Vec<Step>,
    /// Messages that enter the transcript with the next commit.
    pending: Vec<NewMessage>,
    /// The question that an earlier owner announced and got no answer to.
    announced: Option<Place>,
    /// How far what was said was made shorter.
    shortened: Shortened,
    /// Questions that the acting agent had answered since it was its turn.
    answered: u32,
    /// The newest answer said nothing at all.
    speechless: bool,
    next_index: u32,
    /// The calls of the newest answer, and which of them an earlier owner left unfinished.
    slots: Vec<Slot>,
    interrupted: Vec<usize>,
    repeats: Repeats,
    switches: u32,
    /// Who goes on, by which call.
    successor: Option<(String, ToolCallId)>,
    /// Delegations so far.
    children: u32,
    /// Children in the background of which the model has not heard.
    background: Vec<Sent>,
    /// Those it hears of with the next question.
    reported: Vec<RunId>,
    /// The messages that tell so.
    notices: Vec<MessageId>,
    /// Events that belong to the next question: without it they have not happened.
    with_question: Vec<EventBody>,
    /// How calls of earlier answers ended.
    outcomes: Vec<ToolOutcome>,
    /// Steps, and what they have cost, that the next commit carries.
    unsaved: Vec<Step>,
    spent: Vec<Spent>,
    /// Nothing more is to be asked, unless a child in the background has something to say.
    concluded: bool,
    failure: Option<Failure>,
}

impl Engine {
    /// Fails only when the journal cannot be written: the session is lost, or the store refuses what the run wants to write.
    pub(crate) async fn agent_run(
        &self,
        input: &MessageInput,
        grant: &Grant,
        control: &RunControl,
    ) -> Result<Execution> {
        let (stage, scene) = match self.stage(input, grant, &control.abandon).await {
            Ok(staged) => staged,
            Err(error) => return Ok(self.refuse(input, grant, control, &error).await),
        };
        let mut stand = Stand::new(self, grant, control, stage.sandbox.clone(), stage.time(grant));
        stand.calls.tools = scene.tools.clone();
        stand.calls.shorten = Some(context::too_long);
        stand.limit = stage.limit(grant);
        let mut run = match AgentRun::resume(stand, stage, scene, input).await {
            Ok(run) => run,
            Err(error) => return Ok(self.refuse(input, grant, control, &error).await),
        };
        let walked = run.walk().await;
        // Whichever way it goes on, nothing of this run is left here.
        run.stand.calls.background.shutdown().await;
        match walked? {
            Walked::Abandoned => Ok(Execution::Abandoned),
            Walked::HandOver => Ok(Execution::HandedOver(Box::new(run.hand_over()))),
            Walked::Park(parking) => Ok(Execution::Parked(Box::new(run.hand_over()), parking)),
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
            if self.failure.is_some() {
                return Ok(self.stand.walked());
            }
            for group in plan::groups(&self.slots) {
                if let Some(walked) = self.advance(group).await? {
                    return Ok(walked);
                }
            }
            if self.stand.killed.is_some() {
                return Ok(self.stand.walked());
            }
            let results = self.collect_results();
            if !results.is_empty() {
                self.say(MessageId::new(), Role::Tool, results);
            }
            self.take_turns();
            self.hear_background().await?;
            if self.failure.is_some() || (self.concluded && self.reported.is_empty()) {
                return Ok(self.leave());
            }
            if self.stand.control.drain.is_cancelled() {
                return Ok(Walked::HandOver);
            }
            if let Some(parking) = self.ask().await? {
                return Ok(Walked::Park(parking));
            }
        }
    }

    /// How a run is left that has nothing more to ask: its children in the background come first.
    fn leave(&self) -> Walked {
        if self.failure.is_some() || self.background.is_empty() {
            return self.stand.walked();
        }
        let children: Vec<RunId> = self.background.iter().map(|sent| sent.child.run).collect();
        // An agent without steps hears of all of them at once.
        let exhausted = self.answered >= self.scene.agent.policy.max_steps;
        let needed = if exhausted { u32::try_from(children.len()).unwrap_or(u32::MAX) } else { 1 };
        Walked::Park(Parking { children, needed, ..Parking::on(ParkReason::Children) })
    }

    /// The results of the newest answer's calls, which are over with this.
    fn collect_results(&mut self) -> Vec<Part> {
        let switched = |slot: &Slot| Some((advance::switched_to(slot)?.to_owned(), slot.call.id));
        // Results that were told before have left the slots, and their switch is remembered.
        self.successor = self.slots.iter().find_map(switched).or_else(|| self.successor.take());
        let mut parts = Vec::with_capacity(self.slots.len());
        let mut notes = Vec::new();
        for slot in std::mem::take(&mut self.slots) {
            notes.extend(decision_note(&slot));
            let Some(outcome) = slot.outcome else { continue };
            self.repeats.note(&slot.call, &outcome);
            self.outcomes.push(outcome.clone());
            parts.push(Part::ToolResult { outcome });
        }
        parts.extend(notes.into_iter().map(Part::text));
        parts
    }

    /// Lets the agent take over that a call has named.
    fn take_turns(&mut self) {
        let Some((agent, call)) = self.successor.take() else { return };
        let from = self.scene.agent.name.clone();
        match self.stand.engine.scene(&self.stage, self.stand.grant, &agent, None) {
            Ok(scene) => {
                self.stand.calls.tools = scene.tools.clone();
                self.scene = scene;
                self.answered = 0;
                self.concluded = false;
                self.with_question.push(EventBody::AgentSwitched { call, from, to: agent });
            }
            Err(error) => {
                let message = format!("{agent} cannot go on: {error}");
                self.failure = Some(Failure::new(error.code(), message));
            }
        }
    }

    /// What the rules say about a call.
    fn judge_call(&self, call: &ToolCall) -> Verdict {
        // Once a sandbox is there, agents name files as they are seen in it.
        let sandbox = self.stage.sandbox.as_ref().and_then(|sandbox| sandbox.acquired());
        let root = sandbox.and_then(|sandbox| sandbox.workspace_path());
        let root = root.unwrap_or(&self.stand.grant.workspace_root);
        let effects = self.stand.effects(&call.tool);
        let asked = Asked { tool: &call.tool, arguments: &call.arguments, effects };
        self.scene.rules.judge(self.scene.mode, root, &asked)
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
}

/// What whoever decided about a call has to say besides its result.
fn decision_note(slot: &Slot) -> Option<String> {
    let edited =
        slot.links.edited.as_ref().map(|arguments| {
            format!("The call {} was approved with other arguments: {arguments}", slot.call.id)
        });
    let said = slot.links.note.as_ref().map(|note| format!("Whoever approved {} says: {note}", slot.call.id));
    match (edited, said) {
        (None, None) => None,
        (edited, said) => Some([edited, said].into_iter().flatten().collect::<Vec<_>>().join("\n")),
    }
}
