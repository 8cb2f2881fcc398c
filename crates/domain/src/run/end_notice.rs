//! The end notice of a run, derived from the events of the commit that ended it.

use serde::{Deserialize, Serialize};

use super::{Run, RunInput, RunState};
use crate::{
    Timestamp,
    event::{Event, EventBody},
    ids::RunId,
    tool::ToolOutcome,
};

/// Notice that a run has ended, for the control plane whose client waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEndNotice {
    pub run: RunId,
    /// The complete result. `None` if only the store has it: then it has to be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<Completion>,
}

/// Result of a run that was executed in one commit and completed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    /// In the order in which the calls ended, which may differ from their order in the input.
    pub outcomes: Vec<ToolOutcome>,
}

impl RunEndNotice {
    /// The notice for a run, if these events of one commit end it.
    #[must_use]
    pub fn from_events<'a>(run: RunId, events: impl IntoIterator<Item = &'a Event>) -> Option<Self> {
        let run_events: Vec<&Event> = events.into_iter().filter(|event| event.run == Some(run)).collect();
        let ended = run_events.iter().any(|event| event.body.terminal_state().is_some());
        ended.then(|| Self { run, completed: Completion::from_events(&run_events) })
    }
}

impl Completion {
    fn from_events(events: &[&Event]) -> Option<Self> {
        let [started, between @ .., completed] = events else { return None };
        let first_attempt = matches!(started.body, EventBody::RunStarted { attempt: 1, .. });
        if !(first_attempt && matches!(completed.body, EventBody::RunCompleted)) {
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
    /// This queued run as it is after its completion. `None` if the notice has less than the store.
    #[must_use]
    pub fn completed_from_notice(&self, notice: &RunEndNotice) -> Option<Self> {
        let RunInput::Tools(tools) = &self.input else { return None };
        let untouched = self.state == RunState::Queued && self.attempt == 0 && self.budget.is_none();
        let completion = notice.completed.as_ref().filter(|_| untouched && notice.run == self.id)?;
        let in_order = tools.calls.iter().map(|call| {
            let outcome = completion.outcomes.iter().find(|outcome| outcome.id == call.id)?;
            Some(ToolOutcome::clone(outcome))
        });
        Some(Self {
            state: RunState::Completed,
            attempt: 1,
            started_at: Some(completion.started_at),
            finished_at: Some(completion.finished_at),
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
        let owner = (TenantId::new(), SessionId::new());
        Run { created_at: at(0), ..Run::queued(RunId::new(), owner, input, Duration::from_secs(1)) }
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

    /// Events of a completed run. The calls end in reverse order.
    fn completed_events(run: &Run) -> Vec<EventBody> {
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

    fn run_after(run: &Run, bodies: Vec<EventBody>) -> Option<Run> {
        let event = |(cursor, body)| Event {
            id: EventId::new(),
            session: run.session,
            cursor,
            run: Some(run.id),
            at: at(cursor),
            body,
        };
        let events: Vec<Event> = (2..).zip(bodies).map(event).collect();
        run.completed_from_notice(&RunEndNotice::from_events(run.id, &events)?)
    }

    #[test]
    fn notice_with_all_events_yields_the_completed_run() {
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
        assert_eq!(run_after(&run, completed_events(&run)), Some(expected));
    }

    #[test]
    fn notice_is_only_for_the_run_that_ended() {
        let (run, other) = (queued(), queued());
        let event = |run: &Run, body| Event {
            id: EventId::new(),
            session: run.session,
            cursor: 1,
            run: Some(run.id),
            at: at(1),
            body,
        };
        let mut events: Vec<Event> =
            completed_events(&other).into_iter().map(|body| event(&other, body)).collect();
        assert_eq!(RunEndNotice::from_events(run.id, &events), None, "the run has no events");
        events.extend(completed_events(&run).into_iter().map(|body| event(&run, body)));
        let notice = RunEndNotice::from_events(run.id, &events).unwrap();
        assert_eq!(notice.completed.as_ref().unwrap().outcomes.len(), 2);
        assert_eq!(other.completed_from_notice(&notice), None, "the notice is for another run");
        let back: RunEndNotice = serde_json::from_str(&serde_json::to_string(&notice).unwrap()).unwrap();
        assert_eq!(back, notice);
        let stopped = event(&run, EventBody::RunCancelled { reason: "enough".to_owned() });
        let notice = RunEndNotice::from_events(run.id, [&stopped]);
        assert_eq!(notice, Some(RunEndNotice { run: run.id, completed: None }), "the store has more");
    }

    #[test]
    fn notice_with_missing_or_other_events_yields_no_run() {
        let run = queued();
        let with = |change: fn(&mut Vec<EventBody>)| {
            let mut bodies = completed_events(&run);
            change(&mut bodies);
            run_after(&run, bodies)
        };
        assert_eq!(with(|bodies| drop(bodies.remove(0))), None, "its start was committed before");
        assert_eq!(with(|bodies| drop(bodies.remove(3))), None, "so was an outcome");
        assert_eq!(with(|bodies| drop(bodies.pop())), None, "it has not ended");
        assert_eq!(with(|bodies| bodies.insert(3, EventBody::RunStopped)), None);
        let again = EventBody::RunStarted { attempt: 2, worker: WorkerId::new() };
        let mut resumed = completed_events(&run);
        resumed[0] = again;
        assert_eq!(run_after(&run, resumed), None);
        let mut failed = completed_events(&run);
        let failure = Failure { code: "tool_failed".to_owned(), message: "no".to_owned() };
        *failed.last_mut().unwrap() = EventBody::RunFailed(failure);
        assert_eq!(run_after(&run, failed), None, "calls that were never started have no events");
        let running = Run { state: RunState::Running, attempt: 1, ..run.clone() };
        assert_eq!(run_after(&running, completed_events(&running)), None);
    }
}
