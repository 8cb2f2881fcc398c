//! Leaves an agent's run: hands it over, ends it, or refuses it before it begins.

use remuda_dispatch::retry_until_abandoned;
use remuda_domain::{
    Error, EventBody, MessageId, RunState,
    message::{Part, Role},
    run::{Failure, MessageInput, RunEnd},
};
use remuda_store::{Grant, NewMessage};
use tokio::time::Instant;

use super::{AgentRun, run_setup, transcript};
use crate::{
    Ending, Engine, Entry, Execution, HandOver, RunControl,
    call_plan::PlannedCall,
    journal::now,
    run_context::{KillReason, RunContext, close_unfinished},
};

impl AgentRun<'_> {
    /// The content of the commit that hands the run over. Pending messages are left out, because a new owner derives
    /// them from the steps.
    pub(super) fn hand_over(mut self) -> HandOver {
        let mut entry = self.take_unsaved_entry();
        let pending_steps = self.plan.iter().filter(|planned| planned.is_done() && !planned.stored);
        entry.steps.extend(pending_steps.map(PlannedCall::to_step));
        HandOver { entry, events: self.ctx.journal.take_pending_events() }
    }

    /// Takes what a new owner cannot derive. Agent messages cannot be derived from steps; tool results and reports of
    /// children can.
    pub(super) fn take_unsaved_entry(&mut self) -> Entry {
        let from_agent = |message: &mut NewMessage| message.role == Role::Assistant;
        let from_agent: Vec<NewMessage> = self.pending_messages.extract_if(.., from_agent).collect();
        let others = std::mem::replace(&mut self.pending_messages, from_agent);
        let messages = self.take_pending_messages();
        self.pending_messages = others;
        Entry {
            steps: std::mem::take(&mut self.pending_steps),
            messages,
            spent: std::mem::take(&mut self.spent),
            ..Entry::default()
        }
    }

    /// The content of the run's last commit.
    pub(super) fn end(mut self, cancel_reason: &str) -> Ending {
        let (state, failure) = match (self.ctx.killed, self.failure.take()) {
            (Some(killed), _) => {
                let (state, failure) = self.ctx.end_of_killed(killed, cancel_reason);
                (state, Some(failure))
            }
            (None, Some(failure)) => (RunState::Failed, Some(failure)),
            (None, None) => (RunState::Completed, None),
        };
        let mut steps = std::mem::take(&mut self.pending_steps);
        steps.extend(close_unfinished(&mut self.plan, state));
        let results = self.collect_results();
        if !results.is_empty() {
            self.append_message(MessageId::new(), Role::Tool, results);
        }
        self.switch_agent();
        let switches = |event: &mut EventBody| matches!(event, EventBody::AgentSwitched { .. });
        for event in self.next_call_events.extract_if(.., switches) {
            self.ctx.journal.add_event(event);
        }
        let messages = self.take_pending_messages();
        let stopped_at = (state == RunState::Cancelled).then(|| {
            self.ctx.journal.add_event(EventBody::RunStopped);
            Instant::now()
        });
        // A delegated session keeps its agent, even if another one took over in between.
        let is_task = self.ctx.grant.depth > 0;
        let leads = is_task || self.ctx.grant.agent.as_deref() == Some(self.active.agent.name.as_str());
        Ending {
            end: RunEnd { state, outcomes: self.outcomes, failure },
            started_at: self.ctx.grant.run.started_at.unwrap_or_else(now),
            stopped_at,
            entry: Entry { steps, messages, spent: self.spent, ..Entry::default() },
            events: self.ctx.journal.take_pending_events(),
            agent: (!leads).then_some(self.active.agent.name),
        }
    }
}

impl Engine {
    /// Ends a run that has no agent to execute it. The user's message is still stored.
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
        let mut ctx = RunContext::new(self, grant, control, None, grant.time_left);
        if control.cancel.is_cancelled() {
            ctx.killed = Some(KillReason::Cancelled);
        }
        let (state, failure) = match ctx.killed {
            Some(killed) => ctx.end_of_killed(killed, &ctx.cancel_reason().await),
            None => (RunState::Failed, Failure::new(error.code(), error.to_string())),
        };
        tracing::info!(run = %grant.run.id, error = error.chain(), "run refused: it cannot begin");
        let mut messages = Vec::new();
        if run_setup::last_request(&grant.steps).is_none() && !self.is_stored(grant, control, input.id).await
        {
            let message = NewMessage {
                id: input.id,
                role: Role::User,
                agent: grant.agent.clone(),
                parts: input.parts.clone(),
            };
            add_user_message_event(&mut ctx, message.id, &message.parts, message.agent.clone());
            messages.push(message);
        }
        let steps =
            remuda_domain::step::settle(&grant.run.input, &grant.steps, state, grant.fence.epoch, now());
        Execution::Ended(Box::new(Ending {
            end: RunEnd { state, outcomes: Vec::new(), failure: Some(failure) },
            started_at: grant.run.started_at.unwrap_or_else(now),
            stopped_at: (state == RunState::Cancelled).then(Instant::now),
            entry: Entry { steps, messages, ..Entry::default() },
            events: ctx.journal.take_pending_events(),
            agent: None,
        }))
    }
}

impl Engine {
    /// Whether a message is in the transcript. Without a model call, it can only have been committed with a summary.
    async fn is_stored(&self, grant: &Grant, control: &RunControl, message: MessageId) -> bool {
        let fence = grant.fence;
        let load = || transcript::message_ids(&*self.store, fence.tenant, fence.session);
        !grant.steps.is_empty()
            && retry_until_abandoned(&control.abandon, load).await.is_ok_and(|ids| ids.contains(&message))
    }
}

fn add_user_message_event(
    ctx: &mut RunContext<'_>,
    message: MessageId,
    parts: &[Part],
    agent: Option<String>,
) {
    let parts = parts.to_vec();
    ctx.journal.add_event(EventBody::MessageCompleted { message, role: Role::User, agent, parts });
}
