//! What is told before and after the play.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    checks::{self, Check},
    play::Played,
    recording::{SessionLog, beginning, rows},
    screen::Screen,
    script::{Scene, TENANTS},
    stage::Stage,
    timeline::Row,
};
use crate::{output::elapsed, serve::VERSION};

/// Says what is about to happen.
pub(super) fn introduce(screen: &Screen, stage: &Stage, scenes: &[Scene]) {
    let [acme, globex] = TENANTS;
    let runs: usize = scenes.iter().map(|scene| scene.runs.len()).sum();
    screen.line(&format!("{} {VERSION}", screen.bold("remuda demo")));
    screen.paragraph(&format!(
        "A private stack in this process: gRPC on {}, SQLite, one worker.",
        stage.address
    ));
    screen.paragraph(&format!(
        "Tenants {acme} and {globex} with an API key each submit {runs} runs into {} sessions.",
        scenes.len()
    ));
    screen.heading("Live, from the event stream of every session");
}

/// How it went.
#[derive(Debug)]
pub(super) struct Report {
    rows: Vec<Row>,
    logs: Vec<SessionLog>,
    checks: Vec<Check>,
    took: Duration,
    /// The data directory, where it was kept.
    kept: Option<String>,
}

impl Report {
    pub(super) fn new(scenes: &[Scene], played: Played, took: Duration, kept: Option<&Path>) -> Self {
        let Played { logs, probes } = played;
        Self {
            rows: rows(scenes, &logs),
            checks: checks::all(&logs, &probes),
            logs,
            took,
            kept: kept.map(|path| path.display().to_string()),
        }
    }

    pub(super) fn passed(&self) -> bool {
        self.checks.iter().all(Check::held)
    }

    pub(super) fn show(&self, screen: &Screen) {
        screen.heading("What happened: a row per session, a block per run");
        screen.picture(&self.rows);
        screen.heading("What must hold");
        for check in &self.checks {
            screen.check(check);
        }
        let (count, took) = (self.checks.len(), elapsed(self.took));
        let broken = self.checks.iter().filter(|check| !check.held()).count();
        match broken {
            0 => screen.verdict(true, &format!("All {count} expectations held, in {took}.")),
            _ => screen.verdict(
                false,
                &format!(
                    "{broken} of {count} expectations did not hold. Perhaps `remuda doctor` knows why; else it is a bug, and --keep keeps the data to look at."
                ),
            ),
        }
        if let Some(kept) = &self.kept {
            screen.line(&format!("The data is kept in {kept}"));
        }
        if broken == 0 {
            next_steps(screen);
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let checks = self.checks.iter().map(|check| {
            json!({ "name": check.name, "held": check.held(), "text": check.text, "problems": check.problems })
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

    /// Every run with its times, in milliseconds since the first was accepted.
    fn runs(&self) -> Vec<Value> {
        let zero = beginning(&self.logs);
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
    screen.heading("What to try next");
    step("start it for real", "dev");
    step("then run something", "run --session s1 --follow --tool Bash --arg command='echo hi'");
    step("follow a session", "watch s1");
    step("ask why it waits", "explain RUN_ID");
    step("look at the host", "doctor");
    screen.line(&format!("  {} README.md", screen.dim(&format!("{:<18}", "take the tour"))));
}

/// How this program was called: after `cargo run` there is no `remuda` to be found by its name.
fn program() -> String {
    let called = PathBuf::from(std::env::args_os().next().unwrap_or_else(|| "remuda".into()));
    let here = std::env::current_dir().ok();
    let shorter = here.and_then(|here| called.strip_prefix(here).ok().map(Path::to_path_buf));
    shorter.unwrap_or(called).display().to_string()
}
