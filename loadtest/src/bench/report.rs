//! What is said of a measurement.

use std::{fs, ops::Range, path::Path, process::ExitCode};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::{
    Plan,
    picture::{self, Picture},
};
use crate::{
    check::Verdict,
    draw,
    history::Micros,
    load::{Measured, Pace, Stage},
};

pub(crate) struct Report {
    scenario: String,
    mode: &'static str,
    /// How hard was tried, in words.
    load: String,
    /// What is counted.
    pub(super) what: &'static str,
    pub(crate) count: u64,
    /// Runs, or what takes their place.
    pub(crate) per_second: f64,
    /// How often what is counted happened, where that is not a run.
    pub(super) rate_of: Option<f64>,
    /// In microseconds.
    pub(super) latencies: Histogram<u64>,
    /// From where to where these are.
    pub(super) from_to: &'static str,
    /// When each ended, and the time that was measured.
    pub(super) ends: Vec<Micros>,
    pub(super) window: Range<Micros>,
    /// Where the time went, of so many runs.
    pub(crate) stages: (usize, Vec<Stage>),
    /// Resident memory of the servers by name, in MiB: before the load, and after it.
    pub(crate) idle_memory: Vec<(String, f64)>,
    pub(crate) memory: Vec<(String, f64)>,
    /// More figures for programs.
    pub(super) more: Map<String, Value>,
    /// More lines for people.
    pub(super) notes: Vec<String>,
    pub(crate) violations: u64,
    /// Everything that makes it fail, in sentences.
    pub(crate) failures: Vec<String>,
}

impl Report {
    /// Without any figures yet.
    pub(super) fn new(plan: &Plan, latencies: Histogram<u64>) -> Self {
        let mut more = Map::new();
        more.insert("sessions".to_owned(), json!(plan.sessions));
        more.insert("queued".to_owned(), json!(plan.queued));
        Self {
            scenario: plan.scenario.name(),
            mode: plan.mode.name(),
            load: plan.load(),
            what: "runs",
            count: latencies.len(),
            per_second: 0.0,
            rate_of: None,
            latencies,
            from_to: "submit to end",
            ends: Vec::new(),
            window: 0..0,
            stages: (0, Vec::new()),
            idle_memory: Vec::new(),
            memory: Vec::new(),
            more,
            notes: Vec::new(),
            violations: 0,
            failures: Vec::new(),
        }
    }

    pub(super) fn of_runs(plan: &Plan, measured: Measured) -> Self {
        let per_second = measured.runs_per_second();
        let ends: Vec<Micros> = measured.facts.iter().map(|fact| fact.answered).collect();
        let mut report =
            Self { per_second, ends, window: measured.window, ..Self::new(plan, measured.latencies) };
        let (clients, rate) = match plan.pace {
            Pace::Closed { clients } => (Some(clients), None),
            Pace::Open { per_second } => (None, Some(per_second)),
        };
        report.more.insert("clients".to_owned(), json!(clients));
        report.more.insert("rate".to_owned(), json!(rate));
        report.more.insert("not_begun".to_owned(), json!(measured.not_begun));
        report.load = format!("{}, {} sessions", report.load, draw::grouped(plan.sessions as f64));
        if plan.queued > 0 {
            report.load =
                format!("{}, {} runs queued elsewhere", report.load, draw::grouped(plan.queued as f64));
        }
        report
    }

    /// Says otherwise how hard was tried.
    pub(super) fn under(self, load: String) -> Self {
        Self { load, ..self }
    }

    pub(super) fn judged(&mut self, verdict: &Verdict) {
        self.violations += verdict.total();
        self.failures.extend(verdict.sentences());
    }

    pub(crate) fn is_good(&self) -> bool {
        self.violations == 0 && self.failures.is_empty()
    }

    pub(crate) fn millis(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1000.0
    }

    pub(crate) fn json(&self) -> Value {
        let mut line = json!({
            "scenario": self.scenario,
            "mode": self.mode,
            "load": self.load,
            self.what: self.count,
            "runs_per_s": self.per_second,
            "p50_ms": self.millis(0.5),
            "p99_ms": self.millis(0.99),
            "p999_ms": self.millis(0.999),
            "latency": self.from_to,
            "stages": stages_json(&self.stages.1),
            "staged_runs": self.stages.0,
            "idle_memory_mib": memory_json(&self.idle_memory),
            "memory_mib": memory_json(&self.memory),
            "violations": self.violations,
            "failures": self.failures,
        });
        for (name, value) in &self.more {
            line[name] = value.clone();
        }
        line
    }

