//! The promises, checked from outside: what a caller can see must fit what was submitted.

use std::collections::HashMap;

use futures::StreamExt as _;
use remuda_client::{Client, Target, terminal_state};
use remuda_domain::RunState;

/// What was found wrong.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Violations {
    pub(crate) lost: u64,
    pub(crate) order: u64,
    pub(crate) cursor_holes: u64,
    pub(crate) terminal_events: u64,
}

impl Violations {
    pub(crate) fn total(&self) -> u64 {
        self.lost + self.order + self.cursor_holes + self.terminal_events
    }
}

/// Reads a session's whole event stream and compares it with the runs that were submitted into it, in order.
pub(crate) async fn check_session(
    client: &Client,
    session: &str,
    runs: &[String],
) -> anyhow::Result<Violations> {
    let last = client
        .get_session(remuda_proto::v1::GetSessionRequest { session: session.to_owned() })
        .await?
        .session
        .map_or(0, |session| session.last_cursor);
    let mut events = client.follow(Target::Session(session.to_owned()), 0);
    let mut history = History::default();
    while history.cursor < last {
        let Some(event) = events.next().await else { break };
        history.see(&event?);
    }
    Ok(history.judge(runs))
}

/// What a session's stream told.
#[derive(Debug, Default)]
struct History {
    cursor: i64,
    running: Option<String>,
    started: Vec<String>,
    ends: HashMap<String, Vec<RunState>>,
    found: Violations,
}

impl History {
    fn see(&mut self, event: &remuda_proto::v1::Event) {
        self.found.cursor_holes += u64::from(event.cursor != self.cursor + 1);
        self.cursor = event.cursor;
        if event.r#type == "run.started" {
            // A second start of the same run is a new attempt, not a new run.
            if self.running.as_deref() != Some(event.run_id.as_str()) {
                self.found.order += u64::from(self.running.is_some());
                self.started.push(event.run_id.clone());
            }
            self.running = Some(event.run_id.clone());
        }
        if let Some(state) = terminal_state(event) {
            self.ends.entry(event.run_id.clone()).or_default().push(state);
            self.running = None;
        }
    }

    fn judge(mut self, runs: &[String]) -> Violations {
        for run in runs {
            match self.ends.get(run).map_or(0, Vec::len) {
                0 => self.found.lost += 1,
                1 => {}
                _ => self.found.terminal_events += 1,
            }
        }
        let expected: Vec<&String> = runs.iter().filter(|run| self.started.contains(run)).collect();
        let actual: Vec<&String> = self.started.iter().collect();
        self.found.order += u64::from(expected != actual);
        self.found
    }
}

#[cfg(test)]
mod tests {
    use remuda_proto::v1::Event;

    use super::*;

    fn judge(events: &[(i64, &str, &str)], runs: &[&str]) -> Violations {
        let mut history = History::default();
        for (cursor, kind, run) in events {
            history.see(&Event {
                cursor: *cursor,
                r#type: (*kind).to_owned(),
                run_id: (*run).to_owned(),
                ..Event::default()
            });
        }
        let runs: Vec<String> = runs.iter().map(|run| (*run).to_owned()).collect();
        history.judge(&runs)
    }

    #[test]
    fn a_good_history_has_no_violation() {
        let events = [
            (1, "run.queued", "a"),
            (2, "run.started", "a"),
            (3, "run.queued", "b"),
            (4, "run.started", "a"),
            (5, "run.completed", "a"),
            (6, "run.started", "b"),
            (7, "run.failed", "b"),
        ];
        assert_eq!(judge(&events, &["a", "b"]), Violations::default());
    }

    #[test]
    fn each_broken_promise_is_counted() {
        let overlap = [
            (1, "run.started", "a"),
            (2, "run.started", "b"),
            (3, "run.completed", "a"),
            (4, "run.completed", "b"),
        ];
        assert_eq!(judge(&overlap, &["a", "b"]).order, 1);
        let reversed = [
            (1, "run.started", "b"),
            (2, "run.completed", "b"),
            (3, "run.started", "a"),
            (4, "run.completed", "a"),
        ];
        assert_eq!(judge(&reversed, &["a", "b"]).order, 1);
        let hole = [(1, "run.started", "a"), (3, "run.completed", "a"), (4, "run.completed", "a")];
        let found = judge(&hole, &["a", "c"]);
        assert_eq!((found.cursor_holes, found.terminal_events, found.lost), (1, 1, 1));
    }
}
