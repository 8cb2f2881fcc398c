//! What was found out: for people, or as one line of JSON.
//!
//! A broken promise fails the test. A figure beyond its goal is told and no more: a busy machine is no bug.

use std::process::ExitCode;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::audience::Findings;
use crate::check::{Verdict, Violation, check};

/// Sentences in the report.
const MAX_FAILURES: usize = 20;

/// A figure and where it should lie.
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

/// What one part of the test found out.
#[derive(Debug)]
pub(super) struct Part {
    name: &'static str,
    /// Name and text, for people.
    rows: Vec<(&'static str, String)>,
    figures: Value,
    goals: Vec<Goal>,
    verdict: Verdict,
    /// What is wrong beside the verdict.
    troubles: Vec<String>,
}

impl Part {
    /// Judges what readers saw.
    pub(super) fn new(name: &'static str, findings: &Findings, mut troubles: Vec<String>) -> Self {
        troubles.extend(findings.complaints.iter().cloned());
        if findings.deliveries() == 0 {
            troubles.push("no reader got any event".to_owned());
        }
        let verdict = check(&findings.history);
        Self { name, rows: Vec::new(), figures: json!({}), goals: Vec::new(), verdict, troubles }
    }

    /// Adds a figure, for people and for programs.
    pub(super) fn tell(&mut self, key: &'static str, figure: Value, row: &'static str, text: String) {
        self.figure(key, figure);
        self.rows.push((row, text));
    }

    /// Adds a figure for programs alone.
    pub(super) fn figure(&mut self, key: &'static str, figure: Value) {
        self.figures[key] = figure;
    }

    /// Adds times as percentiles.
    pub(super) fn tell_times(&mut self, key: &'static str, times: &Histogram<u64>, row: &'static str) {
        let at = |quantile: f64| millis(times.value_at_quantile(quantile));
        let (p50, p99, p999, max) = (at(0.5), at(0.99), at(0.999), millis(times.max()));
        let figure = json!({ "count": times.len(), "p50": p50, "p99": p99, "p99_9": p999, "max": max });
        self.tell(key, figure, row, format!("p50 {p50} ms, p99 {p99} ms, p99.9 {p999} ms, max {max} ms"));
    }

    pub(super) fn aim(&mut self, goal: Goal) {
        self.goals.push(goal);
    }

    pub(super) fn violations(&self) -> u64 {
        self.verdict.total()
    }

    /// Everything that makes the test fail.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = self.verdict.sentences();
        let more = self.verdict.total() - failures.len() as u64;
        if more > 0 {
            failures.push(format!("and {more} more violations"));
        }
        failures.extend(self.troubles.iter().cloned());
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

/// Says it all, and whether every promise was kept.
pub(super) fn report(seed: u64, servers: &str, as_json: bool, parts: &[Part]) -> ExitCode {
    let failures: Vec<String> = parts.iter().flat_map(Part::failures).collect();
    for failure in &failures {
        complain(failure);
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
        document["troubles"] = parts.iter().map(|part| part.troubles.len()).sum::<usize>().into();
        document["failures"] = failures.iter().take(MAX_FAILURES).cloned().collect();
        print(&document.to_string());
    } else {
        print(&format!("loadtest fanout, seed {seed}, servers: {servers}"));
        parts.iter().for_each(Part::print);
        print(if failures.is_empty() { "every promise was kept" } else { "FAILED" });
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

#[expect(clippy::print_stderr, reason = "what went wrong belongs beside the report, not into it")]
fn complain(line: &str) {
    eprintln!("{line}");
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, sync::Arc};

    use super::*;
    use crate::history::{EventKind, History, Reading, Seen};

    /// Of a session with three events.
    fn findings(cursors: &[i64]) -> Findings {
        let session: Arc<str> = "ses_1".into();
        let event = |cursor: i64| Seen { cursor, kind: EventKind::Other, run: "".into(), at: 1, received: 2 };
        let reading = Reading {
            reader: "reader 1".to_owned(),
            session: Arc::clone(&session),
            after: 0,
            seen: cursors.iter().copied().map(event).collect(),
            refused: Vec::new(),
        };
        let streams = HashMap::from([(session, (1..=3).map(event).collect())]);
        Findings {
            history: History { readings: vec![reading], streams, ..History::default() },
            ..Findings::default()
        }
    }

    #[test]
    fn holes_duplicates_and_lost_ends_fail() {
        assert_eq!(Part::new("latency", &findings(&[1, 2, 3]), Vec::new()).failures(), [""; 0]);
        for cursors in [&[1, 3][..], &[1, 2, 2, 3], &[1, 3, 2], &[2, 3], &[1, 2], &[]] {
            assert!(
                !Part::new("latency", &findings(cursors), Vec::new()).failures().is_empty(),
                "{cursors:?}"
            );
        }
        let trouble = vec!["the server panicked".to_owned()];
        assert_eq!(Part::new("idle", &findings(&[1, 2, 3]), trouble).failures().len(), 1);
    }

    #[test]
    fn a_missed_goal_is_told_and_fails_nothing() {
        let mut part = Part::new("latency", &findings(&[1, 2, 3]), Vec::new());
        part.aim(Goal { name: "p99_ms", measured: 30.0, below: 25.0, unit: " ms" });
        assert_eq!(part.json()["goals"]["p99_ms"]["reached"], false);
        assert_eq!(part.failures(), [""; 0]);
    }
}
