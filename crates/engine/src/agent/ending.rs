//! How a run of an agent is left: handed over, ended, or refused before it began.

use remuda_domain::{
    Error, EventBody, MessageId, RunState,
    message::{Part, Role},
    run::{Failure, MessageInput, RunEnd},
};
use remuda_store::{Grant, NewMessage};
use tokio::time::Instant;

use super::{AgentRun, scene, transcript};
use crate::{
    Ending, Engine, Entry, Execution, HandOver, RunControl,
    journal::now,
    patiently,
    plan::Slot,
    stand::{Killed, Stand, close_slots},
};

impl AgentRun<'_> {
    /// What the commit holds that hands the run over. Messages that wait for their commit are made again from the steps.
    pub(super) fn hand_over(mut self) -> HandOver {
        let mut entry = self.take_unsaved();
        let unsaved = self.slots.iter().filter(|slot| slot.is_done() && !slot.stored);
        entry.steps.extend(unsaved.map(Slot::to_step));
        HandOver { entry, events: self.stand.journal.take_notes() }
    }

    /// Takes what whoever goes on could not find out: what an agent said is not made again from steps, as are results of calls
    /// and what is told of children.
    pub(super) fn take_unsaved(&mut self) -> Entry {
        let spoken = |message: &mut NewMessage| message.role == Role::Assistant;
        let spoken: Vec<NewMessage> = self.pending.extract_if(.., spoken).collect();
        let others = std::mem::replace(&mut self.pending, spoken);
        let messages = self.take_pending();
        self.pending = others;
        Entry {
            steps: std::mem::take(&mut self.unsaved),
            messages,
            spent: std::mem::take(&mut self.spent),
            ..Entry::default()
        }
    }

    /// What the run's last commit holds.
    pub(super) fn end(mut self, cancel_reason: &str) -> Ending {
        let (state, failure) = match (self.stand.killed, self.failure.take()) {
            (Some(killed), _) => {
                let (state, failure) = self.stand.killed_end(killed, cancel_reason);
                (state, Some(failure))
            }
            (None, Some(failure)) => (RunState::Failed, Some(failure)),
            (None, None) => (RunState::Completed, None),
        };
        let mut steps = std::mem::take(&mut self.unsaved);
        steps.extend(close_slots(&mut self.slots, state));
        let results = self.collect_results();
        if !results.is_empty() {
            self.say(MessageId::new(), Role::Tool, results);
        }
        self.take_turns();
        let switches = |event: &mut EventBody| matches!(event, EventBody::AgentSwitched { .. });
        for event in self.with_question.extract_if(.., switches) {
            self.stand.journal.note(event);
        }
        let messages = self.take_pending();
        let stopped_at = (state == RunState::Cancelled).then(|| {
            self.stand.journal.note(EventBody::RunStopped);
            Instant::now()
        });
        // A task stays with whom it was given to, whoever had a hand in it.
        let is_task = self.stand.grant.depth > 0;
        let leads = is_task || self.stand.grant.agent.as_deref() == Some(self.scene.agent.name.as_str());
        Ending {
            end: RunEnd { state, outcomes: self.outcomes, failure },
            started_at: self.stand.grant.run.started_at.unwrap_or_else(now),
            stopped_at,
            entry: Entry { steps, messages, spent: self.spent, ..Entry::default() },
            events: self.stand.journal.take_notes(),
            agent: (!leads).then_some(self.scene.agent.name),
        }
    }
}

impl Engine {
    /// Ends a run that nobody can act in. What the user said is kept: it was said.
    pub(super) async fn refuse(
        &self,
        input: &MessageInput,
        grant: &Grant,
        control: &RunControl,
        error: &Error,
    ) -> Execution {
        if control.abandon.is_cancelled() {
            return Execution::Abandoned;
        }
        let mut stand = Stand::new(self, grant, control, None, grant.time_left);
        if control.cancel.is_cancelled() {
            stand.killed = Some(Killed::Cancelled);
        }
        let (state, failure) = match stand.killed {
            Some(killed) => stand.killed_end(killed, &stand.cancel_reason().await),
            None => (RunState::Failed, Failure::new(error.code(), error.to_string())),
        };
        tracing::info!(run = %grant.run.id, error = error.chain(), "the run cannot begin");
        let mut messages = Vec::new();
        if scene::last_request(&grant.steps).is_none() && !self.was_said(grant, control, input.id).await {
            let message = NewMessage {
                id: input.id,
                role: Role::User,
                agent: grant.agent.clone(),
                parts: input.parts.clone(),
            };
            note(&mut stand, message.id, &message.parts, message.agent.clone());
            messages.push(message);
        }
        let steps =
            remuda_domain::step::settle(&grant.run.input, &grant.steps, state, grant.fence.epoch, now());
        Execution::Ended(Box::new(Ending {
            end: RunEnd { state, outcomes: Vec::new(), failure: Some(failure) },
            started_at: grant.run.started_at.unwrap_or_else(now),
            stopped_at: (state == RunState::Cancelled).then(Instant::now),
            entry: Entry { steps, messages, ..Entry::default() },
            events: stand.journal.take_notes(),
            agent: None,
        }))
    }
}

impl Engine {
    /// Whether a message is in the transcript. Without a question that can only have come with a summary.
    async fn was_said(&self, grant: &Grant, control: &RunControl, message: MessageId) -> bool {
        let fence = grant.fence;
        let load = || transcript::ids_of(&*self.store, fence.tenant, fence.session);
        !grant.steps.is_empty()
            && patiently(&control.abandon, load).await.is_ok_and(|ids| ids.contains(&message))
    }
}

fn note(stand: &mut Stand<'_>, message: MessageId, parts: &[Part], agent: Option<String>) {
    let parts = parts.to_vec();
    stand.journal.note(EventBody::MessageCompleted { message, role: Role::User, agent, parts });
}
