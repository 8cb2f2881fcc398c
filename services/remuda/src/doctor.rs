//! `remuda doctor`: checks everything that a start depends on, and says how to fix problems.
//!
//! It changes nothing: it creates no database, no stream and no directory. Every check has a timeout.

mod backends;
mod machine;
mod network;
mod services;
mod tls;
mod workspaces;

use std::{
    io::{self, ErrorKind, IsTerminal as _, Write as _},
    process::ExitCode,
};

use remuda_config::LoadedConfig;
use serde::Serialize;
use serde_json::json;

/// The deployment mode to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// One process with SQLite, as started by `remuda dev`.
    Embedded,
    /// PostgreSQL and NATS, as used by `remuda all` or by one process per service.
    Split,
}

impl From<Mode> for remuda_node::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Embedded => Self::Embedded,
            Mode::Split => Self::Split,
        }
    }
}

/// Severity of a check's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Ok,
    /// Not needed in this mode.
    NotUsed,
    /// Works, but may cause surprises.
    Warning,
    /// A service will not start, or will fail later.
    Problem,
}

impl Level {
    /// The mark at the start of a line and its colour code.
    const fn mark(self) -> (&'static str, &'static str) {
        match self {
            Self::Ok => ("✓", "32"),
            Self::NotUsed => ("-", "2"),
            Self::Warning => ("!", "33"),
            Self::Problem => ("✗", "31"),
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
struct Check {
    name: &'static str,
    level: Level,
    found: String,
    /// How to fix the problem.
    #[serde(rename = "mend", skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, level: Level::Ok, found: found.into(), fix: None }
    }

    fn not_used(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, level: Level::NotUsed, found: found.into(), fix: None }
    }

    fn warning(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, level: Level::Warning, found: found.into(), fix: Some(fix.into()) }
    }

    fn problem(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, level: Level::Problem, found: found.into(), fix: Some(fix.into()) }
    }
}

/// Runs all checks and prints the results. The exit code is 1 if there is a problem; warnings do not count.
pub(crate) async fn run(loaded: &LoadedConfig, mode: Mode, json: bool) -> anyhow::Result<ExitCode> {
    let checks = run_checks(loaded, mode).await;
    let text =
        if json { as_json(&checks, mode)? } else { as_text(&checks, mode, io::stdout().is_terminal()) };
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    let failed = checks.iter().any(|check| check.level == Level::Problem);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn run_checks(loaded: &LoadedConfig, mode: Mode) -> Vec<Check> {
    let config = &loaded.config;
    let mut checks = vec![machine::configuration(loaded)];
    checks.extend(machine::directories(config, mode));
    checks.push(machine::file_modes(config, mode));
    checks.push(machine::open_files(config, mode));
    // These wait for other processes, so run them concurrently.
    let (store, workspaces, clock, nats, docker, ports) = tokio::join!(
        services::store(config, mode),
        Box::pin(workspaces::registered(config, mode)),
        services::clock(config, mode),
        services::nats(config, mode),
        backends::docker(config),
        network::ports(config, mode),
    );
    checks.extend([clock, store]);
    checks.extend(workspaces);
    checks.push(nats);
    checks.extend(ports);
    checks.extend(tls::certificate(&config.tls));
    checks.push(backends::local(config).await);
    checks.push(docker);
    checks
}

fn count(checks: &[Check], level: Level) -> usize {
    checks.iter().filter(|check| check.level == level).count()
}

fn as_json(checks: &[Check], mode: Mode) -> anyhow::Result<String> {
    let problems = count(checks, Level::Problem);
    let report = json!({
        "ok": problems == 0,
        "mode": mode,
        "version": env!("CARGO_PKG_VERSION"),
        "problems": problems,
        "warnings": count(checks, Level::Warning),
        "checks": checks,
    });
    Ok(serde_json::to_string(&report)? + "\n")
}

fn as_text(checks: &[Check], mode: Mode, colour: bool) -> String {
    let paint = |code: &str, text: &str| {
        if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    };
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let (mark, code) = check.level.mark();
        let found = without_control_characters(&check.found);
        text += &format!("{} {:width$}  {found}\n", paint(code, mark), check.name);
        if let Some(fix) = &check.fix {
            text += &format!("  {:width$}  → {}\n", "", without_control_characters(fix));
        }
    }
    let mode = if mode == Mode::Embedded { "embedded" } else { "split" };
    let (problems, warnings) = (count(checks, Level::Problem), count(checks, Level::Warning));
    let verdict = match (problems, warnings) {
        (0, 0) => format!("everything is fine for the {mode} mode"),
        (0, warnings) => format!("ready for the {mode} mode, warnings: {warnings}"),
        (problems, warnings) => {
            format!("not ready for the {mode} mode, problems: {problems}, warnings: {warnings}")
        }
    };
    text + "\n" + &verdict + "\n"
}

/// Replaces control characters, which errors of servers may contain, so that a line stays one line.
fn without_control_characters(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests;
