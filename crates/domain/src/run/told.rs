//! What became of a run, as its events tell.

use super::{Run, RunInput, RunState};
use crate::{
    event::{Event, EventBody},
    tool::ToolOutcome,
};

impl Run {
    /// This run, which was queued, as it is when it has completed. `events` are all that happened to it since. Nothing if they tell less
    /// than the store knows: then it has to be asked.
    #[must_use]
    pub fn completed_as_told(&self, events: &[Event]) -> Option<Self> {
        let RunInput::Tools(tools) = &self.input else { return None };
        let [started, between @ .., completed] = events else { return None };
        let untouched = self.state == RunState::Queued && self.attempt == 0 && self.budget.is_none();
        let at_once = matches!(started.body, EventBody::RunStarted { attempt: 1, .. });
        if !(untouched && at_once && matches!(completed.body, EventBody::RunCompleted)) {
            return None;
        }
        let mut outcomes: Vec<&ToolOutcome> = Vec::with_capacity(tools.calls.len());
        for event in between {
            match &event.body {
                EventBody::ToolCompleted(outcome) | EventBody::ToolFailed(outcome) => outcomes.push(outcome),
                EventBody::ToolStarted { .. } => {}
                _ => return None,
            }
        }
        // Calls made together may end in another order.
        let in_order = tools.calls.iter().map(|call| {
            let outcome = outcomes.iter().find(|outcome| outcome.id == call.id)?;
            Some(ToolOutcome::clone(outcome))
        });
        Some(Self {
            state: RunState::Completed,
            attempt: 1,
            started_at: Some(started.at),
            finished_at: Some(completed.at),
            outcomes: in_order.collect::<Option<_>>()?,
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Timestamp,
        ids::{EventId, RunId, SessionId, TenantId, ToolCallId, WorkerId},
        run::{Failure, ToolsInput},
        tool::{CallStatus, ToolCall},
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_timestamp(second, 0).unwrap()
    }

    fn call() -> ToolCall {
        let arguments = serde_json::json!({});
        ToolCall { id: ToolCallId::new(), tool: "noop".to_owned(), arguments, parallel: true, timeout: None }
    }

    fn queued() -> Run {
        let calls = vec![call(), call()];
        let input = RunInput::Tools(ToolsInput { calls, continue_on_error: false, record: false });
        let line = (TenantId::new(), SessionId::new());
        Run::queued(RunId::new(), line, 1, input, Duration::from_secs(1), at(0))
    }

    fn outcome(call: &ToolCall) -> ToolOutcome {
        ToolOutcome {
            id: call.id,
            tool: call.tool.clone(),
            status: CallStatus::Completed,
            output: serde_json::json!("done"),
            failure: None,
            duration_ms: 3,
            place: None,
        }
    }

    /// The calls end in the other order than they stand in.
    fn story(run: &Run) -> Vec<EventBody> {
        let RunInput::Tools(tools) = &run.input else { panic!("a tools run") };
        let [first, second] = tools.calls.as_slice() else { panic!("two calls") };
        let started = |call: &ToolCall| EventBody::ToolStarted { call: call.id, tool: call.tool.clone() };
        vec![
            EventBody::RunStarted { attempt: 1, worker: WorkerId::new() },
            started(first),
            started(second),
            EventBody::ToolCompleted(outcome(second)),
            EventBody::ToolFailed(outcome(first)),
            EventBody::RunCompleted,
        ]
    }

    fn told(run: &Run, bodies: Vec<EventBody>) -> Option<Run> {
        let event = |(cursor, body)| Event {
            id: EventId::new(),
            session: run.session,
            cursor,
            run: Some(run.id),
            at: at(cursor),
            body,
        };
        let events: Vec<Event> = (2..).zip(bodies).map(event).collect();
        run.completed_as_told(&events)
    }

    #[test]
    fn a_whole_story_makes_the_run() {
        let run = queued();
        let RunInput::Tools(tools) = &run.input else { panic!("a tools run") };
        let expected = Run {
            state: RunState::Completed,
            attempt: 1,
            started_at: Some(at(2)),
            finished_at: Some(at(7)),
            outcomes: tools.calls.iter().map(outcome).collect(),
            ..run.clone()
        };
        assert_eq!(told(&run, story(&run)), Some(expected));
    }

    #[test]
    fn a_story_with_a_gap_or_a_turn_makes_none() {
        let run = queued();
        let with = |change: fn(&mut Vec<EventBody>)| {
            let mut story = story(&run);
            change(&mut story);
            told(&run, story)
        };
        assert_eq!(with(|story| drop(story.remove(0))), None, "its start was told before");
        assert_eq!(with(|story| drop(story.remove(3))), None, "so was an outcome");
        assert_eq!(with(|story| drop(story.pop())), None, "it goes on");
        assert_eq!(with(|story| story.insert(3, EventBody::RunStopped)), None);
        let again = EventBody::RunStarted { attempt: 2, worker: WorkerId::new() };
        let mut resumed = story(&run);
        resumed[0] = again;
        assert_eq!(told(&run, resumed), None);
        let mut failed = story(&run);
        let failure = Failure { code: "tool_failed".to_owned(), message: "no".to_owned() };
        *failed.last_mut().unwrap() = EventBody::RunFailed(failure);
        assert_eq!(told(&run, failed), None, "calls that were not come to are told by nobody");
        let running = Run { state: RunState::Running, attempt: 1, ..run.clone() };
        assert_eq!(told(&running, story(&running)), None);
    }
}
