//! What was seen of the play, and what follows from it.
//!
//! Everything is read from the events that clients got, in their order and with their own times.

use std::time::Duration;

use remuda_client::terminal_state;
use remuda_domain::{RunState, Timestamp};
use remuda_proto::{convert, v1};
use serde_json::Value;

use super::{
    script::Scene,
    timeline::{Look, Row, Span},
};

/// One session as its live stream showed it.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionLog {
    /// `tenant/session`.
    pub title: String,
    /// Its runs in the order of submission.
    pub runs: Vec<Accepted>,
    /// As they came, live.
    pub events: Vec<v1::Event>,
    /// As a reader saw them who came after the end.
    pub replayed: Vec<v1::Event>,
    /// What the server says is the newest.
    pub last_cursor: i64,
}

/// A run that the server accepted.
#[derive(Clone, Debug)]
pub(super) struct Accepted {
    pub id: String,
    /// How it is meant to end.
    pub fate: RunState,
}

/// What the events tell of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace {
    pub queued: Option<Timestamp>,
    pub started: Option<Timestamp>,
    /// The cursor of its start, which is its place among the starts of the session.
    pub started_cursor: Option<i64>,
    pub finished: Option<Timestamp>,
    /// All terminal events; there must be one.
    pub ends: Vec<RunState>,
    pub failure_code: Option<String>,
    pub calls: Vec<CallTrace>,
}

/// When a call executed: until its end, for as long as it says.
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

/// The data of an event; `null` when it has none.
pub(super) fn data(event: &v1::Event) -> Value {
    serde_json::from_str(&event.data).unwrap_or_default()
}

impl Trace {
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
            // A run that was taken over starts again; its first start is what counts.
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

    /// From its start to its end, if it had both.
    pub(super) fn span(&self) -> Option<(Timestamp, Timestamp)> {
        self.started.zip(self.finished)
    }
}

impl SessionLog {
    pub(super) fn trace(&self, run: usize) -> Trace {
        self.runs.get(run).map(|run| Trace::of(&self.events, &run.id)).unwrap_or_default()
    }

    pub(super) fn traces(&self) -> Vec<Trace> {
        self.runs.iter().map(|run| Trace::of(&self.events, &run.id)).collect()
    }
}

/// When the first run was accepted: the picture's left edge.
pub(super) fn beginning(logs: &[SessionLog]) -> Option<Timestamp> {
    let events = logs.iter().flat_map(|log| &log.events);
    events.filter(|event| event.r#type == "run.queued").filter_map(at).min()
}

/// The picture's rows: every session, and under it the calls that ran side by side.
pub(super) fn rows(scenes: &[Scene], logs: &[SessionLog]) -> Vec<Row> {
    let Some(zero) = beginning(logs) else { return Vec::new() };
    let since = |at: Timestamp| (at - zero).to_std().unwrap_or_default();
    let mut rows = Vec::new();
    for (session, (scene, log)) in scenes.iter().zip(logs).enumerate() {
        let traces = log.traces();
        let spans = traces.iter().enumerate().filter_map(|(index, trace)| {
            let (from, to) = trace.span()?;
            let look = match trace.ends.first() {
                Some(RunState::Cancelled) => Look::Cancelled,
                Some(RunState::Completed) => Look::Completed,
                _ => Look::Failed,
            };
            Some(Span { from: since(from), to: since(to), name: (index + 1).to_string(), look })
        });
        rows.push(Row { label: log.title.clone(), session, spans: spans.collect() });
        for (act, trace) in scene.runs.iter().zip(&traces).filter(|(act, _)| act.is_parallel()) {
            for (call, id) in act.calls.iter().zip(started_calls(log, trace)) {
                let spans = trace.calls.iter().filter(|call| call.id == id).map(|call| Span {
                    from: since(call.from),
                    to: since(call.to),
                    name: String::new(),
                    look: Look::Call,
                });
                let label = format!("  {}", call.name.unwrap_or(call.tool));
                rows.push(Row { label, session, spans: spans.collect() });
            }
        }
    }
    rows
}

/// The ids of a run's calls in the order of the script, which is the order in which they are announced.
fn started_calls(log: &SessionLog, trace: &Trace) -> Vec<String> {
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

    /// An event `millis` after the beginning of time.
    pub(in crate::demo) fn event(cursor: i64, run: &str, kind: &str, millis: i64, data: &Value) -> v1::Event {
        let at = Timestamp::from_timestamp_millis(millis).map(convert::timestamp);
        let data = if data.is_null() { String::new() } else { data.to_string() };
        v1::Event { cursor, run_id: run.into(), r#type: kind.into(), at, data, ..Default::default() }
    }

    /// A session whose runs executed one after another, each from and to a given moment.
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
        log.runs = runs.iter().map(|(id, _, _, fate)| Accepted { id: (*id).into(), fate: *fate }).collect();
        log
    }
}

#[cfg(test)]
mod tests {
    use super::{super::script, *};

    #[test]
    fn a_trace_tells_a_run_from_its_neighbours() {
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
    fn the_picture_starts_with_the_first_run() {
        let scenes = script::scenes();
        let log = testing::session("acme/notes", &[("a", 10, 500, RunState::Completed)]);
        let rows = rows(&scenes[1..2], &[log]);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].spans[0].from, Duration::from_millis(10));
        assert_eq!(rows[0].spans[0].name, "1");
    }
}
