//! The recorded events of the demo and what is derived from them.
//!
//! All data comes from the events that clients received, with the order and the times of the events.

use std::time::Duration;

use remuda_client::terminal_state;
use remuda_domain::{RunState, Timestamp};
use remuda_proto::{convert, v1};
use serde_json::Value;

use super::{
    scenario::SessionPlan,
    timeline::{Row, Span, SpanKind},
};

/// The recorded events of one session.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionLog {
    /// `tenant/session`.
    pub title: String,
    /// Its runs in the order of submission.
    pub runs: Vec<SubmittedRun>,
    /// Events received live.
    pub events: Vec<v1::Event>,
    /// Events received by a late reader.
    pub replayed: Vec<v1::Event>,
    /// The newest cursor according to the server.
    pub last_cursor: i64,
}

/// A run that the server accepted.
#[derive(Clone, Debug)]
pub(super) struct SubmittedRun {
    pub id: String,
    /// The expected end state.
    pub expected_state: RunState,
}

/// One run, derived from its events.
#[derive(Clone, Debug, Default)]
pub(super) struct RunTrace {
    pub queued: Option<Timestamp>,
    pub started: Option<Timestamp>,
    /// The cursor of its start event, for the order of starts within the session.
    pub started_cursor: Option<i64>,
    pub finished: Option<Timestamp>,
    /// All terminal events; there must be exactly one.
    pub ends: Vec<RunState>,
    pub failure_code: Option<String>,
    pub calls: Vec<CallTrace>,
}

/// When a call executed, from the time of its end event and its duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallTrace {
    pub id: String,
    pub from: Timestamp,
    pub to: Timestamp,
    pub failure_code: Option<String>,
}

/// When an event happened.
pub(super) fn at(event: &v1::Event) -> Option<Timestamp> {
    event.at.as_ref().and_then(convert::from_timestamp)
}

/// The data of an event; `null` if it has none.
pub(super) fn data(event: &v1::Event) -> Value {
    serde_json::from_str(&event.data).unwrap_or_default()
}

impl RunTrace {
    pub(super) fn of(events: &[v1::Event], run: &str) -> Self {
        let mut trace = Self::default();
        for event in events.iter().filter(|event| event.run_id == run) {
            trace.add(event);
        }
        trace
    }

    fn add(&mut self, event: &v1::Event) {
        let code = |value: &Value| value["code"].as_str().map(str::to_owned);
        if let Some(state) = terminal_state(event) {
            self.finished = at(event);
            self.ends.push(state);
            self.failure_code = code(&data(event));
            return;
        }
        match event.r#type.as_str() {
            "run.queued" => self.queued = at(event),
            // A run that another worker takes over starts again; the first start counts.
            "run.started" if self.started.is_none() => {
                (self.started, self.started_cursor) = (at(event), Some(event.cursor));
            }
            "tool.completed" | "tool.failed" => {
                let (Some(to), data) = (at(event), data(event)) else { return };
                let took = Duration::from_millis(data["duration_ms"].as_u64().unwrap_or_default());
                self.calls.push(CallTrace {
                    id: data["id"].as_str().unwrap_or_default().to_owned(),
                    from: to - took,
                    to,
                    failure_code: code(&data["failure"]),
                });
            }
            _ => {}
        }
    }

    /// From start to end, if both were received.
    pub(super) fn span(&self) -> Option<(Timestamp, Timestamp)> {
        self.started.zip(self.finished)
    }
}

impl SessionLog {
    pub(super) fn trace(&self, run: usize) -> RunTrace {
        self.runs.get(run).map(|run| RunTrace::of(&self.events, &run.id)).unwrap_or_default()
    }

    pub(super) fn traces(&self) -> Vec<RunTrace> {
        self.runs.iter().map(|run| RunTrace::of(&self.events, &run.id)).collect()
    }
}

