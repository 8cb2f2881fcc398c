//! The report of a fault test: text or one line of JSON, and a timeline as SVG.

use std::{collections::BTreeMap, fs, ops::Range, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::Args;
use remuda_cluster::HostileCounts;
use serde_json::{Value, json};

use crate::{
    check::{HistoryIndex, Verdict, Violation, check},
    observed_history::{History, Micros, SubmitOutcome},
    recovery::{Fault, Rates, Recovery},
    timeline::{Timeline, svg},
    workload::Finished,
};

/// Below this share of accepted submits the test is not meaningful and fails.
const ENOUGH_ACCEPTED: f64 = 0.8;
/// Failures listed in the JSON report.
const MAX_FAILURES: usize = 20;

/// The form of the report.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReportArgs {
    /// Print the report as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Draw runs per second over time, with the faults, as SVG into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A finished test.
#[derive(Debug)]
pub(crate) struct FaultTest {
    pub(crate) name: &'static str,
    pub(crate) seed: u64,
    /// The period in which clients submitted.
    pub(crate) load: Range<Micros>,
    pub(crate) finished: Finished,
    pub(crate) faults: Vec<Fault>,
    /// Problems that clients cannot see: servers that died unexpectedly or panicked, faults that could not be injected, tool
    /// processes that outlived their worker.
    pub(crate) problems: Vec<String>,
    /// What the hostile member of the bus did, if there was one.
    pub(crate) hostile: HostileCounts,
    /// Runs that were returned to a client that waited for them.
    pub(crate) waited: u64,
}

/// The measurements, in the order of the report.
#[derive(Debug)]
struct Measures {
    recovery: Percentiles,
    recovery_from_beginning: Percentiles,
    first_run: Percentiles,
    /// How long runs paused until another worker resumed them.
    pause_after_loss: Percentiles,
    pause_after_hand_over: Percentiles,
    cancel: Percentiles,
    cancel_dead: Percentiles,
    before: Option<f64>,
    after: Option<f64>,
}

impl FaultTest {
    /// Checks, draws and prints. The exit code is a failure if a guarantee was violated.
    pub(crate) fn report(&self, args: &ReportArgs) -> anyhow::Result<ExitCode> {
        let history = &self.finished.history;
        let (index, verdict) = (HistoryIndex::new(history), check(history));
        let ends = history.runs.iter().filter_map(|run| index.end_of(&run.id)).collect();
        let rates = Rates::new(ends, self.load.clone());
        let recoveries = rates.recoveries(&self.faults);
        let measures = Measures::new(&index, &rates, &self.faults, &recoveries);
        if let Some(path) = &args.svg {
            let picture = self.draw(&index, &recoveries);
            fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let failures = self.failures(&verdict);
        print_failures(&failures);
        if args.json {
            print(&self.json(&verdict, &measures).to_string());
        } else {
            self.table(&verdict, &measures, failures.is_empty());
        }
        Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn draw(&self, index: &HistoryIndex<'_>, recoveries: &[Recovery]) -> String {
        let History { submits, runs, .. } = index.history;
        let ended: Vec<Micros> = runs.iter().filter_map(|run| index.end_of(&run.id)).collect();
        let accepted =
            submits.iter().filter(|submit| matches!(submit.outcome, SubmitOutcome::Accepted { .. }));
        let submitted: Vec<Micros> = accepted.map(|submit| submit.answered).collect();
        svg(&Timeline {
            title: &format!("loadtest {}, seed {}", self.name, self.seed),
            load: self.load.clone(),
            ended: &ended,
            submitted: &submitted,
            errors: &self.finished.errors,
            faults: &self.faults,
            recoveries,
        })
    }

    /// Everything that makes the test fail.
    fn failures(&self, verdict: &Verdict) -> Vec<String> {
        let mut failures = verdict.messages();
        let more = verdict.total() - failures.len() as u64;
        if more > 0 {
            failures.push(format!("and {more} more violations"));
        }
        failures.extend(self.problems.iter().cloned());
        let ratio = verdict.accepted_ratio();
        if ratio < ENOUGH_ACCEPTED {
            failures.push(format!("only {:.0} % of the submits were accepted", ratio * 100.0));
        }
        if self.finished.history.effects.is_empty() {
            failures.push("no tool wrote into the journal".to_owned());
        }
        failures
    }

    fn json(&self, verdict: &Verdict, measures: &Measures) -> Value {
        let mut document = json!({
            "test": self.name,
            "seed": self.seed,
            "seconds": seconds(&self.load),
            "submitted": verdict.submitted,
            "accepted_ratio": rounded(verdict.accepted_ratio()),
            "terminal": verdict.terminal,
            "ends": verdict.ends,
            "faults": self.fault_counts(),
            "hostile": self.hostile,
            "waited": self.waited,
            "recovery_ms": measures.recovery.json(),
            "recovery_from_beginning_ms": measures.recovery_from_beginning.json(),
            "first_run_ms": measures.first_run.json(),
            "pause_ms": {
                "worker_lost": measures.pause_after_loss.json(),
                "handed_over": measures.pause_after_hand_over.json(),
            },
            "cancel_ms": measures.cancel.json(),
            "cancel_dead_ms": measures.cancel_dead.json(),
            "throughput": {
                "before": measures.before.map(rounded),
                "after": measures.after.map(rounded),
                "ratio": measures.ratio().map(rounded),
            },
            "troubles": self.problems.len(),
            // Messages as well: counts alone would need a look into the logs.
            "failures": self.failures(verdict).into_iter().take(MAX_FAILURES).collect::<Vec<_>>(),
        });
        for violation in Violation::ALL {
            document[violation.name()] = verdict.count(violation).into();
        }
        document
    }

    fn fault_counts(&self) -> BTreeMap<&str, u64> {
        let mut counts = BTreeMap::new();
        for fault in &self.faults {
            *counts.entry(fault.kind.as_str()).or_default() += 1;
        }
        counts
    }

    fn table(&self, verdict: &Verdict, measures: &Measures, passed: bool) {
        let row = |name: &str, value: &str| print(&format!("  {name:<28} {value}"));
        print(&format!("loadtest {}, seed {}, {:.0} s of load", self.name, self.seed, seconds(&self.load)));
        row("submitted", &verdict.submitted.to_string());
        row("accepted", &format!("{} ({:.1} %)", verdict.accepted, verdict.accepted_ratio() * 100.0));
        let ends: Vec<String> =
            verdict.ends.iter().map(|(state, count)| format!("{count} {state}")).collect();
        row("ended", &format!("{} ({})", verdict.terminal, ends.join(", ")));
        let faults: Vec<String> =
            self.fault_counts().iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        row("faults", &if faults.is_empty() { "none".to_owned() } else { faults.join(", ") });
        let hostile = self.hostile.values().sum::<u64>();
        if hostile > 0 {
            row("hostile messages", &format!("{hostile} of {} sorts", self.hostile.len()));
        }
        for violation in Violation::ALL {
            row(violation.name(), &verdict.count(violation).to_string());
        }
        row("server problems", &self.problems.len().to_string());
        row("recovery after a fault", &measures.recovery.text());
        row("  from the fault's beginning", &measures.recovery_from_beginning.text());
        row("first run after a fault", &measures.first_run.text());
        row("run paused, worker lost", &measures.pause_after_loss.text());
        row("run paused, handed over", &measures.pause_after_hand_over.text());
        row("cancel until terminal", &measures.cancel.text());
        row("cancel until process gone", &measures.cancel_dead.text());
        let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.1} runs/s"));
        row("rate before and after", &format!("{}, {}", rate(measures.before), rate(measures.after)));
        print(if passed { "all guarantees were kept" } else { "FAILED" });
    }
}

impl Measures {
    fn new(index: &HistoryIndex<'_>, rates: &Rates, faults: &[Fault], recoveries: &[Recovery]) -> Self {
        let of = |part: fn(&Recovery) -> Option<Micros>| Percentiles::of(recoveries.iter().filter_map(part));
        let cancels = &index.history.cancels;
        let cancel = cancels.iter().filter_map(|cancel| Some(index.end_of(&cancel.run)? - cancel.requested));
        // Only runs that were executing when they were cancelled have processes to kill.
        let cancel_dead = cancels.iter().filter_map(|cancel| {
            let key = &index.run(&cancel.run)?.key;
            let gone_by = index.history.processes.get(key)?.gone_by?;
            let at_work = index.is_at_work(key, cancel.requested) && gone_by > cancel.requested;
            at_work.then_some(gone_by - cancel.requested)
        });
        Self {
            recovery: of(|recovery| recovery.from_end),
            recovery_from_beginning: of(|recovery| recovery.from_beginning),
            first_run: of(|recovery| recovery.first_run),
            pause_after_loss: Percentiles::of(index.pauses(true)),
            pause_after_hand_over: Percentiles::of(index.pauses(false)),
            cancel: Percentiles::of(cancel),
            cancel_dead: Percentiles::of(cancel_dead),
            before: rates.before(faults),
            after: rates.after(faults, recoveries),
        }
    }

    fn ratio(&self) -> Option<f64> {
        Some(self.after? / self.before.filter(|before| *before > 0.0)?)
    }
}

/// Sorted times in microseconds.
#[derive(Debug)]
struct Percentiles(Vec<Micros>);

impl Percentiles {
    fn of(times: impl Iterator<Item = Micros>) -> Self {
        let mut times: Vec<Micros> = times.collect();
        times.sort_unstable();
        Self(times)
    }

    /// In milliseconds; `None` when nothing was measured. Nearest rank, so it is a value that occurred.
    fn at(&self, percent: usize) -> Option<f64> {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).map(|micros| *micros as f64 / 1000.0)
    }

    fn json(&self) -> Value {
        json!({ "p50": self.at(50), "p99": self.at(99), "count": self.0.len() })
    }

    fn text(&self) -> String {
        match (self.at(50), self.at(99)) {
            (Some(p50), Some(p99)) => {
                format!("p50 {p50:.0} ms, p99 {p99:.0} ms ({} times)", self.0.len())
            }
            _ => "-".to_owned(),
        }
    }
}

fn seconds(period: &Range<Micros>) -> f64 {
    rounded((period.end - period.start) as f64 / 1e6)
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[expect(clippy::print_stdout, reason = "the report is what this program is for")]
fn print(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "failures go to stderr, the report to stdout")]
fn print_failures(failures: &[String]) {
    for failure in failures {
        eprintln!("{failure}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let times = Percentiles::of([30_000, 10_000, 20_000].into_iter());
        assert_eq!((times.at(50), times.at(99)), (Some(20.0), Some(30.0)));
        assert_eq!(Percentiles::of([7000].into_iter()).at(50), Some(7.0));
        assert_eq!(Percentiles::of(std::iter::empty()).at(99), None);
    }

    #[test]
    fn test_without_runs_fails() {
        let finished = Finished { history: History::default(), errors: Vec::new() };
        let test = FaultTest {
            name: "crash",
            seed: 1,
            load: 0..1,
            finished,
            faults: Vec::new(),
            problems: vec!["the server panicked".to_owned()],
            hostile: HostileCounts::new(),
            waited: 0,
        };
        let verdict = check(&test.finished.history);
        assert_eq!(verdict.total(), 0);
        assert_eq!(test.failures(&verdict).len(), 3);
        let measures = Measures::new(
            &HistoryIndex::new(&test.finished.history),
            &Rates::new(Vec::new(), 0..1),
            &[],
            &[],
        );
        let document = test.json(&verdict, &measures);
        for name in [
            "submitted",
            "terminal",
            "lost",
            "duplicated",
            "order_violations",
            "overlaps",
            "reexecuted",
            "orphans",
            "cursor_holes",
            "seed",
        ] {
            assert!(document[name].is_u64(), "{name}");
        }
    }
}
