//! The report of a measurement, as text, JSON and chart.

use std::{fs, ops::Range, path::Path, process::ExitCode};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::{
    BenchPlan,
    chart::{self, Chart},
};
use crate::{
    check::Verdict,
    load::{LoadModel, Measurement, Stage},
    observed_history::Micros,
    svg_chart,
};

pub(crate) struct Report {
    scenario: String,
    mode: &'static str,
    /// The load in words.
    load: String,
    /// The name of what is counted.
    pub(super) unit: &'static str,
    pub(crate) count: u64,
    /// Runs per second, or the unit that replaces runs.
    pub(crate) per_second: f64,
    /// The rate of the counted unit, if it is not a run.
    pub(super) unit_rate: Option<f64>,
    /// In microseconds.
    pub(super) latencies: Histogram<u64>,
    /// Between which points the latencies are measured.
    pub(super) latency_label: &'static str,
    /// The end of each unit, and the measured period.
    pub(super) ends: Vec<Micros>,
    pub(super) window: Range<Micros>,
    /// The number of traced runs and their stages.
    pub(crate) stages: (usize, Vec<Stage>),
    /// Resident memory of the servers by name, in MiB: before the load, and after it.
    pub(crate) idle_memory: Vec<(String, f64)>,
    pub(crate) memory: Vec<(String, f64)>,
    /// More fields of the JSON report.
    pub(super) extra: Map<String, Value>,
    /// More lines of the text report.
    pub(super) notes: Vec<String>,
    pub(crate) violations: u64,
    /// Every reason for which the measurement fails.
    pub(crate) failures: Vec<String>,
}

impl Report {
    /// A report without results yet.
    pub(super) fn new(plan: &BenchPlan, latencies: Histogram<u64>) -> Self {
        let mut extra = Map::new();
        extra.insert("sessions".to_owned(), json!(plan.sessions));
        extra.insert("queued".to_owned(), json!(plan.queued));
        Self {
            scenario: plan.scenario.name(),
            mode: plan.mode.name(),
            load: plan.load(),
            unit: "runs",
            count: latencies.len(),
            per_second: 0.0,
            unit_rate: None,
            latencies,
            latency_label: "submit to end",
            ends: Vec::new(),
            window: 0..0,
            stages: (0, Vec::new()),
            idle_memory: Vec::new(),
            memory: Vec::new(),
            extra,
            notes: Vec::new(),
            violations: 0,
            failures: Vec::new(),
        }
    }

    pub(super) fn of_runs(plan: &BenchPlan, measured: Measurement) -> Self {
        let per_second = measured.runs_per_second();
        let ends: Vec<Micros> = measured.runs.iter().map(|run| run.answered).collect();
        let mut report =
            Self { per_second, ends, window: measured.window, ..Self::new(plan, measured.latencies) };
        let (clients, rate) = match plan.model {
            LoadModel::Closed { clients } => (Some(clients), None),
            LoadModel::Open { per_second } => (None, Some(per_second)),
        };
        report.extra.insert("clients".to_owned(), json!(clients));
        report.extra.insert("rate".to_owned(), json!(rate));
        report.extra.insert("not_begun".to_owned(), json!(measured.not_begun));
        report.load = format!("{}, {} sessions", report.load, svg_chart::grouped(plan.sessions as f64));
        if plan.queued > 0 {
            report.load =
                format!("{}, {} runs queued elsewhere", report.load, svg_chart::grouped(plan.queued as f64));
        }
        report
    }

    /// Replaces the description of the load.
    pub(super) fn with_load(self, load: String) -> Self {
        Self { load, ..self }
    }

    pub(super) fn add_verdict(&mut self, verdict: &Verdict) {
        self.violations += verdict.total();
        self.failures.extend(verdict.messages());
    }

    pub(crate) fn passed(&self) -> bool {
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
            self.unit: self.count,
            "runs_per_s": self.per_second,
            "p50_ms": self.millis(0.5),
            "p99_ms": self.millis(0.99),
            "p999_ms": self.millis(0.999),
            "latency": self.latency_label,
            "stages": stages_json(&self.stages.1),
            "staged_runs": self.stages.0,
            "idle_memory_mib": memory_json(&self.idle_memory),
            "memory_mib": memory_json(&self.memory),
            "violations": self.violations,
            "failures": self.failures,
        });
        for (name, value) in &self.extra {
            line[name] = value.clone();
        }
        line
    }

    fn lines(&self) -> Vec<String> {
        let (p50, p99, p999) = (self.millis(0.5), self.millis(0.99), self.millis(0.999));
        let Self { scenario, mode, load, unit, count, latency_label, .. } = self;
        let per_second = self.unit_rate.unwrap_or(self.per_second);
        let mut lines = vec![
            format!("{mode} {scenario}: {count} {unit}, {load}"),
            format!(
                "{per_second:.0} {unit}/s, {latency_label}: p50 {p50:.2} ms, p99 {p99:.2} ms, p99.9 {p999:.2} ms"
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
        if self.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    pub(super) fn draw(&self, file: &Path) -> anyhow::Result<()> {
        let (p50, p99) = (svg_chart::millis(self.millis(0.5)), svg_chart::millis(self.millis(0.99)));
        let rate = svg_chart::grouped(self.unit_rate.unwrap_or(self.per_second));
        let drawn = chart::svg(&Chart {
            title: &format!("{}, {}, {}", self.scenario, self.mode, self.load),
            subtitle: &format!("{rate} {}/s, {}: p50 {p50}, p99 {p99}", self.unit, self.latency_label),
            unit: self.unit,
            latency_label: self.latency_label,
            ends: &self.ends,
            window: self.window.clone(),
            latencies: &self.latencies,
            stages: &self.stages.1,
        });
        fs::write(file, drawn).with_context(|| format!("cannot write {}", file.display()))
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
    use crate::{bench::Scenario, deployment::Mode};

    fn report() -> Report {
        let mut latencies = Histogram::new(3).unwrap();
        (1..=1000).for_each(|micros| latencies.record(micros * 100).unwrap());
        let plan = BenchPlan { queued: 5000, ..BenchPlan::new(Scenario::Noop, Mode::Split) };
        let elapsed = std::time::Duration::from_secs(2);
        Report::of_runs(&plan, Measurement { latencies, elapsed, ..Measurement::new().unwrap() })
    }

    #[test]
    fn json_report_has_the_documented_fields() {
        let line = report().json();
        for name in ["runs_per_s", "p50_ms", "p99_ms", "violations", "runs", "sessions", "queued", "clients"]
        {
            assert!(line[name].is_number(), "{name}: {line}");
        }
        assert!(line["stages"].is_object() && line["rate"].is_null());
        assert_eq!(line["runs_per_s"], 500.0);
    }

    #[test]
    fn violation_fails_the_report() {
        let mut report = report();
        assert!(report.passed());
        report.violations = 1;
        assert!(!report.passed());
        assert!(report.lines().iter().any(|line| line == "violations: 1"));
    }
}
