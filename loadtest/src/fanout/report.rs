//! The report of `loadtest fanout`, as text or as one line of JSON.
//!
//! A violation fails the test. A missed goal is only reported, because the machine may be busy.

use std::process::ExitCode;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::reader_group::ReaderResults;
use crate::check::{Verdict, Violation, check};

/// Failures listed in the JSON report.
const MAX_FAILURES: usize = 20;

/// A measured value and its upper bound.
#[derive(Debug)]
pub(super) struct Goal {
    pub(super) name: &'static str,
    pub(super) measured: f64,
    pub(super) below: f64,
    pub(super) unit: &'static str,
}

impl Goal {
    fn is_reached(&self) -> bool {
        self.measured < self.below
    }
}

/// The results of one part of the test.
#[derive(Debug)]
pub(super) struct PartReport {
    name: &'static str,
    /// Rows of the text report: name and value.
    rows: Vec<(&'static str, String)>,
    figures: Value,
    goals: Vec<Goal>,
    verdict: Verdict,
    /// Failures besides the violations.
    problems: Vec<String>,
}

impl PartReport {
    /// Checks what the readers received.
    pub(super) fn new(name: &'static str, results: &ReaderResults, mut problems: Vec<String>) -> Self {
        problems.extend(results.problems.iter().cloned());
        if results.deliveries() == 0 {
            problems.push("no reader got any event".to_owned());
        }
        let verdict = check(&results.history);
        Self { name, rows: Vec::new(), figures: json!({}), goals: Vec::new(), verdict, problems }
    }

    /// Adds a value to the text and to the JSON report.
    pub(super) fn add(&mut self, key: &'static str, figure: Value, row: &'static str, text: String) {
        self.add_figure(key, figure);
        self.rows.push((row, text));
    }

    /// Adds a value to the JSON report only.
    pub(super) fn add_figure(&mut self, key: &'static str, figure: Value) {
        self.figures[key] = figure;
    }

    /// Adds times as percentiles.
    pub(super) fn add_times(&mut self, key: &'static str, times: &Histogram<u64>, row: &'static str) {
        let at = |quantile: f64| millis(times.value_at_quantile(quantile));
        let (p50, p99, p999, max) = (at(0.5), at(0.99), at(0.999), millis(times.max()));
        let figure = json!({ "count": times.len(), "p50": p50, "p99": p99, "p99_9": p999, "max": max });
        self.add(key, figure, row, format!("p50 {p50} ms, p99 {p99} ms, p99.9 {p999} ms, max {max} ms"));
    }

    pub(super) fn add_goal(&mut self, goal: Goal) {
        self.goals.push(goal);
    }

    pub(super) fn violations(&self) -> u64 {
        self.verdict.total()
    }

    /// Everything that makes the test fail.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = self.verdict.messages();
        let more = self.verdict.total() - failures.len() as u64;
        if more > 0 {
            failures.push(format!("and {more} more violations"));
        }
        failures.extend(self.problems.iter().cloned());
        failures.into_iter().map(|failure| format!("{}: {failure}", self.name)).collect()
    }

    fn json(&self) -> Value {
        let mut document = self.figures.clone();
        for goal in &self.goals {
            document["goals"][goal.name] = json!({
                "measured": rounded(goal.measured), "below": goal.below, "reached": goal.is_reached(),
            });
        }
        document
    }

    fn print(&self) {
        print(self.name);
        for (name, text) in &self.rows {
            print(&format!("  {name:<26} {text}"));
        }
        for goal in &self.goals {
            let Goal { name, measured, below, unit } = goal;
            let reached = if goal.is_reached() { "reached" } else { "MISSED" };
            print(&format!("  goal: {name} below {below}{unit}: {reached} ({measured:.2}{unit})"));
        }
        print(&format!("  {:<26} {}", "violations", self.verdict.total()));
    }
}

/// Prints the report and returns the exit code.
pub(super) fn report(seed: u64, servers: &str, as_json: bool, parts: &[PartReport]) -> ExitCode {
    let failures: Vec<String> = parts.iter().flat_map(PartReport::failures).collect();
    for failure in &failures {
        print_error(failure);
    }
    if as_json {
        let mut document = json!({ "test": "fanout", "seed": seed, "servers": servers });
        for part in parts {
            document[part.name] = part.json();
        }
        for violation in Violation::ALL {
            let count: u64 = parts.iter().map(|part| part.verdict.count(violation)).sum();
            document[violation.name()] = count.into();
        }
        document["troubles"] = parts.iter().map(|part| part.problems.len()).sum::<usize>().into();
        document["failures"] = failures.iter().take(MAX_FAILURES).cloned().collect();
        print(&document.to_string());
    } else {
        print(&format!("loadtest fanout, seed {seed}, servers: {servers}"));
        parts.iter().for_each(PartReport::print);
        print(if failures.is_empty() { "all guarantees were kept" } else { "FAILED" });
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn millis(micros: u64) -> f64 {
    rounded(micros as f64 / 1000.0)
}

pub(super) fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[expect(clippy::print_stdout, reason = "the report is what this program is for")]
fn print(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "failures go to stderr, the report to stdout")]
fn print_error(line: &str) {
    eprintln!("{line}");
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, sync::Arc};

    use super::*;
    use crate::observed_history::{EventKind, History, ObservedEvent, ReaderLog};

    /// Results of one reader with these cursors, in a session with three events.
    fn results(cursors: &[i64]) -> ReaderResults {
        let session: Arc<str> = "ses_1".into();
        let event = |cursor: i64| ObservedEvent {
            cursor,
            kind: EventKind::Other,
            run: "".into(),
            at: 1,
            received: 2,
        };
        let log = ReaderLog {
            reader: "reader 1".to_owned(),
            session: Arc::clone(&session),
            after: 0,
            events: cursors.iter().copied().map(event).collect(),
            refused: Vec::new(),
        };
        let streams = HashMap::from([(session, (1..=3).map(event).collect())]);
        ReaderResults {
            history: History { reader_logs: vec![log], streams, ..History::default() },
            ..ReaderResults::default()
        }
    }

    #[test]
    fn gaps_duplicates_and_missing_events_fail() {
        assert_eq!(PartReport::new("latency", &results(&[1, 2, 3]), Vec::new()).failures(), [""; 0]);
        for cursors in [&[1, 3][..], &[1, 2, 2, 3], &[1, 3, 2], &[2, 3], &[1, 2], &[]] {
            assert!(
                !PartReport::new("latency", &results(cursors), Vec::new()).failures().is_empty(),
                "{cursors:?}"
            );
        }
        let trouble = vec!["the server panicked".to_owned()];
        assert_eq!(PartReport::new("idle", &results(&[1, 2, 3]), trouble).failures().len(), 1);
    }

    #[test]
    fn missed_goal_is_reported_without_failing() {
        let mut part = PartReport::new("latency", &results(&[1, 2, 3]), Vec::new());
        part.add_goal(Goal { name: "p99_ms", measured: 30.0, below: 25.0, unit: " ms" });
        assert_eq!(part.json()["goals"]["p99_ms"]["reached"], false);
        assert_eq!(part.failures(), [""; 0]);
    }
}
