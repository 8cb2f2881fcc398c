//! The way of a `tools` run: a given list of calls.

use remuda_domain::{
    Code, EventBody, MessageId, RunState,
    error::Result,
    message::{Part, Role},
    run::{Failure, RunEnd, ToolsInput},
    tool::{CallStatus, ToolOutcome},
};
use remuda_store::{Grant, NewMessage};
use tokio::time::Instant;

use crate::{
    Ending, Engine, Entry, Execution, HandOver, RunControl,
    journal::now,
    plan::{self, Slot},
    stand::{Stand, Walked, close_slots},
};

/// A run on its way.
struct Way<'a> {
    input: &'a ToolsInput,
    stand: Stand<'a>,
    slots: Vec<Slot>,
    interrupted: Vec<usize>,
    /// Why the run can execute nowhere.
    refused: Option<Failure>,
}

impl Engine {
    /// Fails only when the journal cannot be written: the session is lost, or the store refuses what the run wants to write.
    pub(crate) async fn tools_run(
        &self,
        input: &ToolsInput,
        grant: &Grant,
        control: &RunControl,
    ) -> Result<Execution> {
        let needs = |name: &str| self.tools.get(name).is_some_and(|tool| tool.needs_sandbox());
        let needed = input.calls.iter().any(|call| needs(&call.tool));
        let (sandbox, refused) = match self.place(grant, &grant.execution, needed).await {
            Ok(sandbox) => (Some(sandbox), None),
            Err(error) => (None, Some(Failure::new(error.code(), error.to_string()))),
        };
        let stand = Stand::new(self, grant, control, sandbox, grant.time_left);
        let (slots, interrupted) =
            plan::resume(&input.calls, &grant.steps, 0, grant.fence.epoch, |tool| stand.effects(tool));
        let mut way = Way { input, stand, slots, interrupted, refused };
        let walked = way.walk().await;
        // Whichever way it goes on, nothing of this run is left here.
        way.stand.calls.background.shutdown().await;
        match walked? {
            Walked::Abandoned => Ok(Execution::Abandoned),
            Walked::HandOver => Ok(Execution::HandedOver(Box::new(way.hand_over()))),
            Walked::Park(parking) => Ok(Execution::Parked(Box::new(way.hand_over()), parking)),
            Walked::ToTheEnd => {
                let reason = way.stand.cancel_reason().await;
                Ok(Execution::Ended(Box::new(way.end(&reason))))
            }
        }
    }
}

impl Way<'_> {
    /// Executes what is left of the calls, group by group.
    async fn walk(&mut self) -> Result<Walked> {
        self.stand.report_interrupted(&mut self.slots, &self.interrupted).await?;
        for group in plan::groups(&self.slots) {
            let todo: Vec<usize> = group.filter(|index| !self.slots[*index].is_done()).collect();
            if todo.is_empty() {
                continue;
            }
            if self.is_over() {
                break;
            }
            if self.stand.control.drain.is_cancelled() {
                return Ok(Walked::HandOver);
            }
            // The run's very last call is committed with its end.
            let is_last = self.slots.iter().filter(|slot| !slot.is_done()).count() == todo.len();
            self.stand.run_group(&mut self.slots, &todo, is_last).await?;
        }
        Ok(self.stand.walked())
    }

    /// Nothing more is to be started.
    fn is_over(&self) -> bool {
        self.stand.killed.is_some() || self.refused.is_some() || self.failure().is_some()
    }

    /// The failed call that fails the run, if there is one. An interrupted call has a result: that nobody knows.
    fn failure(&self) -> Option<&ToolOutcome> {
        if self.input.continue_on_error {
            return None;
        }
        let mut outcomes = self.slots.iter().filter_map(|slot| slot.outcome.as_ref());
        outcomes.find(|outcome| matches!(outcome.status, CallStatus::Failed | CallStatus::TimedOut))
    }

    /// What the commit holds that hands the run over.
    fn hand_over(mut self) -> HandOver {
        let unsaved = self.slots.iter().filter(|slot| slot.is_done() && !slot.stored);
        HandOver {
            entry: Entry::steps(unsaved.map(Slot::to_step).collect()),
            events: self.stand.journal.take_notes(),
        }
    }

    /// What the run's last commit holds.
    fn end(mut self, cancel_reason: &str) -> Ending {
        let (state, failure) = match (self.stand.killed, self.failure()) {
            (Some(killed), _) => {
                let (state, failure) = self.stand.killed_end(killed, cancel_reason);
                (state, Some(failure))
            }
            (None, _) if self.refused.is_some() => (RunState::Failed, self.refused.take()),
            (None, Some(outcome)) => (RunState::Failed, Some(run_failure(outcome))),
            (None, None) => (RunState::Completed, None),
        };
        let steps = close_slots(&mut self.slots, state);
        let outcomes: Vec<ToolOutcome> = self.slots.iter().filter_map(|slot| slot.outcome.clone()).collect();
        let messages = if self.input.record { transcript(&self.slots) } else { Vec::new() };
        let journal = &mut self.stand.journal;
        for message in &messages {
            journal.note(EventBody::MessageCompleted {
                message: message.id,
                role: message.role,
                agent: None,
                parts: message.parts.clone(),
            });
        }
        let stopped_at = (state == RunState::Cancelled).then(|| {
            journal.note(EventBody::RunStopped);
            Instant::now()
        });
        Ending {
            end: RunEnd { state, outcomes, failure },
            started_at: self.stand.grant.run.started_at.unwrap_or_else(now),
            stopped_at,
            entry: Entry { steps, messages, ..Entry::default() },
            events: journal.take_notes(),
            agent: None,
        }
    }
}

fn run_failure(outcome: &ToolOutcome) -> Failure {
    let cause = outcome.failure.as_ref().map_or("no reason given", |failure| failure.message.as_str());
    let code = if outcome.status == CallStatus::TimedOut { Code::ToolTimedOut } else { Code::ToolFailed };
    Failure::new(code, format!("{} failed: {cause}", outcome.tool))
}

/// The calls and their results as one message, which agents of the session will see.
fn transcript(slots: &[Slot]) -> Vec<NewMessage> {
    let uses = slots.iter().map(|slot| Part::ToolUse { call: slot.call.clone() });
    let results = slots.iter().filter_map(|slot| slot.outcome.clone());
    let parts = uses.chain(results.map(|outcome| Part::ToolResult { outcome })).collect();
    vec![NewMessage { id: MessageId::new(), role: Role::Tool, agent: None, parts }]
}
