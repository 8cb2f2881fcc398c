//! The introduction and the final report of the demo.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    checks::{self, Check},
    recording::{SessionLog, first_queued_at, rows},
    runner::DemoResults,
    scenario::{SessionPlan, TENANTS},
    screen::Screen,
    server::DemoServer,
    timeline::Row,
};
use crate::{output::elapsed, serve::VERSION};

/// Prints what the demo is about to do.
pub(super) fn print_introduction(screen: &Screen, server: &DemoServer, plans: &[SessionPlan]) {
    let [acme, globex] = TENANTS;
    let runs: usize = plans.iter().map(|plan| plan.runs.len()).sum();
    screen.line(&format!("{} {VERSION}", screen.bold("remuda demo")));
    screen.paragraph(&format!(
        "A private server in this process: gRPC on {}, SQLite, one worker.",
        server.address
    ));
    screen.paragraph(&format!(
        "The tenants {acme} and {globex}, each with an API key, submit {runs} runs to {} sessions.",
        plans.len()
    ));
    screen.heading("Live events of all sessions");
}

/// The results of the demo.
#[derive(Debug)]
pub(super) struct Report {
    rows: Vec<Row>,
    logs: Vec<SessionLog>,
    checks: Vec<Check>,
    took: Duration,
    /// The data directory, if it was kept.
    kept: Option<String>,
}

impl Report {
    pub(super) fn new(
        plans: &[SessionPlan],
        results: DemoResults,
        took: Duration,
        kept: Option<&Path>,
    ) -> Self {
        let DemoResults { logs, probes } = results;
        Self {
            rows: rows(plans, &logs),
            checks: checks::all(&logs, &probes),
            logs,
            took,
            kept: kept.map(|path| path.display().to_string()),
        }
    }

    pub(super) fn passed(&self) -> bool {
        self.checks.iter().all(Check::passed)
    }

    pub(super) fn show(&self, screen: &Screen) {
        screen.heading("Timeline: one row per session, one block per run");
        screen.print_timeline(&self.rows);
        screen.heading("Checks");
        for check in &self.checks {
            screen.check(check);
        }
        let (count, took) = (self.checks.len(), elapsed(self.took));
        let failed = self.checks.iter().filter(|check| !check.passed()).count();
        match failed {
            0 => screen.verdict(true, &format!("All {count} checks passed, in {took}.")),
            _ => screen.verdict(
                false,
                &format!(
                    "{failed} of {count} checks failed. Run `remuda doctor` to find the cause. If it finds none, this is a bug: --keep keeps the data for a report."
                ),
            ),
        }
        if let Some(kept) = &self.kept {
            screen.line(&format!("The data is in {kept}"));
        }
        if failed == 0 {
            next_steps(screen);
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let checks = self.checks.iter().map(|check| {
            json!({ "name": check.name, "held": check.passed(), "text": check.text, "problems": check.problems })
        });
        let mut report = json!({
            "passed": self.passed(),
            "version": VERSION,
            "took_ms": millis(self.took),
            "expectations": checks.collect::<Vec<_>>(),
            "runs": self.runs(),
        });
        if let Some(kept) = &self.kept {
            report["data_dir"] = kept.as_str().into();
        }
        report
    }

    /// All runs with their times, in milliseconds since the first run was accepted.
    fn runs(&self) -> Vec<Value> {
        let zero = first_queued_at(&self.logs);
        let since = |at: Option<remuda_domain::Timestamp>| {
            at.zip(zero).and_then(|(at, zero)| (at - zero).to_std().ok()).map(millis)
        };
        let of_session = |log: &SessionLog| {
            let runs = log.runs.iter().zip(log.traces()).enumerate().map(|(index, (run, trace))| {
                json!({
                    "session": log.title,
                    "number": index + 1,
                    "run_id": run.id,
                    "state": trace.ends.first().map(|state| state.as_str()),
                    "failure_code": trace.failure_code,
                    "queued_ms": since(trace.queued),
                    "started_ms": since(trace.started),
                    "finished_ms": since(trace.finished),
                    "calls": trace.calls.iter().map(|call| json!({
                        "id": call.id, "started_ms": since(Some(call.from)), "finished_ms": since(Some(call.to)),
                    })).collect::<Vec<_>>(),
                })
            });
            runs.collect::<Vec<_>>()
        };
        self.logs.iter().flat_map(of_session).collect()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn next_steps(screen: &Screen) {
    let program = program();
    let step = |what: &str, command: &str| {
        screen.line(&format!("  {} {program} {command}", screen.dim(&format!("{what:<18}"))));
    };
    screen.heading("Next steps");
    step("start a server", "dev");
    step("run a command", "run --session s1 --follow --tool Bash --arg command='echo hi'");
    step("follow a session", "watch s1");
    step("why does it wait?", "explain RUN_ID");
    step("check the host", "doctor");
    screen.line(&format!("  {} README.md", screen.dim(&format!("{:<18}", "read more"))));
}

/// The path of this program, as it was called: after `cargo run`, `remuda` is not in the PATH.
fn program() -> String {
    let called = PathBuf::from(std::env::args_os().next().unwrap_or_else(|| "remuda".into()));
    let here = std::env::current_dir().ok();
    let shorter = here.and_then(|here| called.strip_prefix(here).ok().map(Path::to_path_buf));
    shorter.unwrap_or(called).display().to_string()
}
