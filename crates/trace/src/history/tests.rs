use std::time::Duration;

use chrono::TimeDelta;
use remuda_domain::{
    EventId, MessageId, RunId, RunInput, RunState, StepId, TenantId, WorkerId,
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
    let input = RunInput::Message(MessageInput { id: MessageId::new(), parts, agent: None });
    let line = (TenantId::new(), SessionId::new());
    Run {
        seq: 1,
        state,
        attempt: 1,
        created_at: at(0),
        started_at: Some(at(10)),
        finished_at: finished.map(at),
        ..Run::queued(RunId::new(), line, input, Duration::from_secs(60))
    }
}

fn events(run: &Run, bodies: &[(i64, EventBody)]) -> Vec<Event> {
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

/// Names of spans with start and end in milliseconds, and whether they are open.
fn outline(spans: &[HistorySpan]) -> Vec<(String, i64, i64, bool)> {
    let ms = |at: Timestamp| at.timestamp_millis();
    let line = |it: &HistorySpan| (it.span.name.to_string(), ms(it.span.start), ms(it.span.end), it.open);
    let mut lines: Vec<_> = spans.iter().map(line).collect();
    lines.sort_by_key(|(name, start, ..)| (*start, name.clone()));
    lines
}

#[test]
fn spans_of_a_run_with_a_lost_attempt_and_a_wait_leave_no_gap() {
    let run = run(RunState::Completed, Some(100));
    let worker = WorkerId::new();
    let events = events(
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
    let spans = history(&run, &[], &events, at(500));
    let line = |name: &str, start, end| (name.to_owned(), start, end, false);
    assert_eq!(
        outline(&spans),
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
    let mut ids: Vec<_> = spans.iter().map(|it| it.span.context.span).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), spans.len(), "every span has an id of its own");
}

#[test]
fn spans_of_a_running_run_are_open() {
    let run = run(RunState::Running, None);
    let events = events(&run, &[(10, EventBody::RunStarted { attempt: 1, worker: WorkerId::new() })]);
    let open: Vec<(String, bool)> =
        history(&run, &[], &events, at(500)).iter().map(|it| (it.span.name.to_string(), it.open)).collect();
    let expected = [("run message", true), ("wait in queue", false), ("attempt", true)];
    assert_eq!(open, expected.map(|(name, open)| (name.to_owned(), open)));
}

/// The events of a run may have been trimmed, and only its steps and its own row are left. The queue wait must not last
/// to the end.
#[test]
fn run_without_events_has_its_own_span_and_its_queue_wait() {
    let line = |name: &str, start, end| (name.to_owned(), start, end, false);
    let ended = run(RunState::Completed, Some(100));
    let expected = [line("run message", 0, 100), line("wait in queue", 0, 10)];
    assert_eq!(outline(&history(&ended, &[], &[], at(500))), expected);
    let never = Run { started_at: None, ..run(RunState::Cancelled, Some(100)) };
    let expected = [line("run message", 0, 100), line("wait in queue", 0, 100)];
    assert_eq!(outline(&history(&never, &[], &[], at(500))), expected);
}

/// The number of an attempt is seldom the epoch of its session.
#[test]
fn attempt_has_the_epoch_of_its_steps() {
    let run = run(RunState::Completed, Some(100));
    let worker = WorkerId::new();
    let events = events(
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
    let spans = history(&run, &[step], &events, at(500));
    let attempts: Vec<_> = spans.iter().filter(|it| it.span.name == "attempt").collect();
    let epoch = |span: &HistorySpan| {
        let mut attributes = span.span.attributes.iter();
        attributes.find(|it| it.key.as_str() == attributes::EPOCH).map(|it| it.value.to_string())
    };
    assert_eq!((epoch(attempts[0]), epoch(attempts[1])), (None, Some("17".into())));
    assert_eq!(attempts[1].span.context.span, SpanId::of_attempt(run.id, 17));
}
