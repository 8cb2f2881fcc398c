use std::time::Duration;

use chrono::TimeDelta;
use remuda_domain::{
    EventId, MessageId, RunId, RunInput, RunState, StepId, TenantId, WorkerId,
    budget::Total,
    ids::ToolCallId,
    message::Part,
    run::MessageInput,
    step::{CallLinks, StepWork},
    tool::ToolCall,
};

use super::*;
use crate::attributes;

pub(crate) fn at(ms: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + TimeDelta::milliseconds(ms)
}

pub(crate) fn run(state: RunState, finished: Option<i64>) -> Run {
    let parts = vec![Part::text("go")];
    Run {
        id: RunId::new(),
        tenant: TenantId::new(),
        session: SessionId::new(),
        seq: 1,
        state,
        input: RunInput::Message(MessageInput { id: MessageId::new(), parts, agent: None }),
        timeout: Duration::from_secs(60),
        attempt: 1,
        lost_attempts: 0,
        created_at: at(0),
        started_at: Some(at(10)),
        finished_at: finished.map(at),
        outcomes: Vec::new(),
        answer: None,
        failure: None,
        cancel: None,
        parked: None,
        parent: None,
        spent: Total::default(),
        budget: None,
        paused: Duration::ZERO,
        idempotency_key: None,
        traceparent: None,
        awaited_by: None,
    }
}

fn told(run: &Run, bodies: &[(i64, EventBody)]) -> Vec<Event> {
    let event = |(cursor, (ms, body)): (i64, &(i64, EventBody))| Event {
        id: EventId::new(),
        cursor,
        session: run.session,
        run: Some(run.id),
        at: at(*ms),
        body: body.clone(),
    };
    (1..).zip(bodies).map(event).collect()
}

/// Names with where they begin and end, in milliseconds.
fn outline(chapters: &[Chapter]) -> Vec<(String, i64, i64, bool)> {
    let ms = |at: Timestamp| at.timestamp_millis();
    let line = |it: &Chapter| (it.span.name.to_string(), ms(it.span.start), ms(it.span.end), it.open);
    let mut lines: Vec<_> = chapters.iter().map(line).collect();
    lines.sort_by_key(|(name, start, ..)| (*start, name.clone()));
    lines
}

#[test]
fn a_life_with_a_loss_and_a_wait_is_told_without_a_gap() {
    let run = run(RunState::Completed, Some(100));
    let worker = WorkerId::new();
    let events = told(
        &run,
        &[
            (10, EventBody::RunStarted { attempt: 1, worker }),
            (30, EventBody::RunAttemptLost { attempts: 1, worker }),
            (40, EventBody::RunStarted { attempt: 2, worker }),
            (50, EventBody::RunParked { reason: ParkReason::Approval }),
            (70, EventBody::RunResumed),
            (80, EventBody::RunStarted { attempt: 3, worker }),
            (100, EventBody::RunCompleted),
        ],
    );
    let chapters = history(&run, &[], &events, at(500));
    let line = |name: &str, start, end| (name.to_owned(), start, end, false);
    assert_eq!(
        outline(&chapters),
        [
            line("run message", 0, 100),
            line("wait in queue", 0, 10),
            line("attempt", 10, 30),
            line("wait in queue", 30, 40),
            line("attempt", 40, 50),
            line("wait for approval", 50, 70),
            line("wait in queue", 70, 80),
            line("attempt", 80, 100),
        ]
    );
    let mut ids: Vec<_> = chapters.iter().map(|it| it.span.context.span).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), chapters.len(), "every span has an id of its own");
}

#[test]
fn what_goes_on_is_open() {
    let run = run(RunState::Running, None);
    let events = told(&run, &[(10, EventBody::RunStarted { attempt: 1, worker: WorkerId::new() })]);
    let open: Vec<(String, bool)> =
        history(&run, &[], &events, at(500)).iter().map(|it| (it.span.name.to_string(), it.open)).collect();
    let expected = [("run message", true), ("wait in queue", false), ("attempt", true)];
    assert_eq!(open, expected.map(|(name, open)| (name.to_owned(), open)));
}

/// Retention may have taken the events of a run; its steps and its own row are left. Nobody invents a wait to the end.
#[test]
fn without_events_there_is_still_the_run() {
    let line = |name: &str, start, end| (name.to_owned(), start, end, false);
    let ended = run(RunState::Completed, Some(100));
    let expected = [line("run message", 0, 100), line("wait in queue", 0, 10)];
    assert_eq!(outline(&history(&ended, &[], &[], at(500))), expected);
    let never = Run { started_at: None, ..run(RunState::Cancelled, Some(100)) };
    let expected = [line("run message", 0, 100), line("wait in queue", 0, 100)];
    assert_eq!(outline(&history(&never, &[], &[], at(500))), expected);
}

/// The second attempt of a run is seldom the second ownership of its session.
#[test]
fn an_attempt_has_the_epoch_of_its_steps() {
    let run = run(RunState::Completed, Some(100));
    let worker = WorkerId::new();
    let events = told(
        &run,
        &[
            (10, EventBody::RunStarted { attempt: 1, worker }),
            (30, EventBody::RunHandedOver { worker }),
            (40, EventBody::RunStarted { attempt: 2, worker }),
            (100, EventBody::RunCompleted),
        ],
    );
    let (id, arguments) = (ToolCallId::new(), serde_json::Value::Null);
    let call = ToolCall { id, tool: "Bash".into(), arguments, parallel: false, timeout: None };
    let links = CallLinks::default();
    let step = Step {
        id: StepId::new(),
        index: 0,
        work: StepWork::ToolCall { call, outcome: None, links },
        started_at: at(50),
        finished_at: None,
        epoch: 17,
    };
    let chapters = history(&run, &[step], &events, at(500));
    let attempts: Vec<_> = chapters.iter().filter(|it| it.span.name == "attempt").collect();
    let epoch = |chapter: &Chapter| {
        let mut attributes = chapter.span.attributes.iter();
        attributes.find(|it| it.key.as_str() == attributes::EPOCH).map(|it| it.value.to_string())
    };
    assert_eq!((epoch(attempts[0]), epoch(attempts[1])), (None, Some("17".into())));
    assert_eq!(attempts[1].span.context.span, SpanId::of_attempt(run.id, 17));
}
