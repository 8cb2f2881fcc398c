//! What became of a run, as its events tell.

use serde::{Deserialize, Serialize};

use super::{Run, RunInput, RunState};
use crate::{
    Timestamp,
    event::{Event, EventBody},
    ids::RunId,
    tool::ToolOutcome,
};

/// What the commit that ended a run tells of it, for those who wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastWords {
    pub run: RunId,
    /// All that is to know of it. Missing if the store knows more: then that has to be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<Completion>,
}

/// A run that was executed at once and completed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    /// In the order in which they came: calls made together may end in another order than they stand in.
    pub outcomes: Vec<ToolOutcome>,
}

impl LastWords {
    /// What a commit tells of a run with its events, if it ended it.
    #[must_use]
    pub fn of<'a>(run: RunId, events: impl IntoIterator<Item = &'a Event>) -> Option<Self> {
        let its: Vec<&Event> = events.into_iter().filter(|event| event.run == Some(run)).collect();
        let ended = its.iter().any(|event| event.body.terminal_state().is_some());
        ended.then(|| Self { run, completed: Completion::of(&its) })
    }
}

impl Completion {
    fn of(events: &[&Event]) -> Option<Self> {
        let [started, between @ .., completed] = events else { return None };
        let at_once = matches!(started.body, EventBody::RunStarted { attempt: 1, .. });
        if !(at_once && matches!(completed.body, EventBody::RunCompleted)) {
            return None;
        }
        let mut outcomes = Vec::new();
        for event in between {
            match &event.body {
                EventBody::ToolCompleted(outcome) | EventBody::ToolFailed(outcome) => {
                    outcomes.push(outcome.clone());
                }
                EventBody::ToolStarted { .. } => {}
                _ => return None,
            }
        }
        Some(Self { started_at: started.at, finished_at: completed.at, outcomes })
    }
}

impl Run {
    /// This run, which was queued, as it is when it has completed. Nothing if its last words tell less than the store knows.
    #[must_use]
    pub fn completed_as_told(&self, words: &LastWords) -> Option<Self> {
        let RunInput::Tools(tools) = &self.input else { return None };
        let untouched = self.state == RunState::Queued && self.attempt == 0 && self.budget.is_none();
        let told = words.completed.as_ref().filter(|_| untouched && words.run == self.id)?;
        let in_order = tools.calls.iter().map(|call| {
            let outcome = told.outcomes.iter().find(|outcome| outcome.id == call.id)?;
            Some(ToolOutcome::clone(outcome))
        });
        Some(Self {
            state: RunState::Completed,
            attempt: 1,
            started_at: Some(told.started_at),
            finished_at: Some(told.finished_at),
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
        ids::{EventId, SessionId, TenantId, ToolCallId, WorkerId},
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
        run.completed_as_told(&LastWords::of(run.id, &events)?)
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
    fn last_words_are_of_one_run_that_ended() {
        let (run, other) = (queued(), queued());
        let event = |run: &Run, body| Event {
            id: EventId::new(),
            session: run.session,
            cursor: 1,
            run: Some(run.id),
            at: at(1),
            body,
        };
        let mut events: Vec<Event> = story(&other).into_iter().map(|body| event(&other, body)).collect();
        assert_eq!(LastWords::of(run.id, &events), None, "nothing is told of it");
        events.extend(story(&run).into_iter().map(|body| event(&run, body)));
        let words = LastWords::of(run.id, &events).unwrap();
        assert_eq!(words.completed.as_ref().unwrap().outcomes.len(), 2);
        assert_eq!(other.completed_as_told(&words), None, "they are another one's");
        let back: LastWords = serde_json::from_str(&serde_json::to_string(&words).unwrap()).unwrap();
        assert_eq!(back, words);
        let stopped = event(&run, EventBody::RunCancelled { reason: "enough".to_owned() });
        let words = LastWords::of(run.id, [&stopped]);
        assert_eq!(words, Some(LastWords { run: run.id, completed: None }), "the store knows more");
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