    fn lines(&self) -> Vec<String> {
        let (p50, p99, p999) = (self.millis(0.5), self.millis(0.99), self.millis(0.999));
        let Self { scenario, mode, load, what, count, from_to, .. } = self;
        let per_second = self.rate_of.unwrap_or(self.per_second);
        let mut lines = vec![
            format!("{mode} {scenario}: {count} {what}, {load}"),
            format!(
                "{per_second:.0} {what}/s, {from_to}: p50 {p50:.2} ms, p99 {p99:.2} ms, p99.9 {p999:.2} ms"
            ),
        ];
        lines.extend(self.stages.1.iter().map(stage_line));
        lines.extend(self.memory.iter().map(|(name, mib)| format!("  {name}: {mib:.0} MiB")));
        lines.extend(self.notes.iter().cloned());
        lines.push(format!("violations: {}", self.violations));
        lines.extend(self.failures.iter().map(|failure| format!("  {failure}")));
        lines
    }

    #[expect(clippy::print_stdout, reason = "the report is what this program is for")]
    pub(super) fn print(&self, as_json: bool) -> ExitCode {
        if as_json {
            println!("{}", self.json());
        } else {
            self.lines().iter().for_each(|line| println!("{line}"));
        }
        if self.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    pub(super) fn draw(&self, file: &Path) -> anyhow::Result<()> {
        let (p50, p99) = (draw::millis(self.millis(0.5)), draw::millis(self.millis(0.99)));
        let rate = draw::grouped(self.rate_of.unwrap_or(self.per_second));
        let drawn = picture::svg(&Picture {
            title: &format!("{}, {}, {}", self.scenario, self.mode, self.load),
            subtitle: &format!("{rate} {}/s, {}: p50 {p50}, p99 {p99}", self.what, self.from_to),
            what: self.what,
            from_to: self.from_to,
            ends: &self.ends,
            window: self.window.clone(),
            latencies: &self.latencies,
            stages: &self.stages.1,
        });
        fs::write(file, drawn).with_context(|| format!("{} cannot be written", file.display()))
    }
}

fn stage_line(Stage { name, p50_ms, p99_ms, share }: &Stage) -> String {
    if *share == 0.0 {
        return format!("  {name:<10} was needed by no run");
    }
    let of_some = if *share < 1.0 { format!(", {:.0} % of the runs", share * 100.0) } else { String::new() };
    format!("  {name:<10} p50 {p50_ms:>7.2} ms, p99 {p99_ms:>7.2} ms after the stage before it{of_some}")
}

fn memory_json(memory: &[(String, f64)]) -> Value {
    Value::Object(memory.iter().map(|(name, mib)| (name.clone(), json!(mib))).collect())
}

fn stages_json(stages: &[Stage]) -> Value {
    let stage = |stage: &Stage| {
        let Stage { name, p50_ms, p99_ms, share } = *stage;
        (name.to_owned(), json!({ "p50_ms": p50_ms, "p99_ms": p99_ms, "share": share }))
    };
    Value::Object(stages.iter().map(stage).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bench::Scenario, stage::Mode};

    fn report() -> Report {
        let mut latencies = Histogram::new(3).unwrap();
        (1..=1000).for_each(|micros| latencies.record(micros * 100).unwrap());
        let plan = Plan { queued: 5000, ..Plan::new(Scenario::Noop, Mode::Split) };
        let elapsed = std::time::Duration::from_secs(2);
        Report::of_runs(&plan, Measured { latencies, elapsed, ..Measured::new().unwrap() })
    }

    #[test]
    fn the_line_holds_what_programs_look_for() {
        let line = report().json();
        for name in ["runs_per_s", "p50_ms", "p99_ms", "violations", "runs", "sessions", "queued", "clients"]
        {
            assert!(line[name].is_number(), "{name}: {line}");
        }
        assert!(line["stages"].is_object() && line["rate"].is_null());
        assert_eq!(line["runs_per_s"], 500.0);
    }

    #[test]
    fn a_broken_promise_fails() {
        let mut report = report();
        assert!(report.is_good());
        report.violations = 1;
        assert!(!report.is_good());
        assert!(report.lines().iter().any(|line| line == "violations: 1"));
    }
}