/// When the first run was accepted; the left edge of the timeline.
pub(super) fn first_queued_at(logs: &[SessionLog]) -> Option<Timestamp> {
    let events = logs.iter().flat_map(|log| &log.events);
    events.filter(|event| event.r#type == "run.queued").filter_map(at).min()
}

/// The rows of the timeline: every session, and below it its parallel calls.
pub(super) fn rows(plans: &[SessionPlan], logs: &[SessionLog]) -> Vec<Row> {
    let Some(zero) = first_queued_at(logs) else { return Vec::new() };
    let since = |at: Timestamp| (at - zero).to_std().unwrap_or_default();
    let mut rows = Vec::new();
    for (session, (plan, log)) in plans.iter().zip(logs).enumerate() {
        let traces = log.traces();
        let spans = traces.iter().enumerate().filter_map(|(index, trace)| {
            let (from, to) = trace.span()?;
            let kind = match trace.ends.first() {
                Some(RunState::Cancelled) => SpanKind::Cancelled,
                Some(RunState::Completed) => SpanKind::Completed,
                _ => SpanKind::Failed,
            };
            Some(Span { from: since(from), to: since(to), name: (index + 1).to_string(), kind })
        });
        rows.push(Row { label: log.title.clone(), session, spans: spans.collect() });
        for (run_plan, trace) in plan.runs.iter().zip(&traces).filter(|(run_plan, _)| run_plan.is_parallel())
        {
            for (call, id) in run_plan.calls.iter().zip(started_calls(log, trace)) {
                let spans = trace.calls.iter().filter(|call| call.id == id).map(|call| Span {
                    from: since(call.from),
                    to: since(call.to),
                    name: String::new(),
                    kind: SpanKind::Call,
                });
                let label = format!("  {}", call.name.unwrap_or(call.tool));
                rows.push(Row { label, session, spans: spans.collect() });
            }
        }
    }
    rows
}

/// The ids of a run's calls in the order of the scenario, which is the order of their start events.
fn started_calls(log: &SessionLog, trace: &RunTrace) -> Vec<String> {
    let ended = |id: &str| trace.calls.iter().any(|call| call.id == id);
    let started = log.events.iter().filter(|event| event.r#type == "tool.started");
    started
        .filter_map(|event| data(event)["call"].as_str().map(str::to_owned))
        .filter(|id| ended(id))
        .collect()
}

#[cfg(test)]
pub(super) mod testing {
    use serde_json::json;

    use super::*;

    /// An event `millis` after the Unix epoch.
    pub(in crate::demo) fn event(cursor: i64, run: &str, kind: &str, millis: i64, data: &Value) -> v1::Event {
        let at = Timestamp::from_timestamp_millis(millis).map(convert::timestamp);
        let data = if data.is_null() { String::new() } else { data.to_string() };
        v1::Event { cursor, run_id: run.into(), r#type: kind.into(), at, data, ..Default::default() }
    }

    /// A session whose runs execute at the given times.
    pub(in crate::demo) fn session(title: &str, runs: &[(&str, i64, i64, RunState)]) -> SessionLog {
        let mut log = SessionLog { title: title.into(), ..SessionLog::default() };
        let mut cursor = 0;
        let mut add = |run: &str, kind: &str, millis, data: &Value| {
            cursor += 1;
            log.events.push(event(cursor, run, kind, millis, data));
        };
        add("", "session.created", 0, &Value::Null);
        for (id, ..) in runs {
            add(id, "run.queued", 0, &json!({ "seq": 1, "kind": "tools" }));
        }
        for (id, from, to, state) in runs {
            add(id, "run.started", *from, &json!({ "attempt": 1, "worker": "wrk_1" }));
            let call = format!("call_{id}");
            add(id, "tool.started", *from, &json!({ "call": call, "tool": "noop" }));
            let failed = *state != RunState::Completed;
            let failure = json!({ "code": "file_not_found", "message": "no such file" });
            let outcome = json!({ "id": call, "tool": "noop", "duration_ms": to - from, "failure": failed.then_some(failure) });
            add(id, if failed { "tool.failed" } else { "tool.completed" }, *to, &outcome);
            let end = json!({ "code": "tool_failed", "message": "noop failed: no such file" });
            add(id, &format!("run.{state}"), *to, if failed { &end } else { &Value::Null });
        }
        log.last_cursor = cursor;
        log.replayed.clone_from(&log.events);
        log.runs = runs
            .iter()
            .map(|(id, _, _, expected_state)| SubmittedRun {
                id: (*id).into(),
                expected_state: *expected_state,
            })
            .collect();
        log
    }
}

#[cfg(test)]
mod tests {
    use super::{super::scenario, *};

    #[test]
    fn trace_contains_only_events_of_its_run() {
        let log = testing::session(
            "t/s",
            &[("a", 10, 500, RunState::Completed), ("b", 500, 700, RunState::Failed)],
        );
        let trace = log.trace(1);
        assert_eq!(trace.ends, [RunState::Failed]);
        assert_eq!(trace.failure_code.as_deref(), Some("tool_failed"));
        let (from, to) = trace.span().unwrap();
        assert_eq!((to - from).num_milliseconds(), 200);
        assert_eq!(trace.calls[0].from, from);
        assert_eq!(trace.calls[0].failure_code.as_deref(), Some("file_not_found"));
        assert!(log.trace(2).ends.is_empty());
    }

    #[test]
    fn timeline_starts_with_the_first_queued_run() {
        let plans = scenario::plans();
        let log = testing::session("acme/notes", &[("a", 10, 500, RunState::Completed)]);
        let rows = rows(&plans[1..2], &[log]);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].spans[0].from, Duration::from_millis(10));
        assert_eq!(rows[0].spans[0].name, "1");
    }
}
